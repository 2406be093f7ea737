/** The signed table of a comparison: who grew, who shrank, and what did not change folded into one row. */

import type { CompareDevice } from '../document';
import { type Colours, toneColour } from '../draw/palette';
import { formatBytes, formatCount } from '../format';
import { momentText } from '../ui/describe';
import { bdi, button, h, replace } from '../ui/dom';
import { type Change, changesAt, type Moment, type Sides, type StackChanges, stacksOf } from './model';

const TABS: readonly [Moment, string, string][] = [
  ['peak', 'At each one’s peak', 'Who was alive when the most was allocated, in A and in B'],
  ['end', 'At the end', 'Who was alive at the end, in A and in B'],
  ['here', 'At the clicked moments', 'Click both pictures: who is alive there, in A and in B']
];
const FRAMES_SHOWN = 4;
let nextId = 0;

export class CompareTable {
  readonly element = h('section');
  readonly #device: CompareDevice;
  readonly #sides: Sides;
  readonly #tabs = h('div', { class: 'tabs', role: 'tablist', 'aria-label': 'Tables' });
  readonly #panel: HTMLElement;
  readonly #open = new Set<Change['row']>();
  readonly #id = `gm-compare-${nextId++}`;
  #moment: Moment = 'peak';
  #unchanged = false;
  #colours: Colours;
  #changes: Change[] = [];

  constructor(device: CompareDevice, sides: Sides, colours: Colours) {
    this.#device = device;
    this.#sides = sides;
    this.#colours = colours;
    this.#panel = h('div', { class: 'panel', role: 'tabpanel', id: this.#id });
    this.element.append(this.#tabs, this.#panel);
    this.show();
  }

  setColours(colours: Colours): void {
    this.#colours = colours;
    this.show();
  }

  /** Both pictures were clicked: show what that asks for. */
  follow(): void {
    const { a, b } = this.#sides;
    if (a?.here != null && b?.here != null) this.#moment = 'here';
    else if (this.#moment === 'here') this.#moment = 'peak';
    this.show();
  }

  get text(): string {
    const line = (change: Change): string =>
      [change.a, change.b, change.b - change.a, change.group?.label ?? '', change.group?.source ?? '']
        .map(part => String(part).replaceAll('\t', ' '))
        .join('\t');
    return [['A', 'B', 'change', 'where', 'source'].join('\t'), ...this.#changes.map(line)].join('\n');
  }

  show(): void {
    this.#showTabs();
    this.#changes = changesAt(this.#device, this.#sides, this.#moment);
    replace(this.#panel, ...this.#content());
  }

  #showTabs(): void {
    const { a, b } = this.#sides;
    const clicked = a?.here != null && b?.here != null;
    replace(
      this.#tabs,
      ...TABS.filter(([moment]) => moment !== 'here' || clicked).map(([moment, label, title]) =>
        button(
          label,
          () => {
            this.#moment = moment;
            this.show();
          },
          { role: 'tab', 'aria-selected': String(moment === this.#moment), 'aria-controls': this.#id, title }
        )
      ),
      clicked
        ? null
        : h(
            'span',
            { class: 'muted', style: 'font-size:11px;align-self:center' },
            'click a moment in each picture: who differs there'
          )
    );
  }

  #content(): (Node | null)[] {
    const changed = this.#changes.filter(({ a, b }) => a !== b);
    const same = this.#changes.filter(({ a, b }) => a === b);
    if (this.#changes.length === 0) return [h('p', {}, 'Nothing was allocated in either.')];
    const most = changed.reduce((sum, { a, b }) => Math.max(sum, Math.abs(b - a)), 0);
    const sourced = this.#changes.some(({ group }) => group?.source != null);
    const body = h('tbody', {}, ...changed.flatMap(change => this.#rows(change, most, sourced)));
    const label = `${formatCount(same.length)} unchanged`;
    if (same.length > 0) {
      const held = same.reduce((sum, { b }) => sum + b, 0);
      const fold = this.#fold(this.#unchanged, label, () => {
        this.#unchanged = !this.#unchanged;
        this.show();
      });
      body.append(
        h(
          'tr',
          {},
          ...numbers(held, held),
          h('td', { class: 'bar', 'aria-hidden': 'true' }),
          h('td', { class: 'where', colspan: 2 }, fold)
        )
      );
      if (this.#unchanged) body.append(...same.flatMap(change => this.#rows(change, most, sourced)));
    }
    const sum = (side: 'a' | 'b'): number => this.#changes.reduce((total, change) => total + change[side], 0);
    return [
      h(
        'table',
        { class: sourced ? 'compare' : 'compare plain' },
        h('caption', { class: 'sr' }, `What changed ${this.#caption()}`),
        h(
          'thead',
          {},
          h(
            'tr',
            {},
            ...['A', 'B', 'change'].map(head => h('th', { class: 'n', scope: 'col' }, head)),
            h('th', { class: 'bar', 'aria-hidden': 'true' }),
            h('th', { scope: 'col' }, 'where'),
            sourced ? h('th', { scope: 'col' }, 'source') : null
          )
        ),
        body,
        h(
          'tfoot',
          {},
          h(
            'tr',
            {},
            ...numbers(sum('a'), sum('b')),
            h('td', { class: 'bar', 'aria-hidden': 'true' }),
            h('td', { colspan: 2 }, this.#caption())
          )
        )
      ),
      changed.length === 0 ? h('p', {}, `Nothing differs ${this.#caption()}.`) : null
    ];
  }

  #caption(): string {
    if (this.#moment !== 'here') return this.#moment === 'peak' ? 'at each one’s peak' : 'at the end';
    const at = (side: 'a' | 'b'): string => {
      const here = this.#sides[side]?.here ?? null;
      return here === null ? '' : momentText(here.source, here.us, 1);
    };
    return `in A at ${at('a')}, in B at ${at('b')}`;
  }

  #fold(open: boolean, label: string, toggle: () => void): HTMLElement {
    return button(`${open ? '▾' : '▸'} ${label}`, toggle, { class: 'fold', 'aria-expanded': String(open) });
  }

  #rows(change: Change, most: number, sourced: boolean): HTMLElement[] {
    const { group, row } = change;
    const stacks = stacksOf(change, this.#sides, this.#moment);
    const open = this.#open.has(row);
    const swatch = h('span', { class: 'swatch', 'aria-hidden': 'true' });
    swatch.style.background = this.#colourOf(change);
    const label = group?.label ?? '';
    const where =
      stacks === null
        ? [bdi(label)]
        : [
            this.#fold(open, label, () => {
              if (!this.#open.delete(row)) this.#open.add(row);
              this.show();
            })
          ];
    const element = h(
      'tr',
      { title: group?.file ?? null },
      ...numbers(change.a, change.b),
      h('td', { class: 'bar', 'aria-hidden': 'true' }, bar(change.b - change.a, most)),
      h(
        'td',
        { class: 'where', title: label },
        swatch,
        group?.cell == null ? null : bdi(`${group.cell} `, 'muted'),
        ...where,
        group?.reason == null ? null : bdi(` ${group.reason}`, 'muted')
      ),
      sourced
        ? h('td', { class: 'source', title: group?.source }, group?.source == null ? null : bdi(group.source, 'code'))
        : null
    );
    const stress = (on: boolean): void => {
      for (const side of ['a', 'b'] as const) {
        this.#sides[side]?.setEmphasis(on && row[side].length > 0 ? new Set(row[side]) : null);
      }
    };
    element.addEventListener('pointerenter', () => stress(true));
    element.addEventListener('pointerleave', () => stress(false));
    element.addEventListener('focusin', () => stress(true));
    element.addEventListener('focusout', () => stress(false));
    return stacks === null || !open ? [element] : [element, ...stackRows(stacks)];
  }

  #colourOf({ row }: Change): string {
    for (const side of ['b', 'a'] as const) {
      const band = this.#sides[side]?.banding.bands.find(({ groups }) => groups.some(g => row[side].includes(g)));
      if (band !== undefined) return toneColour(band.tone, this.#colours);
    }
    return this.#colours.other;
  }
}

function numbers(a: number, b: number): HTMLElement[] {
  const cell = (value: number, text: string, className: string): HTMLElement =>
    h('td', { class: className, title: `${formatCount(value)} bytes` }, text);
  const growth = b - a;
  return [
    cell(a, formatBytes(a), 'n'),
    cell(b, formatBytes(b), 'n'),
    cell(
      growth,
      growth === 0 ? '=' : formatBytes(growth, true),
      growth > 0 ? 'n strong grew' : growth < 0 ? 'n strong shrank' : 'n muted'
    )
  ];
}

/** Growth to the right of the middle, shrinking to its left. */
function bar(growth: number, most: number): HTMLElement {
  const share = most > 0 ? (Math.abs(growth) / most) * 50 : 0;
  const element = h('i', { class: growth > 0 ? 'grew' : 'shrank', 'aria-hidden': 'true' });
  element.style.width = `${share}%`;
  element.style.marginInlineStart = growth > 0 ? '50%' : `${50 - share}%`;
  return element;
}

function stackRows({ shared, stacks, summed }: StackChanges): HTMLElement[] {
  const line = (a: number, b: number, ...text: (Node | string)[]): HTMLElement =>
    h('tr', { class: 'inside' }, ...numbers(a, b), h('td', { class: 'where', colspan: 3 }, ...text));
  const rows: HTMLElement[] = [];
  if (shared.length > 0) {
    const title = shared.join('\n');
    const text = `${shared.length} outer ${shared.length === 1 ? 'frame' : 'frames'} in all of them: … ${shared.at(-1)}`;
    rows.push(
      h(
        'tr',
        { class: 'inside' },
        h('td', { colspan: 3 }),
        h('td', { class: 'where muted', colspan: 3, title }, bdi(text))
      )
    );
  }
  for (const { frames, a, b } of stacks) {
    const shown = frames.slice(-FRAMES_SHOWN);
    const text = frames.length === 0 ? 'no stack' : `${frames.length > shown.length ? '… ' : ''}${shown.join(' › ')}`;
    const element = line(a, b, bdi(text));
    element.title = frames.join('\n');
    rows.push(element);
  }
  if (summed[0] !== 0 || summed[1] !== 0) rows.push(line(summed[0], summed[1], 'small allocations, kept as sums'));
  return rows;
}
