/**
 * The report on a page: everything between a document's bytes and the reader. Knows neither Jupyter nor the HTML
 * report; `widget.ts` and `report.ts` hand it an element.
 *
 * The rooms: `model/` numbers (no page, no pixels), `axis/` where a moment stands, `draw/` pixels from numbers,
 * `input/` gestures to meanings, `ui/` the page's parts, `session.ts` what is being looked at.
 */

import type { AskChannel } from './ask';
import { CellsTab } from './cells/tab';
import { ComparePage } from './compare/page';
import { DocumentError, decode, type ViewDocument } from './decode';
import { formatBytes, formatCount } from './format';
import { type Action, actionOf } from './input/keys';
import { LeaksTab } from './leaks/tab';
import type { Page } from './page';
import { PurposeTab } from './purpose/tab';
import { SEGMENTS_STYLE } from './segments/style';
import { SegmentsTab } from './segments/tab';
import { Session } from './session';
import { type DetailChannel, DetailLoader } from './ui/detail';
import { FOCUS_LOST, h, replace } from './ui/dom';
import { Exports } from './ui/exports';
import { deviceTabs, HeaderView, missingList } from './ui/header';
import { helpSheet } from './ui/help';
import { Legend } from './ui/legend';
import { PictureView } from './ui/picture';
import { copyText, savePng, saveSvg } from './ui/save';
import { STYLE } from './ui/style';
import { Tables } from './ui/tables';
import { coloursOf, isDark, watchTheme } from './ui/theme';
import { Toolbar } from './ui/toolbar';
import { WHATIF_STYLE } from './whatif/style';
import { WhatIfTab } from './whatif/tab';

export interface ViewOptions {
  /** A kernel that can send more. */
  detail?: DetailChannel | undefined;
  /** A kernel that answers the tabs' questions. */
  ask?: AskChannel | undefined;
  /** The page around says itself what it discloses. */
  standalone?: boolean;
}

const NARROW_PX = 560;

export class View {
  readonly #host: HTMLElement;
  readonly #root: HTMLElement;
  readonly #options: ViewOptions;
  #parts: Page | null = null;
  #generation = 0;
  #printing = false;
  readonly #ends: (() => void)[] = [];

  constructor(host: HTMLElement, options: ViewOptions = {}) {
    this.#host = host;
    this.#options = options;
    const shadow = host.shadowRoot ?? host.attachShadow({ mode: 'open' });
    this.#root = h('div', { class: 'gm' });
    replace(shadow as unknown as Element, h('style', {}, STYLE + WHATIF_STYLE + SEGMENTS_STYLE), this.#root);
    this.#theme();
    this.#ends.push(watchTheme(() => this.#theme()));
    if (typeof ResizeObserver !== 'undefined') {
      let shown = host.isConnected;
      const observer = new ResizeObserver(() => {
        this.#root.classList.toggle('narrow', host.clientWidth < NARROW_PX);
        // A notebook hands over an element that is not in the page yet: only now it has surroundings with a theme.
        if (!shown && host.isConnected) this.#theme();
        shown = host.isConnected;
      });
      observer.observe(host);
      this.#ends.push(() => observer.disconnect());
    }
    this.#root.addEventListener('keydown', event => this.#key(event));
    this.#root.addEventListener(FOCUS_LOST, () => this.#parts?.focus());
    // Paper is white.
    const paper = (on: boolean) => (): void => {
      this.#printing = on;
      this.#theme();
    };
    for (const [name, act] of [
      ['beforeprint', paper(true)],
      ['afterprint', paper(false)]
    ] as const) {
      window.addEventListener(name, act);
      this.#ends.push(() => window.removeEventListener(name, act));
    }
  }

  /** Show a container; what was shown before goes. A failure becomes a sentence in its place, and false. */
  async show(bytes: Uint8Array): Promise<boolean> {
    this.#generation += 1;
    const generation = this.#generation;
    try {
      const document = await decode(bytes);
      if (generation === this.#generation) this.#build(document);
      return true;
    } catch (error) {
      if (generation === this.#generation) this.#fail(error);
      return false;
    }
  }

  /** The page changed its theme by other means than the attributes that are watched. */
  refreshTheme(): void {
    this.#theme();
  }

  dispose(): void {
    this.#generation += 1;
    this.#parts?.dispose();
    this.#parts = null;
    for (const end of this.#ends) end();
    this.#root.remove();
  }

  #fail(error: unknown): void {
    this.#parts?.dispose();
    this.#parts = null;
    const text = error instanceof DocumentError ? error.message : `The report cannot be drawn: ${String(error)}`;
    replace(this.#root, h('div', { class: 'failure', role: 'alert' }, text));
  }

  #build(document: ViewDocument): void {
    this.#parts?.dispose();
    this.#parts = null;
    const { header } = document;
    if (header.devices.length === 0) {
      const view = h('header', {}, h('p', { class: 'sentence', dir: 'auto' }, header.sentence));
      replace(this.#root, view, ...header.notes.map(note => h('p', { class: 'muted' }, note.text)));
      return;
    }
    if (header.compare != null) {
      this.#parts = new ComparePage(this.#root, document, header.compare, this.#options.detail);
      return;
    }
    // What a person looks for is on the device that held the most.
    const most = header.devices.reduce(
      (best, device, k) =>
        device.kind !== 'host' &&
        (device.headline.allocatedPeak ?? 0) > (header.devices[best]?.headline.allocatedPeak ?? 0)
          ? k
          : best,
      0
    );
    this.#parts = new Parts(this.#root, new Session(document, most), this.#options);
  }

  #theme(): void {
    // The variables of the host's theme, read without ours in front of them.
    this.#root.removeAttribute('data-theme');
    const forced = this.#host.dataset.gpumemTheme;
    this.#root.style.background = 'var(--jp-layout-color0, var(--vscode-editor-background, transparent))';
    const dark = !this.#printing && (forced === undefined ? isDark(this.#root) : forced === 'dark');
    this.#root.style.background = '';
    this.#root.dataset.theme = dark ? 'dark' : 'light';
    this.#root.classList.toggle('paper', this.#printing);
    this.#parts?.setTheme(dark, this.#printing);
  }

  #key(event: KeyboardEvent): void {
    const parts = this.#parts;
    if (parts === null || event.defaultPrevented) return;
    const inPicture = parts.hasFocus();
    const target = event.composedPath()[0];
    if (!inPicture && target instanceof HTMLInputElement) return;
    const action = actionOf(event, inPicture);
    if (action === null) return;
    event.preventDefault();
    event.stopPropagation();
    parts.perform(action);
  }
}

/** The parts of one document's report, and how they follow the session. */
class Parts implements Page {
  readonly picture: PictureView;
  readonly #root: HTMLElement;
  readonly #session: Session;
  readonly #header: HeaderView;
  readonly #devices = h('div');
  readonly #toolbar: Toolbar;
  readonly #legend: Legend;
  readonly #segments: SegmentsTab;
  readonly #whatIf: WhatIfTab;
  readonly #tables: Tables;
  readonly #foot = h('footer', { class: 'foot' });
  readonly #detail: DetailLoader | null;
  readonly #exports: Exports;
  readonly #standalone: boolean;
  readonly #unsubscribe: () => void;
  #sheet: HTMLElement | null = null;
  #above = '';

  constructor(root: HTMLElement, session: Session, options: ViewOptions) {
    this.#root = root;
    this.#session = session;
    session.ask = options.ask ?? null;
    this.#standalone = options.standalone ?? false;
    const colours = coloursOf(root, root.dataset.theme === 'dark');
    this.#header = new HeaderView(session.document.header);
    this.#legend = new Legend(session);
    this.#segments = new SegmentsTab(session, options.ask ?? null);
    this.#whatIf = new WhatIfTab(session, options.ask ?? null);
    this.#tables = new Tables(session, colours, [
      new LeaksTab(session),
      new CellsTab(session),
      new PurposeTab(session),
      this.#segments,
      this.#whatIf
    ]);
    this.picture = new PictureView(session, colours);
    this.#exports = new Exports(session, options.ask ?? null, this.#standalone, text => this.#showFoot(text));
    this.#toolbar = new Toolbar(session, {
      perform: action => this.perform(action),
      savePng: () => savePng(this.picture, session),
      saveSvg: () => saveSvg(this.picture, session),
      copyTable: () => void copyText(this.#tables.text, root),
      files: this.#exports.items
    });
    this.#detail =
      options.detail === undefined ? null : new DetailLoader(session, options.detail, text => this.#showFoot(text));
    this.#unsubscribe = session.subscribe(change => this.#follow(change));
    const drawable = session.document.header.devices.some(
      device =>
        device.timeline.changes > 0 ||
        device.timeline.lifetimes > 0 ||
        device.lanes.length > 0 ||
        device.timeline.rest !== null
    );
    replace(
      root,
      this.#header.element,
      this.#devices,
      ...(drawable
        ? [this.#toolbar.element, this.picture.element, this.#legend.element, this.#tables.element]
        : [h('p', { class: 'nothing' }, 'Nothing was allocated or freed, so there is nothing to draw.')]),
      this.#foot
    );
    this.#showAll();
    // At once, not at the next frame: the first paint then has the picture.
    this.picture.draw();
    this.#showLegend();
  }

  dispose(): void {
    this.#unsubscribe();
    this.picture.dispose();
    this.#toolbar.dispose();
    this.#segments.dispose();
    this.#whatIf.dispose();
    this.#detail?.dispose();
    this.#exports.dispose();
  }

  hasFocus(): boolean {
    return this.picture.hasFocus();
  }

  focus(): void {
    this.picture.focus();
  }

  setTheme(dark: boolean, onPaper: boolean): void {
    const colours = coloursOf(this.#root, dark);
    this.picture.setColours(colours, onPaper);
    this.#tables.setColours(colours);
    this.#showLegend();
  }

  perform(action: Action): void {
    if (this.picture.perform(action)) return;
    const session = this.#session;
    switch (action) {
      case 'axis':
        session.setAxis(session.axisKind === 'time' ? 'event' : 'time');
        this.#toolbar.show();
        break;
      case 'log':
        session.setLog(!session.log);
        this.#toolbar.show();
        break;
      case 'static':
        session.setHideStatic(!session.hideStatic);
        this.#toolbar.show();
        break;
      case 'search':
        this.#toolbar.focusSearch();
        break;
      case 'help':
        this.#toggleHelp();
        break;
      case 'escape':
        this.#escape();
        break;
      default:
    }
  }

  #escape(): void {
    const session = this.#session;
    if (this.#sheet !== null) this.#toggleHelp();
    else if (session.latest === 'range') session.setRange(null);
    else if (session.latest === 'here') session.setHere(null);
    else session.setEmphasis(null);
  }

  #toggleHelp(): void {
    if (this.#sheet !== null) {
      this.#sheet.remove();
      this.#sheet = null;
      this.picture.focus();
      return;
    }
    this.#sheet = helpSheet(() => this.#toggleHelp());
    this.#root.append(this.#sheet);
    this.#sheet.focus({ preventScroll: true });
  }

  #follow(change: Parameters<Parameters<Session['subscribe']>[0]>[0]): void {
    switch (change) {
      case 'device':
        this.#showAll();
        this.#tables.reset();
        this.picture.redraw();
        break;
      case 'bands':
        this.picture.redraw();
        this.#showLegend();
        this.#tables.show();
        break;
      case 'viewport':
        this.picture.redrawBase();
        this.#detail?.consider();
        break;
      case 'selection':
        this.picture.redrawOverlay();
        this.#tables.follow();
        break;
      case 'emphasis':
        this.picture.redrawBase();
        break;
      case 'search':
        this.#toolbar.showMatches();
        break;
      case 'lines':
        this.picture.redraw();
        this.#showLegend();
        break;
    }
    if (change === 'viewport' || change === 'lines') requestAnimationFrame(() => this.#showLegendIfMoved());
  }

  #showAll(): void {
    const session = this.#session;
    this.#header.show(session.source.recording.device);
    const tabs = deviceTabs(session.document.header.devices, session.deviceIndex, k => session.showDevice(k));
    replace(this.#devices, tabs);
    this.#toolbar.show();
    this.#showLegend();
    this.#tables.show();
    this.#showFoot(null);
  }

  #showLegend(): void {
    const colours = coloursOf(this.#root, this.#root.dataset.theme === 'dark');
    const above = this.picture.frame?.above ?? [];
    this.#above = above.map(line => line.name).join();
    this.#legend.show(colours, above);
  }

  /** The legend says which lines lie above the picture; a zoom can change that. */
  #showLegendIfMoved(): void {
    const now = (this.picture.frame?.above ?? []).map(line => line.name).join();
    if (now !== this.#above) this.#showLegend();
  }

  #showFoot(problem: string | null): void {
    const { header } = this.#session.document;
    const { rest, device } = this.#session.source.recording;
    const summed =
      rest === null || rest.lifetimes === 0
        ? null
        : `The ${formatCount(rest.lifetimes)} smallest of ${formatCount(rest.lifetimes + device.timeline.lifetimes)} allocations ` +
          `(${formatBytes(rest.bytes)} in all) are drawn as sums by line and kind; totals and the peak are exact.` +
          (this.#detail === null ? '' : ' Zoom in, and the kernel sends them one by one.');
    replace(
      this.#foot,
      problem === null ? null : h('span', { role: 'status' }, problem),
      summed === null ? null : h('span', {}, summed),
      header.discloses === '' || this.#standalone ? null : h('span', {}, header.discloses),
      missingList(device),
      h('span', {}, `gpumem_magic ${header.package}`)
    );
  }
}
