/** The "Segments" tab: where memory lies at a moment, what is wasted there, and who keeps it from going back. */

import type { AskChannel } from '../ask';
import type { Device } from '../document';
import { type Colours, toneColour } from '../draw/palette';
import { formatBytes, formatCount } from '../format';
import { type Band, makeBanding } from '../model/bands';
import type { Session } from '../session';
import { momentText } from '../ui/describe';
import { button, h, replace } from '../ui/dom';
import { drawTable } from '../ui/rows';
import type { ExtraTab } from '../ui/tables';
import { MapCanvas } from './canvas';
import type { SegmentMoment } from './document';
import {
  inOrder,
  numbersOf,
  type Order,
  pinsOf,
  type Segment,
  type SegmentMap,
  type SpanKind,
  sentenceOf
} from './model';
import { MapSource } from './source';
import { pinSpec, segmentTable } from './tables';

const MOST_ROWS = 200;
const ZOOMS = [1, 2, 4, 8, 16, 32] as const;
const ORDERS: Record<Order, string> = { waste: 'most waste first', size: 'largest first', address: 'address' };

function lastOom(device: Device): number | null {
  const ooms = device.markers.filter(marker => marker.kind === 'oom');
  return ooms[ooms.length - 1]?.timeUs ?? null;
}

export class SegmentsTab implements ExtraTab {
  readonly name = 'segments';
  readonly label = 'Segments';
  readonly title = 'Where memory lay: segments, what is wasted in them, and what pins it';
  readonly element = h('div', { class: 'segments' });
  readonly followsHere = true;
  readonly #session: Session;
  readonly #source: MapSource;
  readonly #canvas: MapCanvas;
  readonly #says = h('p', { class: 'says' });
  readonly #share = h('div', { class: 'share', 'aria-hidden': 'true' });
  readonly #slider = h('input', { type: 'range', min: 0, 'aria-label': 'Moment' });
  readonly #when = h('output');
  readonly #named = h('span');
  readonly #kept = h('span', { class: 'muted' });
  readonly #problem = h('p', { class: 'problem', role: 'status' });
  readonly #keys = h('ul', { class: 'keys', 'aria-label': 'Colours' });
  readonly #zoom = h('span');
  readonly #lens = h('div', { class: 'lens' });
  readonly #numbers = h('div', { class: 'facts' });
  readonly #meaning = h('details', {}, h('summary', {}, 'What these numbers mean'));
  readonly #all = h('details', {}, h('summary', {}, 'All segments as a table'));
  readonly #pinned = new Set<number>();
  /** Colours by owner, for thousands of blocks. */
  readonly #ofGroup = new Map<number, string>();
  readonly #unsubscribe: () => void;
  #order: Order = 'waste';
  #map: SegmentMap | null = null;
  #shown: Segment[] = [];
  #device = -1;
  #us: number | null = null;
  #colours: Colours | null = null;
  #byLine: readonly Band[] | null = null;

  constructor(session: Session, channel: AskChannel | null) {
    this.#session = session;
    this.#source = new MapSource(
      session,
      channel,
      map => this.#take(map),
      text => {
        this.#problem.textContent = text ?? '';
      }
    );
    this.#canvas = new MapCanvas({
      ofGroup: group => this.#colourOf(group),
      nameOf: group => this.#nameOf(group),
      emphasis: () => session.emphasis,
      onSelect: () => this.#showLens()
    });
    this.#slider.addEventListener('input', () => this.#slide());
    const order = h('select', {}, ...Object.entries(ORDERS).map(([value, text]) => h('option', { value }, text)));
    order.addEventListener('change', () => {
      this.#order = order.value as Order;
      this.#draw();
    });
    this.element.append(
      this.#says,
      this.#share,
      h('div', { class: 'moment' }, this.#when, this.#slider, this.#named, this.#kept),
      this.#problem,
      h('div', { class: 'tools' }, h('label', {}, 'order', order), this.#zoom, this.#keys),
      this.#canvas.element,
      this.#lens,
      this.#numbers,
      this.#meaning,
      this.#all
    );
    this.#all.addEventListener('toggle', () => this.#showAll());
    this.#unsubscribe = session.subscribe(change => {
      if (change === 'emphasis' && this.element.isConnected) this.#canvas.redraw();
    });
  }

  dispose(): void {
    this.#unsubscribe();
    this.#canvas.dispose();
    this.#source.dispose();
  }

  available(): boolean {
    return this.#source.moments.length > 0 || this.#source.live;
  }

  show(colours: Colours): void {
    this.#colours = colours;
    this.#ofGroup.clear();
    const session = this.#session;
    if (this.#device !== session.deviceIndex) {
      this.#device = session.deviceIndex;
      this.#map = null;
      this.#us = null;
      this.#byLine = null;
      this.#pinned.clear();
      this.#canvas.select(null);
      this.#showNamed();
      const steps = session.source.recording.steps.count;
      this.#slider.max = String(this.#source.live ? steps : Math.max(0, this.#source.moments.length - 1));
    }
    const us = session.here?.us ?? this.#us ?? this.#firstUs();
    if (us !== this.#us || this.#map === null) {
      const first = this.#map === null;
      this.#us = us;
      this.#source.request(us);
      // The map that comes is drawn; until then the old one stays as it is, so that a slider does not stutter.
      if (!first) return;
    }
    this.#draw();
  }

  text(): string {
    const line = (segment: Segment): string =>
      [
        segment.address,
        segment.mapped,
        segment.active,
        segment.free,
        segment.waste,
        segment.returnable,
        segment.small ? 'small' : 'large',
        segment.stream,
        this.#nameOf(pinsOf([segment])[0]?.group ?? null)
      ].join('\t');
    const head = ['address', 'bytes', 'in use', 'free', 'pinned free', 'returnable', 'pool', 'stream', 'most by'];
    return [this.#says.textContent ?? '', head.join('\t'), ...this.#shown.map(line)].join('\n');
  }

  /** Where memory ran out, else the peak. */
  #firstUs(): number {
    const { device } = this.#session.source.recording;
    return (lastOom(device) ?? device.headline.peakUs ?? device.startUs) - device.startUs;
  }

  #take(map: SegmentMap): void {
    this.#map = map;
    this.#problem.textContent = '';
    this.#draw();
  }

  /** The slider moves "here", so that the picture's cursor goes with the map. */
  #slide(): void {
    const { source } = this.#session;
    const value = Number(this.#slider.value);
    if (!this.#source.live) {
      const moment = this.#source.moments[value];
      if (moment !== undefined) this.#goTo(moment.timeUs - source.recording.device.startUs);
      return;
    }
    const { steps } = source.recording;
    this.#goTo(value === 0 ? 0 : (steps.time[value - 1] as number), value);
  }

  #goTo(us: number, moment?: number): void {
    const { source } = this.#session;
    const axis = source.axis;
    this.#session.setHere({ source, moment: moment ?? axis.momentAt(axis.uOfUs(us)), us, lifetime: null });
  }

  #showNamed(): void {
    const { device } = this.#session.source.recording;
    const { startUs, endUs, headline } = device;
    const last = lastOom(device);
    const go = (text: string, timeUs: number): HTMLElement =>
      button(text, () => this.#goTo(timeUs - startUs), { title: `The segments: ${text}` });
    replace(
      this.#named,
      headline.peakUs === null ? null : go('peak', headline.peakUs),
      ' ',
      last === null ? null : go('out of memory', last),
      ' ',
      go('end', endUs)
    );
  }

  #draw(): void {
    const map = this.#map;
    const colours = this.#colours;
    if (map === null || colours === null) {
      if (this.#problem.textContent === '') this.#says.textContent = 'Asking the kernel where memory lay …';
      return;
    }
    this.#says.textContent = sentenceOf(map, group => this.#nameOf(group));
    this.#showShare(map.moment, colours);
    this.#showMoment(map.moment);
    this.#showKeys(map, colours);
    this.#showZoom();
    this.#shown = inOrder(map.segments, this.#order);
    this.#canvas.show(this.#shown, colours);
    this.#showNumbers(map.moment);
    this.#showLens();
    this.#showAll();
  }

  #showShare({ numbers }: SegmentMoment, colours: Colours): void {
    const warn = colours.lines['outside torch'];
    const part = (bytes: number, background: string, title: string): HTMLElement => {
      const element = h('i', { title: `${title}: ${formatBytes(bytes)}` });
      element.style.width = `${numbers.reserved > 0 ? (100 * bytes) / numbers.reserved : 0}%`;
      element.style.background = background;
      return element;
    };
    replace(
      this.#share,
      part(numbers.active, colours.accent, 'in use'),
      part(
        numbers.pinned,
        `repeating-linear-gradient(135deg, ${warn} 0 2px, ${colours.grid} 2px 5px)`,
        'free, but pinned'
      ),
      part(numbers.returnable, colours.grid, 'free, empty_cache() would give it back')
    );
  }

  #showMoment(moment: SegmentMoment): void {
    const { source } = this.#session;
    const { recording } = source;
    const us = moment.timeUs - recording.device.startUs;
    const name = moment.name === '' ? '' : ` (${moment.name})`;
    const live = this.#source.live;
    const text = `at ${momentText(source, us, Math.max(1, recording.spanUs / 1000))}${name}`;
    const asked = this.#us ?? us;
    const far = !live && Math.abs(asked - us) > recording.spanUs / 1000;
    this.#when.textContent = text;
    const kept = formatCount(this.#source.moments.length);
    const names = this.#source.moments.flatMap(({ name: one }) => (one === '' ? [] : [one]));
    this.#kept.textContent = live ? '' : `${far ? 'the nearest of ' : ''}${kept} moments in this file`;
    this.#kept.title = `This file carries the map of ${kept} moments: ${names.join(', ')}, and some between them. With its kernel, a report has every moment.`;
    this.#slider.value = String(live ? (this.#session.here?.moment ?? this.#momentOf(us)) : this.#source.nearest(us));
    this.#slider.setAttribute('aria-valuetext', text);
  }

  #momentOf(us: number): number {
    const { axis } = this.#session.source;
    return axis.momentAt(axis.uOfUs(us));
  }

  #showKeys(map: SegmentMap, colours: Colours): void {
    const warn = colours.lines['outside torch'];
    const key = (background: string, text: string, title: string): HTMLElement => {
      const swatch = h('span', { class: 'swatch', 'aria-hidden': 'true' });
      swatch.style.background = background;
      return h('li', { title }, swatch, text);
    };
    const has = (kind: SpanKind): boolean =>
      map.segments.some(segment => segment.spans.some(span => span.kind === kind));
    const stripes = (colour: string, ground: string): string =>
      `repeating-linear-gradient(135deg, ${colour} 0 2px, ${ground} 2px 4px)`;
    replace(
      this.#keys,
      key(colours.slots[0] as string, 'in use, by line', 'Colours as in the picture'),
      has('pending')
        ? key(
            stripes(colours.slots[0] as string, colours.background),
            'waits for a stream',
            'Freed, but another stream may still use it'
          )
        : null,
      key(
        stripes(warn, colours.grid),
        'free, pinned',
        'Something lives in the same segment: empty_cache() cannot give it back'
      ),
      key(colours.grid, 'free, returnable', 'empty_cache() would give it back'),
      has('unmapped') ? key(colours.background, 'unmapped', 'Addresses of an expandable segment without memory') : null
    );
  }

  #showZoom(): void {
    const at = ZOOMS.indexOf(this.#canvas.zoom as (typeof ZOOMS)[number]);
    const step = (by: number, text: string, label: string): HTMLButtonElement =>
      button(
        text,
        () => {
          this.#canvas.zoom = ZOOMS[at + by] ?? this.#canvas.zoom;
          this.#showZoom();
        },
        { 'aria-label': label, title: label, disabled: ZOOMS[at + by] === undefined }
      );
    replace(this.#zoom, step(-1, '−', 'Smaller map'), step(1, '+', 'Larger map'));
  }

  #showNumbers(moment: SegmentMoment): void {
    const entries = numbersOf(moment.numbers);
    replace(
      this.#numbers,
      ...entries.map(entry =>
        h('span', { title: `${entry.meaning}. ${entry.exact}.` }, `${entry.name} `, h('b', {}, entry.value))
      )
    );
    const [summary] = this.#meaning.children;
    replace(
      this.#meaning,
      summary,
      h(
        'dl',
        {},
        ...entries.flatMap(entry => [h('dt', {}, `${entry.name}: ${entry.value}`), h('dd', {}, entry.meaning)])
      )
    );
  }

  /** What pins memory: in the selected segment, or in all. */
  #showLens(): void {
    const colours = this.#colours;
    const map = this.#map;
    if (colours === null || map === null) return;
    const segment = this.#canvas.selected;
    if (segment === null) {
      const wasteful = map.segments.filter(one => one.waste > 0);
      replace(
        this.#lens,
        wasteful.length === 0 ? null : h('h4', {}, 'Who keeps free memory from going back'),
        wasteful.length === 0
          ? h('p', {}, 'No free memory is pinned: empty_cache() would give all of it back.')
          : this.#pinTable(wasteful, colours),
        wasteful.length === 0
          ? null
          : h(
              'p',
              {},
              'Free memory counts once for each line that lives in its segment. Click a segment to see what pins it.'
            )
      );
      return;
    }
    const bar = h('canvas', { 'aria-hidden': 'true' });
    replace(
      this.#lens,
      h(
        'h4',
        {},
        `Segment ${formatCount(this.#canvas.placeOf(segment))} of ${formatCount(this.#shown.length)} (${ORDERS[this.#order]}) `,
        button('Close (Esc)', () => this.#canvas.select(null))
      ),
      h(
        'div',
        { class: 'facts' },
        h('span', {}, this.#canvas.describe(segment)),
        h('span', {}, `at ${segment.address}`)
      ),
      bar,
      segment.active === 0
        ? h('p', {}, 'Nothing lives here: empty_cache() would give it back.')
        : this.#pinTable([segment], colours)
    );
    this.#canvas.drawLens(bar, segment);
  }

  #pinTable(segments: readonly Segment[], colours: Colours): HTMLElement {
    return drawTable(this.#session, pinSpec(this.#session, segments), colours, this.#pinned);
  }

  /** The map's twin for those who cannot see it. */
  #showAll(): void {
    const [summary] = this.#all.children;
    const rows = this.#all.open ? this.#shown.slice(0, MOST_ROWS) : [];
    const more = this.#shown.length - rows.length;
    replace(
      this.#all,
      summary,
      rows.length === 0 ? null : segmentTable(rows, group => this.#nameOf(group)),
      rows.length > 0 && more > 0 ? h('p', {}, `${formatCount(more)} more; "copy table" in the menu takes all.`) : null
    );
  }

  #nameOf(group: number | null): string {
    const found = group === null ? undefined : this.#session.source.recording.device.groups[group];
    if (found === undefined) return 'an unknown owner';
    if (found.kind === 'before') return `what was there ${found.label}`;
    return found.cell === null ? found.label : `${found.cell} ${found.label}`;
  }

  /** Blocks are coloured by line, also while the picture is coloured by something that cuts across lines. */
  #bands(): readonly Band[] {
    const session = this.#session;
    if (session.colorBy === 'line' || session.colorBy === 'cell') return session.banding.bands;
    this.#byLine ??= makeBanding(session.source.recording, session.document.header, 'line').bands;
    return this.#byLine;
  }

  #colourOf(group: number | null): string {
    const colours = this.#colours as Colours;
    if (group === null) return colours.unknown;
    let colour = this.#ofGroup.get(group);
    if (colour === undefined) {
      const band = this.#bands().find(candidate => candidate.groups.includes(group));
      colour = band === undefined ? colours.other : toneColour(band.tone, colours);
      this.#ofGroup.set(group, colour);
    }
    return colour;
  }
}
