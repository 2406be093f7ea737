/** What lies under the mouse: bytes, time, line, source and stack. */

import { isGrave } from '../draw/frame';
import { lineAt } from '../draw/lines';
import { type Colours, toneColour } from '../draw/palette';
import { formatBytes } from '../format';
import type { Band } from '../model/bands';
import type { Session, Source } from '../session';
import { lifeOf, lifeText, mayBeMany, momentText, stackList } from './describe';
import { bdi, h, replace } from './dom';
import type { Pointed } from './pointed';

const OFFSET_PX = 14;
const STACK_PARTS = 7;
/** Markers within this share of the width are meant. */
const NEAR_SHARE = 0.006;
const MOST_MARKERS = 3;

export class Tooltip {
  readonly element = h('div', { class: 'tooltip', role: 'tooltip', hidden: true });
  readonly #session: Session;
  #shown = '';

  constructor(session: Session) {
    this.#session = session;
  }

  show(pointed: Pointed | null, box: { width: number; height: number }, colours: Colours): void {
    this.element.hidden = pointed === null;
    if (pointed === null) return;
    // The content stays while the mouse only moves up and down inside a band.
    const key = `${pointed.moment} ${pointed.picked?.band} ${pointed.lifetime} ${Math.round(pointed.x)} ${this.#session.colorBy} ${pointed.source.recording.index}`;
    if (key !== this.#shown) {
      this.#shown = key;
      replace(this.element, ...this.#content(pointed, colours));
    }
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const left = pointed.x + OFFSET_PX + width > box.width ? pointed.x - OFFSET_PX - width : pointed.x + OFFSET_PX;
    const top = Math.min(Math.max(4, pointed.y + OFFSET_PX), Math.max(4, box.height - height - 4));
    this.element.style.left = `${Math.max(2, Math.min(left, box.width - width - 2))}px`;
    this.element.style.top = `${top}px`;
  }

  #content(pointed: Pointed, colours: Colours): (Node | null)[] {
    const { source, picked, lifetime } = pointed;
    const time = h(
      'div',
      { class: 'muted' },
      `at ${this.#time(pointed.us)}: ${formatBytes(pointed.total)} allocated${this.#others(pointed)}`
    );
    const around = [...this.#regions(pointed.us), ...this.#markers(pointed)];
    if (picked === null) return [...around, time];
    const band = source.curves.banding.bands[picked.band] as Band;
    const swatch = h('span', { class: 'swatch' });
    swatch.style.background = toneColour(band.tone, colours);
    const group =
      lifetime === null ? null : source.recording.device.groups[source.recording.lifetimes.group[lifetime] as number];
    const label = group?.label ?? band.label;
    const code = group?.source ?? band.detail;
    const out: (Node | null)[] = [
      h('div', { class: 'head' }, swatch, group?.cell == null ? null : bdi(`${group.cell} `), bdi(label)),
      code === null || code === undefined ? null : bdi(code, 'code'),
      band.reason == null ? null : h('div', { class: 'muted' }, bdi(band.reason)),
      h('div', {}, `${formatBytes(picked.bytes)} of ${band.label === label ? 'this line' : band.label} here`)
    ];
    if (lifetime !== null) out.push(...this.#allocation(source, lifetime));
    out.push(...around, time);
    return out;
  }

  #allocation(source: Source, lifetime: number): (Node | null)[] {
    const life = lifeOf(source, lifetime);
    const asked = life.requested === life.bytes ? '' : ` (asked for ${formatBytes(life.requested)})`;
    const stream = source.recording.device.timeline.streams.length > 1 ? `, stream ${life.stream}` : '';
    return [
      h(
        'div',
        {},
        `${mayBeMany(life) ? 'alive all through' : 'this allocation'}: ${formatBytes(life.bytes)}${asked}, ${lifeText(life, source)}${stream}`
      ),
      stackList(source, source.recording.lifetimes.stack[lifetime] as number, STACK_PARTS, false)
    ];
  }

  #others({ us }: Pointed): string {
    return this.#session.lines
      .filter(line => line.name !== 'limit' && !this.#session.hiddenLines.has(line.name))
      .map(line => ({ name: line.name, value: lineAt(line, us) }))
      .filter(({ value }) => value !== null)
      .map(({ name, value }) => `, ${name} ${formatBytes(value as number)}`)
      .join('');
  }

  /** The named regions around a moment, from the outside in. */
  #regions(us: number): Node[] {
    const names = this.#session.regions
      .filter(region => region.fromUs <= us && us < region.toUs)
      .map(({ name }) => name);
    return names.length === 0
      ? []
      : [h('div', { class: 'muted' }, 'in ', ...names.flatMap((name, k) => [k === 0 ? '' : ' › ', bdi(name)]))];
  }

  /** What a marker near the mouse says in full. */
  #markers({ us, source }: Pointed): Node[] {
    const { axis, spanU } = this.#session.viewport;
    const { markers } = source.recording.device;
    const { startUs } = this.#session.source.recording.device;
    const near = spanU * NEAR_SHARE;
    return markers
      .filter(marker => Math.abs(axis.uOfUs(marker.timeUs - startUs) - axis.uOfUs(us)) < near)
      .slice(0, MOST_MARKERS)
      .map(marker => h('div', { class: isGrave(marker.kind) ? 'grave' : 'muted' }, bdi(marker.text)));
  }

  #time(us: number): string {
    return momentText(
      this.#session.source,
      us,
      Math.max(1, this.#session.viewport.axis.kind === 'time' ? this.#session.viewport.spanU / 500 : 1)
    );
  }
}
