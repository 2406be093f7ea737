/** The page of a comparison: two pictures on one scale, and the table of what changed. */

import type { ViewDocument } from '../decode';
import type { Compare, Header } from '../document';
import { type Colours, toneColour } from '../draw/palette';
import { reachOf } from '../draw/picture';
import { formatBytes } from '../format';
import type { Action } from '../input/keys';
import type { Page } from '../page';
import { Session } from '../session';
import { type DetailChannel, DetailLoader } from '../ui/detail';
import { bdi, button, h, replace, toggle } from '../ui/dom';
import { withCode } from '../ui/header';
import { helpSheet } from '../ui/help';
import { LINE_HELP, stroke } from '../ui/legend';
import { PictureView } from '../ui/picture';
import { copyText, savePictures } from '../ui/save';
import { coloursOf } from '../ui/theme';
import type { Sides } from './model';
import { CompareTable } from './table';

interface Half {
  session: Session;
  picture: PictureView;
  ends: (() => void)[];
}

export class ComparePage implements Page {
  readonly #root: HTMLElement;
  readonly #document: ViewDocument;
  readonly #compare: Compare;
  readonly #channel: DetailChannel | undefined;
  readonly #devices = h('div');
  readonly #toolbar = h('div', { class: 'toolbar', role: 'toolbar', 'aria-label': 'Pictures' });
  readonly #pictures = h('div', { class: 'pair' });
  readonly #legend = h('ul', { class: 'legend', 'aria-label': 'Legend' });
  readonly #tables = h('div');
  readonly #foot = h('footer', { class: 'foot' });
  #halves: Half[] = [];
  #table: CompareTable | null = null;
  #device = 0;
  #sheet: HTMLElement | null = null;
  #log = false;

  constructor(root: HTMLElement, document: ViewDocument, compare: Compare, channel: DetailChannel | undefined) {
    this.#root = root;
    this.#document = document;
    this.#compare = compare;
    this.#channel = channel;
    const { header } = document;
    replace(root, head(header), this.#devices, this.#toolbar, this.#pictures, this.#legend, this.#tables, this.#foot);
    this.#showDevice(0);
  }

  dispose(): void {
    for (const half of this.#halves) for (const end of half.ends) end();
    this.#halves = [];
  }

  hasFocus(): boolean {
    return this.#halves.some(({ picture }) => picture.hasFocus());
  }

  focus(): void {
    this.#halves[0]?.picture.focus();
  }

  setTheme(dark: boolean, onPaper: boolean): void {
    const colours = coloursOf(this.#root, dark);
    for (const { picture } of this.#halves) picture.setColours(colours, onPaper);
    this.#table?.setColours(colours);
    this.#showLegend(colours);
  }

  perform(action: Action): void {
    const focused = this.#halves.find(({ picture }) => picture.hasFocus()) ?? this.#halves[0];
    if (focused?.picture.perform(action) === true) return;
    switch (action) {
      case 'axis':
        this.#setAxis(focused?.session.axisKind === 'time' ? 'event' : 'time');
        break;
      case 'log':
        this.#setLog(!this.#log);
        break;
      case 'static':
        for (const { session } of this.#halves) session.setHideStatic(!session.hideStatic);
        break;
      case 'help':
        this.#toggleHelp();
        break;
      case 'escape':
        if (this.#sheet !== null) this.#toggleHelp();
        else
          for (const { session } of this.#halves) {
            session.setRange(null);
            session.setHere(null);
          }
        break;
      default:
    }
  }

  #colours(): Colours {
    return coloursOf(this.#root, this.#root.dataset.theme === 'dark');
  }

  #setAxis(kind: 'time' | 'event'): void {
    for (const { session } of this.#halves) session.setAxis(kind);
    this.#showToolbar();
  }

  #setLog(log: boolean): void {
    this.#log = log;
    for (const { session } of this.#halves) session.setLog(log);
    this.#showToolbar();
  }

  #toggleHelp(): void {
    if (this.#sheet !== null) {
      this.#sheet.remove();
      this.#sheet = null;
      this.#halves[0]?.picture.focus();
      return;
    }
    this.#sheet = helpSheet(() => this.#toggleHelp());
    this.#root.append(this.#sheet);
    this.#sheet.focus({ preventScroll: true });
  }

  #showDevice(index: number): void {
    this.dispose();
    this.#device = index;
    const device = this.#compare.devices[index];
    replace(this.#devices, this.#deviceTabs());
    if (device === undefined) {
      replace(this.#pictures, h('p', { class: 'nothing' }, 'Neither recording used a device.'));
      return;
    }
    const colours = this.#colours();
    const sides: Sides = { a: null, b: null };
    const parts = (['a', 'b'] as const).map((side, nth) => {
      const at = device[side];
      const name = side.toUpperCase();
      const title = this.#compare.titles[nth] as string;
      if (at === null) return section(name, title, null, h('p', { class: 'nothing' }, `did not use ${device.key}`));
      const half = this.#half(at, colours);
      sides[side] = half.session;
      this.#halves.push(half);
      return section(name, title, half.session, half.picture.element);
    });
    const floor = (): number => {
      const stack = Math.max(...this.#halves.map(({ session }) => session.mostInView()));
      return Math.max(...this.#halves.map(({ picture }) => reachOf(picture.scene(1, 0), stack).most));
    };
    const rows = Math.max(0, ...this.#halves.map(({ session }) => session.regionRows));
    for (const { session, picture } of this.#halves) {
      session.floor = floor;
      // One scale reads across only where both plots begin and end at the same height.
      session.regionRows = rows;
      picture.makeRoom();
    }
    replace(this.#pictures, ...parts);
    this.#table = new CompareTable(device, sides, colours);
    replace(this.#tables, this.#table.element);
    this.#showToolbar();
    this.#showLegend(colours);
    for (const { picture } of this.#halves) picture.draw();
    this.#problem(null);
  }

  #half(device: number, colours: Colours): Half {
    const session = new Session(this.#document, device);
    if (this.#log) session.setLog(true);
    const picture = new PictureView(session, colours);
    const ends = [() => picture.dispose()];
    const loader =
      this.#channel === undefined ? null : new DetailLoader(session, this.#channel, text => this.#problem(text));
    if (loader !== null) ends.push(() => loader.dispose());
    ends.push(
      session.subscribe(change => {
        if (change === 'selection') {
          picture.redrawOverlay();
          this.#table?.follow();
        } else if (change === 'viewport') {
          // The scale is shared, so the other one follows.
          for (const half of this.#halves) half.picture.redrawBase();
          loader?.consider();
        } else if (change === 'emphasis') picture.redrawBase();
        else picture.redraw();
      })
    );
    return { session, picture, ends };
  }

  #problem(text: string | null): void {
    const { header } = this.#document;
    replace(
      this.#foot,
      text === null ? null : h('span', { role: 'status' }, text),
      h('span', {}, `gpumem_magic ${header.package}`)
    );
  }

  #deviceTabs(): HTMLElement | null {
    const { devices } = this.#compare;
    if (devices.length < 2) return null;
    const tabs = devices.map((device, k) =>
      button(device.key, () => this.#showDevice(k), { role: 'tab', 'aria-selected': String(k === this.#device) })
    );
    return h('div', { class: 'devices', role: 'tablist', 'aria-label': 'Devices' }, ...tabs);
  }

  #showToolbar(): void {
    const time = this.#halves.every(({ session }) => session.axisKind === 'time');
    const axis = h(
      'select',
      { 'aria-label': 'Axis' },
      h('option', { value: 'time', selected: time }, 'time'),
      h('option', { value: 'event', selected: !time }, 'per change')
    );
    axis.addEventListener('change', () => this.#setAxis(axis.value === 'event' ? 'event' : 'time'));
    replace(
      this.#toolbar,
      h('label', {}, 'axis', axis),
      toggle('log', this.#log, on => this.#setLog(on), { title: 'Logarithmic bytes (L): shows small ones' }),
      h('span', { class: 'muted', style: 'font-size:11px' }, 'both on one scale'),
      h('span', { class: 'gap' }),
      button('copy the table', () => void copyText(this.#table?.text ?? '', this.#root)),
      button('save as PNG', () =>
        savePictures(
          this.#halves.map(({ picture }) => picture),
          this.#document.header.title
        )
      ),
      button('?', () => this.perform('help'), { 'aria-label': 'Keys and gestures', title: 'Keys and gestures (?)' })
    );
  }

  /** One legend for both: equal owners have equal colours. */
  #showLegend(colours: Colours): void {
    const seen = new Map<string, { label: string; detail: string | null; colour: string }>();
    for (const { session } of [...this.#halves].reverse()) {
      for (const band of [...session.banding.bands].reverse()) {
        const colour = toneColour(band.tone, colours);
        const key = band.tone.kind === 'slot' ? colour : `${band.tone.kind} ${band.label}`;
        if (band.tone.kind === 'other') continue;
        if (!seen.has(key)) seen.set(key, { label: band.label, detail: band.detail, colour });
      }
    }
    const more = this.#halves.some(({ session }) =>
      session.banding.bands.some(
        band => band.tone.kind === 'other' && band.groups.some(g => session.group(g).kind !== 'rounding')
      )
    );
    const entries = [...seen.values(), ...(more ? [{ label: 'others', detail: null, colour: colours.other }] : [])];
    const lines = this.#lines(colours);
    replace(
      this.#legend,
      ...entries.map(({ label, detail, colour }) => {
        const swatch = h('span', { class: 'swatch', 'aria-hidden': 'true' });
        swatch.style.background = colour;
        const text = h('span', { class: 'text' }, bdi(label), detail === null ? null : bdi(` ${detail}`, 'code'));
        return h('li', { class: 'entry' }, swatch, text);
      }),
      ...lines
    );
  }

  /** Each line hides and comes back in both pictures. */
  #lines(colours: Colours): HTMLElement[] {
    const names = new Set(this.#halves.flatMap(({ session }) => session.lines.map(line => line.name)));
    return [...names].map((name, k) => {
      const sessions = this.#halves.map(({ session }) => session);
      const shown = !sessions.some(session => session.hiddenLines.has(name));
      const element = button(
        '',
        () => {
          for (const session of sessions) session.toggleLine(name, false);
          this.#showLegend(this.#colours());
        },
        { 'aria-pressed': String(shown), title: `${LINE_HELP[name]}. Click: hide or show in both.` }
      );
      element.append(stroke(name, colours), h('span', { class: 'text' }, name));
      return h('li', { class: k === 0 ? 'apart' : null }, element);
    });
  }
}

/** More than these would push the pictures off the screen. */
const NOTES_SHOWN = 3;

function head(header: Header): HTMLElement {
  const list = (notes: Header['notes']): HTMLElement | null =>
    notes.length === 0
      ? null
      : h(
          'ul',
          { class: 'notes' },
          ...notes.map(note => h('li', { class: note.level }, h('bdi', { dir: 'auto' }, ...withCode(note.text))))
        );
  const warnings = header.notes.filter(note => note.level === 'warning');
  const others = header.notes.filter(note => note.level !== 'warning');
  const folded = header.notes.length > NOTES_SHOWN && others.length > 1;
  return h(
    'header',
    {},
    h('p', { class: 'sentence', dir: 'auto' }, ...withCode(header.sentence)),
    list(folded ? warnings : header.notes),
    folded
      ? h('details', { class: 'notes' }, h('summary', {}, `${others.length} notes of A and B`), list(others))
      : null
  );
}

function section(name: string, title: string, session: Session | null, content: HTMLElement): HTMLElement {
  const n = session?.source.recording.device.headline;
  const facts = [
    ['peak', n?.allocatedPeak],
    ['after', n?.allocatedAfter],
    ['reserved', n?.reservedPeak]
  ] as const;
  const text = facts.flatMap(([what, value]) => (value == null ? [] : [`${what} ${formatBytes(value)}`])).join(' · ');
  return h(
    'section',
    { 'aria-label': `${name}: ${title}` },
    h('h4', {}, h('b', {}, `${name} `), bdi(title), h('span', { class: 'muted' }, text === '' ? '' : `  ${text}`)),
    content
  );
}
