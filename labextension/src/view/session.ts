/**
 * What the reader is looking at: device, zoom, colouring, filters, selection. The views draw it and change it through
 * its methods; each change says what it touched, so that a move of the mouse repaints no table.
 */

import type { AskChannel } from './ask';
import { type Axis, eventAxis, timeAxis } from './axis/axis';
import { type Fold, findFolds } from './axis/folds';
import { Viewport } from './axis/viewport';
import type { ViewDocument } from './decode';
import type { CellSpan, Group } from './document';
import type { PlacedRegion } from './draw/frame';
import type { Line } from './draw/lines';
import type { LineName } from './draw/palette';
import { placeRegions } from './draw/regions';
import { type Banding, bandsOfPart, type ColorBy, filterBanding, HIDDEN, makeBanding } from './model/bands';
import { Curves } from './model/curves';
import { linesOf } from './model/lanes';
import { LiveIndex } from './model/live';
import { type Place, Places } from './model/places';
import { type Matches, search } from './model/search';
import { ALIVE, isTimed, type Recording, readRecording } from './model/steps';

export type Change = 'device' | 'bands' | 'viewport' | 'selection' | 'emphasis' | 'search' | 'lines';

/** A recording with its curves: the document's own, or the detail of a stretch that the kernel sent. */
export interface Source {
  document: ViewDocument;
  recording: Recording;
  live: LiveIndex;
  curves: Curves;
  axis: Axis;
  /** Read when first asked for. */
  places: Places | null | undefined;
  /** What a detail covers; null for a whole recording. */
  stretch: { fromUs: number; toUs: number } | null;
}

/** A moment that was clicked, and the allocation there. */
export interface Here {
  source: Source;
  moment: number;
  us: number;
  lifetime: number | null;
}

export interface Range {
  fromU: number;
  toU: number;
}

export class Session {
  readonly document: ViewDocument;
  source!: Source;
  viewport!: Viewport;
  lines: Line[] = [];
  regions: PlacedRegion[] = [];
  regionRows = 0;
  axisKind: 'time' | 'event' = 'time';
  fold = true;
  colorBy: ColorBy = 'line';
  log = false;
  hideStatic = false;
  onlyMatches = false;
  readonly hiddenBands = new Set<string>();
  readonly hiddenLines = new Set<LineName>();
  readonly reach = new Set<LineName>();
  matches: Matches | null = null;
  matchAt = -1;
  here: Here | null = null;
  range: Range | null = null;
  /** Groups that a table row points at. */
  emphasis: ReadonlySet<number> | null = null;
  deviceIndex = -1;
  /** A kernel that answers questions, while there is one. */
  ask: AskChannel | null = null;
  /** Bytes that the scale reaches where another picture beside this one shares it; 0: its own reach. */
  floor: () => number = () => 0;
  #latest: 'here' | 'range' = 'here';
  #folds: Fold[] = [];
  #banding!: Banding;
  #detail: Source | null = null;
  readonly #listeners = new Set<(change: Change) => void>();

  constructor(document: ViewDocument, device = 0) {
    this.document = document;
    // Over a whole notebook the first question is which cell.
    if (this.cells.length > 1) this.colorBy = 'cell';
    this.showDevice(device);
  }

  /** Returns what ends the subscription. */
  subscribe(listener: (change: Change) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  showDevice(index: number): void {
    if (index === this.deviceIndex) return;
    const recording = readRecording(this.document, index);
    this.deviceIndex = index;
    this.#folds = findFolds(recording.steps.time, recording.spanUs);
    this.#detail = null;
    this.hiddenBands.clear();
    this.here = null;
    this.range = null;
    this.emphasis = null;
    this.lines = linesOf(this.document, recording);
    const placed = placeRegions(recording.device, recording.spanUs, this.cells);
    this.regions = placed.regions;
    this.regionRows = placed.rows;
    this.#banding = makeBanding(recording, this.document.header, this.colorBy, this.log);
    // Without times (torch before 2.3) there is only an order, and all of it would stand in one column.
    if (!isTimed(recording.device)) this.axisKind = 'event';
    const axis = this.#makeAxis(recording);
    this.source = {
      document: this.document,
      recording,
      live: new LiveIndex(recording),
      curves: new Curves(recording, this.#banding),
      axis,
      places: undefined,
      stretch: null
    };
    this.viewport = new Viewport(axis);
    this.matches = this.matches === null ? null : search(recording, this.document.header, this.matches.query);
    if (this.#isFiltered()) this.source.curves = new Curves(recording, this.#filtered());
    this.#emit('device');
  }

  /** Measured runs that lie one behind the other in here. */
  get cells(): readonly CellSpan[] {
    return this.document.header.cells ?? [];
  }

  /** Where a cell lies along the axis. */
  rangeOf(cell: CellSpan): Range {
    const { axis, recording } = this.source;
    const { startUs } = recording.device;
    return { fromU: axis.uOfUs(cell.startUs - startUs), toU: axis.uOfUs(cell.endUs - startUs) };
  }

  /** The cell whose stretch is selected. */
  get selectedCell(): CellSpan | null {
    const { range } = this;
    if (range === null) return null;
    return (
      this.cells.find(cell => {
        const own = this.rangeOf(cell);
        return own.fromU === range.fromU && own.toU === range.toU;
      }) ?? null
    );
  }

  get folds(): readonly Fold[] {
    return this.#folds;
  }

  /** All bands of the colouring, hidden ones too. */
  get banding(): Banding {
    return this.#banding;
  }

  group(index: number): Group {
    return this.source.recording.device.groups[index] as Group;
  }

  /** Nothing is left out of the picture, so that its totals are those of the device. */
  get unfiltered(): boolean {
    return !this.#isFiltered();
  }

  /** The kernel's detail where it covers what is on screen, else the document itself. */
  active(viewport = this.viewport): Source {
    const detail = this.#detail;
    if (detail === null || viewport.axis.kind !== 'time' || this.#isFiltered()) return this.source;
    const fromUs = viewport.axis.usOfU(viewport.fromU);
    const toUs = viewport.axis.usOfU(viewport.toU);
    const inside = detail.stretch !== null && fromUs >= detail.stretch.fromUs && toUs <= detail.stretch.toUs;
    return inside ? detail : this.source;
  }

  /** The most that was allocated in what is on screen. */
  mostInView(): number {
    return this.mostIn(this.viewport.fromU, this.viewport.toU);
  }

  mostIn(fromU: number, toU: number): number {
    const { curves, axis } = this.source;
    const from = axis.momentBefore(fromU);
    return curves.total[curves.extremes.greatest(from, Math.max(from, axis.momentAt(toU)))] as number;
  }

  setViewport(viewport: Viewport): void {
    if (viewport.equals(this.viewport)) return;
    this.viewport = viewport;
    this.#emit('viewport');
  }

  setAxis(kind: 'time' | 'event', fold = this.fold): void {
    if (kind === this.axisKind && fold === this.fold) return;
    const fromUs = this.viewport.axis.usOfU(this.viewport.fromU);
    const toUs = this.viewport.axis.usOfU(this.viewport.toU);
    const whole = this.viewport.isWhole;
    this.axisKind = kind;
    this.fold = fold;
    const axis = this.#makeAxis(this.source.recording);
    this.source.axis = axis;
    this.range = null;
    this.viewport = whole ? new Viewport(axis) : new Viewport(axis, axis.uOfUs(fromUs), axis.uOfUs(toUs));
    this.#emit('viewport');
    this.#emit('selection');
  }

  setColorBy(by: ColorBy): void {
    this.colorBy = by;
    this.hiddenBands.clear();
    this.emphasis = null;
    this.#banding = makeBanding(this.source.recording, this.document.header, by, this.log);
    this.#rebuild();
  }

  setLog(log: boolean): void {
    this.log = log;
    this.#banding = makeBanding(this.source.recording, this.document.header, this.colorBy, log);
    this.#rebuild();
  }

  setHideStatic(hide: boolean): void {
    this.hideStatic = hide;
    this.#rebuild();
  }

  toggleBand(key: string): void {
    if (!this.hiddenBands.delete(key)) this.hiddenBands.add(key);
    this.#rebuild();
  }

  /** Show one band alone, or all again. */
  soloBand(key: string): void {
    const others = this.#banding.bands.filter(band => band.key !== key);
    const alone = !this.hiddenBands.has(key) && others.every(band => this.hiddenBands.has(band.key));
    this.hiddenBands.clear();
    if (!alone) for (const band of others) this.hiddenBands.add(band.key);
    this.#rebuild();
  }

  /** A line is shown, shown with the scale reaching up to it, or hidden, in turn; the middle only where it matters. */
  toggleLine(name: LineName, outOfReach: boolean): void {
    if (this.hiddenLines.delete(name)) this.reach.delete(name);
    else if (outOfReach && !this.reach.has(name)) this.reach.add(name);
    else this.hiddenLines.add(name);
    this.#emit('lines');
  }

  setQuery(query: string): void {
    this.matches = query === '' ? null : search(this.source.recording, this.document.header, query);
    this.matchAt = -1;
    if (this.onlyMatches) this.#rebuild();
    this.#emit('search');
  }

  setOnlyMatches(only: boolean): void {
    this.onlyMatches = only;
    this.#rebuild();
    this.#emit('search');
  }

  /** Go to the next (1) or previous (−1) match; returns its lifetime. */
  nextMatch(direction: 1 | -1): number | null {
    const order = this.matches?.order;
    if (order === undefined || order.length === 0) return null;
    const n = order.length;
    this.matchAt = this.matchAt < 0 ? (direction === 1 ? 0 : n - 1) : (this.matchAt + direction + n) % n;
    const lifetime = order[this.matchAt] as number;
    this.select(lifetime, this.source);
    this.showLifetime(lifetime);
    this.#emit('search');
    return lifetime;
  }

  /** Where an allocation lay; null where addresses are not known. */
  placeOf(lifetime: number, source: Source): Place | null {
    if (source.places === undefined) source.places = Places.of(source.document, source.recording);
    return source.places?.of(lifetime) ?? null;
  }

  /** What was chosen last, which the keys that zoom to it and let go of it mean. */
  get latest(): 'here' | 'range' | null {
    if (this.here === null || this.range === null)
      return this.here !== null ? 'here' : this.range !== null ? 'range' : null;
    return this.#latest;
  }

  setHere(here: Here | null): void {
    this.here = here;
    this.#latest = 'here';
    this.#emit('selection');
  }

  /** Select an allocation at the moment it begins. */
  select(lifetime: number, source: Source): void {
    const { lifetimes, steps } = source.recording;
    const old = lifetime < lifetimes.preexisting;
    const moment = old ? 0 : (lifetimes.start[lifetime] as number) + 1;
    this.setHere({ source, moment, us: old ? 0 : (steps.time[moment - 1] as number), lifetime });
  }

  /** Bring an allocation's whole life into view, unless it is there already and not tiny. */
  showLifetime(lifetime: number, force = false, source = this.source): void {
    const [from, to] = this.lifeOf(lifetime, source);
    const { fromU, toU, spanU } = this.viewport;
    const inside = from >= fromU && to <= toU && to - from > spanU / 50;
    if (inside && !force) return;
    this.setViewport(this.viewport.around(from, to));
  }

  /** Where an allocation begins and ends along the axis. */
  lifeOf(lifetime: number, source: Source): [number, number] {
    const { lifetimes } = source.recording;
    const end = lifetimes.end[lifetime] as number;
    const from = lifetime < lifetimes.preexisting ? 0 : source.axis.uOfStep(lifetimes.start[lifetime] as number);
    return [from, end === ALIVE ? source.axis.length : source.axis.uOfStep(end)];
  }

  setRange(range: Range | null): void {
    this.range = range;
    this.#latest = 'range';
    this.#emit('selection');
  }

  setEmphasis(groups: ReadonlySet<number> | null): void {
    if (groups === this.emphasis) return;
    this.emphasis = groups;
    this.#emit('emphasis');
  }

  /** Bands that hold any of the stressed groups; null when none is stressed or no band knows groups. */
  emphasisBands(curves: Curves): ReadonlySet<number> | null {
    const groups = this.emphasis;
    if (groups === null) return null;
    const bands = new Set(
      curves.banding.bands.flatMap((band, k) => (band.groups.some(group => groups.has(group)) ? [k] : []))
    );
    return bands.size === 0 ? null : bands;
  }

  /** Take a detail document for a stretch of this device. */
  addDetail(document: ViewDocument): void {
    const device = document.header.devices[0];
    const own = this.source.recording.device;
    if (device === undefined || device.key !== own.key) return;
    const fromUs = device.startUs - own.startUs;
    const recording = readRecording(document, 0, fromUs);
    const banding = this.#bandsOfDetail(recording);
    if (banding === null) return;
    const axis = timeAxis(recording.steps.time, this.source.recording.spanUs, this.fold ? this.#folds : []);
    this.#detail = {
      document,
      recording,
      live: new LiveIndex(recording),
      curves: new Curves(recording, banding),
      axis,
      places: undefined,
      stretch: { fromUs, toUs: device.endUs - own.startUs }
    };
    this.#emit('bands');
  }

  /** The detail's groups, found again among the document's own, so that colours stay. */
  #bandsOfDetail(recording: Recording): Banding | null {
    const { colorBy } = this;
    if (colorBy === 'category' || colorBy === 'module' || colorBy === 'size' || colorBy === 'stream')
      return bandsOfPart(recording, this.document.header, this.#banding);
    // What lasts longer than the stretch, and a stack's number, are not the same in the detail.
    if (colorBy !== 'line' && colorBy !== 'cell') return null;
    const bandOfGroup = new Map<string, number>();
    const identity = (group: Group): string =>
      [group.kind, group.label, group.file, group.line, group.function].join('\0');
    for (const [k, band] of this.#banding.bands.entries()) {
      for (const group of band.groups) bandOfGroup.set(identity(this.group(group)), k);
    }
    const ofGroup = recording.device.groups.map(group => bandOfGroup.get(identity(group)) ?? HIDDEN);
    return {
      ...this.#banding,
      swept: undefined,
      ofLifetime: Uint8Array.from(recording.lifetimes.group, group => ofGroup[group] as number),
      ofRest: Uint8Array.from(recording.rest?.groups ?? [], group => ofGroup[group] as number)
    };
  }

  #makeAxis(recording: Recording): Axis {
    const { steps, spanUs } = recording;
    return this.axisKind === 'event'
      ? eventAxis(steps.time, spanUs)
      : timeAxis(steps.time, spanUs, this.fold ? this.#folds : []);
  }

  #isFiltered(): boolean {
    return this.hiddenBands.size > 0 || this.hideStatic || (this.onlyMatches && this.matches !== null);
  }

  #filtered(): Banding {
    const { lifetimes, rest } = this.source.recording;
    const matches = this.onlyMatches ? this.matches : null;
    const keep =
      matches === null && !this.hideStatic
        ? null
        : (i: number): boolean =>
            (matches === null || matches.lifetime[i] === 1) &&
            !(this.hideStatic && i < lifetimes.preexisting && lifetimes.end[i] === ALIVE);
    const keepRest = matches === null ? null : (k: number): boolean => matches.group[rest?.groups[k] as number] === 1;
    return filterBanding(this.#banding, this.hiddenBands, keep, keepRest);
  }

  #rebuild(): void {
    const { recording } = this.source;
    this.source.curves = new Curves(recording, this.#isFiltered() ? this.#filtered() : this.#banding);
    this.#detail = null;
    this.#emit('bands');
  }

  #emit(change: Change): void {
    for (const listener of this.#listeners) listener(change);
  }
}
