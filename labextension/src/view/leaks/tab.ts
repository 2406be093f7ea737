/** What grows with each iteration: the lines, how much and how often, what keeps it, and what only looks like it. */

import type { Growth, Leak, LeakLine, Place } from '../document';
import { type Colours, toneColour } from '../draw/palette';
import { formatBytes, formatCount } from '../format';
import { ALIVE } from '../model/steps';
import type { Session } from '../session';
import { bdi, button, h, replace } from '../ui/dom';
import { withCode } from '../ui/header';
import type { ExtraTab } from '../ui/tables';

const BARS_PX = 160;

export class LeaksTab implements ExtraTab {
  readonly name = 'leaks';
  readonly title = 'What grows with each iteration, and what stayed for another reason';
  readonly element = h('div', { class: 'leaks' });
  readonly followsHere = false;
  readonly #session: Session;
  #pinned: number | null = null;

  constructor(session: Session) {
    this.#session = session;
  }

  get label(): string {
    const leaks = this.#growth?.leaks.length ?? 0;
    return leaks === 0 ? 'Growth' : `Leaks (${leaks})`;
  }

  available(): boolean {
    return this.#growth !== null;
  }

  get #growth(): Growth | null {
    return this.#session.source.recording.device.growth ?? null;
  }

  show(colours: Colours): void {
    const growth = this.#growth;
    if (growth === null) return;
    const { leaks, small, once } = growth;
    replace(
      this.element,
      leaks.length === 0
        ? h(
            'p',
            {},
            `Nothing that matters grew with the iterations${growth.iterations > 0 ? ` (${formatCount(growth.iterations)} were seen)` : ''}.`
          )
        : null,
      ...leaks.map(leak => this.#leak(leak, colours)),
      small.length === 0 ? null : h('h4', {}, 'Grows too, but little or as it is meant'),
      ...small.map(leak => this.#leak(leak, colours)),
      once.length === 0 ? null : h('h4', {}, 'Stayed, but does not grow'),
      once.length === 0
        ? null
        : h(
            'ul',
            {},
            ...once.map(one =>
              h(
                'li',
                { title: `${formatCount(one.bytes)} bytes` },
                h('bdi', { dir: 'auto' }, ...withCode(one.sentence))
              )
            )
          )
    );
  }

  text(): string {
    const growth = this.#growth;
    if (growth === null) return '';
    const rows = [...growth.leaks, ...growth.small].flatMap(leak =>
      leak.lines.map(line =>
        [
          formatBytes(line.bytesPerIteration),
          formatBytes(line.bytes),
          line.blocks,
          howOften(leak),
          placeName(line),
          line.source ?? '',
          leak.keepers.map(keeper => keeper.path).join(', ')
        ].join('\t')
      )
    );
    return [
      'each time\tin all\tblocks\thow often\twhere\tsource\theld by',
      ...rows,
      ...growth.once.map(one => one.sentence)
    ].join('\n');
  }

  #leak(leak: Leak, colours: Colours): HTMLElement {
    const heads: [string, string][] = [
      ['each time', 'Median of what one iteration left; the first, in which things warm up, does not count'],
      ['in all', 'Alive at the end'],
      ['blocks', 'Allocations that stayed']
    ];
    return h(
      'section',
      { class: 'leak' },
      // What the first sentence of the report tells is not told again.
      this.#session.document.header.sentence.includes(leak.sentence)
        ? null
        : h('p', { class: 'verdict', dir: 'auto' }, ...withCode(leak.sentence)),
      evidence(leak, colours),
      h(
        'table',
        {},
        h('caption', { class: 'sr' }, `What grew: ${leak.sentence}`),
        h(
          'thead',
          {},
          h(
            'tr',
            {},
            ...heads.map(([name, title]) => h('th', { class: 'n', scope: 'col', title }, name)),
            h('th', { scope: 'col' }, 'allocated at'),
            h('th', { scope: 'col' }, 'source'),
            h('th', {}, h('span', { class: 'sr' }, 'in the picture'))
          )
        ),
        h('tbody', {}, ...leak.lines.map(line => this.#line(line, colours)))
      ),
      keepers(leak),
      leak.remedy ? h('p', { class: 'verdict', dir: 'auto' }, 'Do: ', ...withCode(leak.remedy)) : null
    );
  }

  #line(line: LeakLine, colours: Colours): HTMLElement {
    const session = this.#session;
    const group = this.#groupOf(line);
    const band = session.banding.bands.find(one => group !== null && one.groups.includes(group));
    const swatch = h('span', { class: 'swatch', 'aria-hidden': 'true' });
    swatch.style.background = band === undefined ? 'transparent' : toneColour(band.tone, colours);
    const stress = (on: boolean): void => {
      const shown = on ? group : this.#pinned;
      session.setEmphasis(shown === null ? null : new Set([shown]));
    };
    const last = group === null ? null : this.#lastKept(group);
    const row = h(
      'tr',
      { 'aria-selected': String(group !== null && group === this.#pinned) },
      ...[line.bytesPerIteration, line.bytes].map((bytes, k) =>
        h('td', { class: k === 0 ? 'n strong' : 'n', title: `${formatCount(bytes)} bytes` }, formatBytes(bytes))
      ),
      h('td', { class: 'n' }, formatCount(line.blocks)),
      h('td', { class: 'where' }, swatch, line.cell === null ? null : bdi(`${line.cell} `, 'muted'), bdi(line.label)),
      h('td', { class: 'source', title: line.source }, line.source === null ? null : bdi(line.source, 'code')),
      h(
        'td',
        { class: 'n' },
        group === null
          ? null
          : button(
              'highlight',
              () => {
                this.#pinned = this.#pinned === group ? null : group;
                stress(this.#pinned !== null);
                this.show(colours);
                this.element.querySelector<HTMLElement>(`[data-group="${group}"]`)?.focus();
              },
              {
                'aria-pressed': String(this.#pinned === group),
                'data-group': group,
                title: 'Stress its band in the picture'
              }
            ),
        ' ',
        last === null
          ? null
          : button(
              'the last one',
              () => {
                session.select(last, session.source);
                session.showLifetime(last, false, session.source);
              },
              { title: 'Select the last allocation of it that stayed; , and . go to its neighbours' }
            )
      )
    );
    row.addEventListener('pointerenter', () => stress(true));
    row.addEventListener('pointerleave', () => stress(false));
    return row;
  }

  #groupOf(place: Place): number | null {
    const at = this.#session.source.recording.device.groups.findIndex(
      group =>
        group.label === place.label &&
        group.line === place.line &&
        group.cell === place.cell &&
        group.source === place.source
    );
    return at < 0 ? null : at;
  }

  /** The youngest allocation of a line that is alive at the end and known singly. */
  #lastKept(group: number): number | null {
    const { lifetimes } = this.#session.source.recording;
    for (let i = lifetimes.count - 1; i >= lifetimes.preexisting; i--) {
      if (lifetimes.group[i] === group && lifetimes.end[i] === ALIVE) return i;
    }
    return null;
  }
}

function placeName(place: Place): string {
  return place.cell === null ? place.label : `${place.cell} ${place.label}`;
}

function howOften(leak: Leak): string {
  const times = `${formatCount(leak.grown)} of ${formatCount(leak.iterations)}`;
  const unit = leak.kind === 'reruns' ? 'runs of the cell' : leak.loop === null ? 'repetitions' : 'iterations';
  const order = leak.every === null ? ', without any order' : leak.every > 1 ? `, every ${ordinal(leak.every)}` : '';
  return `in ${times} ${unit}${order}`;
}

function ordinal(number: number): string {
  const ending = number % 100 > 10 && number % 100 < 14 ? 'th' : (['th', 'st', 'nd', 'rd'][number % 10] ?? 'th');
  return `${formatCount(number)}${ending}`;
}

/** What each iteration left, as bars; the numbers are its text. */
function evidence(leak: Leak, colours: Colours): HTMLElement {
  const often = `Seen ${howOften(leak)}`;
  const loop =
    leak.loop === null
      ? null
      : h(
          'span',
          {},
          ' of ',
          bdi(placeName(leak.loop)),
          ...(leak.loop.source === null ? [] : [' ', bdi(leak.loop.source, 'code')])
        );
  if (leak.left.length < 2) return h('p', {}, often, loop, '.');
  const most = Math.max(...leak.left, 1);
  const width = Math.max(1, Math.min(8, BARS_PX / leak.left.length));
  const what = leak.kind === 'regrown' ? 'how large it was in each' : 'what of each is there at the end';
  const together = leak.leftPer > 1 ? `, ${formatCount(leak.leftPer)} of them a bar` : '';
  const bars = h('span', {
    class: 'bars',
    role: 'img',
    'aria-label': `${what}${together}: ${leak.left.map(bytes => formatBytes(bytes)).join(', ')}`
  });
  for (const bytes of leak.left) {
    const bar = h('i', { title: formatBytes(bytes) });
    bar.style.cssText = `width:${width}px;height:${Math.max(bytes > 0 ? 2 : 0, (bytes / most) * 26)}px;background:${colours.accent}`;
    bars.append(bar);
  }
  return h(
    'p',
    { class: 'evidence' },
    bars,
    h('span', {}, often, loop, `; bars: ${what}${together}, up to ${formatBytes(most)}.`)
  );
}

function keepers(leak: Leak): HTMLElement | null {
  if (leak.keepers.length === 0) return null;
  const rows = leak.keepers.map(({ path, kind, bytes, graphNodes, line }) =>
    h(
      'li',
      {},
      h('span', { title: `${formatCount(bytes)} bytes` }, formatBytes(bytes)),
      ' held by ',
      bdi(path, 'code'),
      h('span', { class: 'muted' }, ` (${kind}${graphNodes > 0 ? `, ${formatCount(graphNodes)} autograd nodes` : ''})`),
      line === null ? null : h('span', {}, ', put there at ', bdi(placeName(line)), ' ', bdi(line.source ?? '', 'code'))
    )
  );
  return h('ul', {}, ...rows);
}
