/** Which band of the picture each allocation belongs to: by line, cell, size, lifetime, stream or stack. */

import type { Group, Header } from '../document';
import { formatBytes } from '../format';
import { ALIVE, type Recording, type Rest, type RestKey, UNKNOWN } from './steps';
import { type Sweep, sweep } from './sweep';

/** Band number of what is not shown. */
export const HIDDEN = 255;
/** More colours than this cannot be told apart; the rest shares one band and keeps its rows in the tables. */
export const MOST_BANDS = 10;

export type ColorBy = 'line' | 'cell' | 'category' | 'module' | 'size' | 'lifetime' | 'stream' | 'stack';

export type Tone =
  | { kind: 'slot'; slot: number }
  /** A place on an ordered scale, 0 to 1. */
  | { kind: 'ramp'; at: number }
  | { kind: 'before'; nth: number }
  | { kind: 'unknown' }
  | { kind: 'other' };

export interface Band {
  key: string;
  label: string;
  /** What stands in small print beside the label: a line of source. */
  detail: string | null;
  /** Why its owner is unknown. */
  reason?: string | null;
  tone: Tone;
  /** The groups inside, for highlighting from a table; empty when bands cut across groups. */
  groups: number[];
}

export interface Banding {
  by: ColorBy;
  /** From the bottom of the stack to its top. */
  bands: Band[];
  /** Band of each lifetime, or HIDDEN. */
  ofLifetime: Uint8Array;
  /** Band of each group of `rest`, or HIDDEN. */
  ofRest: Uint8Array;
  /** What was found on the way, while nothing is left out. */
  swept?: { sweep: Sweep; bandOfClass: Uint8Array } | undefined;
}

export interface GroupShape {
  /** The most that the group held at once. */
  peak: number;
  /** Its average over time, as a share of its peak: 1 for memory that never changes. */
  steadiness: number;
}

/** The modes that tell this recording's allocations apart. */
export function usefulModes(recording: Recording): ColorBy[] {
  const modes: ColorBy[] = ['line'];
  if (new Set(recording.device.groups.map(group => group.cell)).size > 2) modes.push('cell');
  const { categories } = recording.device;
  if (categories != null && recording.lifetimes.category !== null) modes.push('category');
  if (categories != null && categories.moduleNames.length > 1 && recording.lifetimes.module !== null)
    modes.push('module');
  if (recording.lifetimes.count > 0) modes.push('size', 'lifetime');
  if (recording.device.timeline.streams.length > 1) modes.push('stream');
  if (recording.lifetimes.stack.some(stack => stack !== 0)) modes.push('stack');
  return modes;
}

/**
 * Bands of a recording. `smallFirst` stacks them from the smallest up, for the logarithmic scale: there only what lies
 * at the bottom gets room for its small numbers.
 */
export function makeBanding(recording: Recording, header: Header, by: ColorBy, smallFirst = false): Banding {
  const classes = classify(recording, header, by);
  const { lifetimes, rest } = recording;
  const swept = sweep(recording, classes.bands.length, classes.of, classes.ofRest);
  const shape = Array.from(swept.peak, (most, k) => ({
    peak: most,
    steadiness: most > 0 ? (swept.area[k] as number) / (most * recording.spanUs) : 0
  }));
  const peakOf = (k: number): number => (shape[k] as GroupShape).peak;
  const order = smallFirst
    ? classes.bands.map((_, k) => k).sort((a, b) => peakOf(a) - peakOf(b) || a - b)
    : classes.ordered
      ? classes.bands.map((_, k) => k)
      : stackOrder(
          classes.bands.map(band => band.tone.kind),
          shape
        );
  const kept = order.filter(k => (shape[k] as GroupShape).peak > 0);
  const coloured = kept.filter(k => !isGrey(classes.bands[k] as Band));
  // Two recordings that are compared agree on their colours.
  const fixed = header.compare != null && by === 'line';
  const shown = new Set(
    coloured.length <= MOST_BANDS && !fixed
      ? kept
      : fixed
        ? kept.filter(k => hasColour(classes.bands[k] as Band))
        : [
            ...kept.filter(k => isGrey(classes.bands[k] as Band)),
            ...[...coloured]
              .sort((a, b) => (shape[b] as GroupShape).peak - (shape[a] as GroupShape).peak)
              .slice(0, MOST_BANDS - 1)
          ]
  );
  const bands: Band[] = [];
  const number = new Uint8Array(classes.bands.length).fill(HIDDEN);
  for (const k of kept) {
    if (!shown.has(k)) continue;
    number[k] = bands.length;
    bands.push(classes.bands[k] as Band);
  }
  const others = kept.filter(k => !shown.has(k));
  if (others.length > 0) {
    for (const k of others) number[k] = bands.length;
    bands.push({
      key: 'other',
      label: `${others.length} other ${classes.plural}`,
      detail: null,
      tone: { kind: 'other' },
      groups: others.flatMap(k => (classes.bands[k] as Band).groups)
    });
  }
  if (!fixed) spreadSlots(bands);
  return {
    by,
    bands,
    ofLifetime: translate(classes.of, lifetimes.count, number),
    ofRest: translate(classes.ofRest, rest?.groups.length ?? 0, number),
    swept: { sweep: swept, bandOfClass: number }
  };
}

/** The bands of a whole recording for a part of it whose classes have the same names. */
export function bandsOfPart(part: Recording, header: Header, whole: Banding): Banding {
  const classes = classify(part, header, whole.by);
  const other = whole.bands.findIndex(band => band.key === 'other');
  const number = classes.bands.map(band => {
    const own = whole.bands.findIndex(each => each.key === band.key);
    return own >= 0 ? own : other >= 0 ? other : HIDDEN;
  });
  return {
    ...whole,
    swept: undefined,
    ofLifetime: translate(classes.of, part.lifetimes.count, number),
    ofRest: translate(classes.ofRest, part.rest?.groups.length ?? 0, number)
  };
}

/** The same bands with some of them, or some allocations, left out of picture and totals. */
export function filterBanding(
  banding: Banding,
  hiddenBands: ReadonlySet<string>,
  keep: ((lifetime: number) => boolean) | null,
  keepRest: ((nth: number) => boolean) | null
): Banding {
  const hidden = banding.bands.map(band => hiddenBands.has(band.key));
  const show = (band: number): boolean => band !== HIDDEN && hidden[band] !== true;
  return {
    ...banding,
    swept: undefined,
    ofLifetime: banding.ofLifetime.map((band, i) => (show(band) && (keep === null || keep(i)) ? band : HIDDEN)),
    ofRest: banding.ofRest.map((band, k) => (show(band) && (keepRest === null || keepRest(k)) ? band : HIDDEN))
  };
}

/** A loop, not `Uint8Array.from`: that one makes a value object for each of a million entries. */
function translate(of: ArrayLike<number>, count: number, table: ArrayLike<number>): Uint8Array {
  const out = new Uint8Array(count);
  for (let i = 0; i < count; i++) out[i] = table[of[i] as number] as number;
  return out;
}

interface Classes {
  bands: Band[];
  of: ArrayLike<number>;
  ofRest: ArrayLike<number>;
  plural: string;
  /** The classes have an order of their own, which the stack keeps. */
  ordered: boolean;
}

function classify(recording: Recording, header: Header, by: ColorBy): Classes {
  const { lifetimes, rest, device } = recording;
  const restGroups = rest?.groups ?? new Uint16Array();
  switch (by) {
    case 'line': {
      let before = 0;
      const bands = device.groups.map((group, k) => groupBand(group, k, group.kind === 'before' ? before++ : 0));
      return { bands, of: lifetimes.group, ofRest: restGroups, plural: 'lines', ordered: false };
    }
    case 'cell': {
      const names = [...new Set(device.groups.map(cellName))];
      const grey = new Set(device.groups.filter(group => group.kind === 'before' && group.cell === null).map(cellName));
      const of = device.groups.map(group => names.indexOf(cellName(group)));
      return {
        bands: names.map((name, k) => ({
          key: `cell ${name}`,
          label: name,
          detail: null,
          tone: grey.has(name) ? { kind: 'before', nth: 0 } : { kind: 'slot', slot: k },
          groups: of.flatMap((cell, group) => (cell === k ? [group] : []))
        })),
        of: lifetimes.group.map(group => of[group] as number),
        ofRest: restGroups.map(group => of[group] as number),
        plural: 'cells',
        ordered: false
      };
    }
    case 'category': {
      const bands = (device.categories?.kinds ?? []).map(
        (kind, k): Band => ({
          key: `category ${kind}`,
          label: device.categories?.names[k] ?? kind,
          detail: null,
          tone: categoryTone(kind, k),
          groups: []
        })
      );
      const of = (lifetimes.category ?? new Uint8Array(lifetimes.count)).map(category => category & 0x7f);
      return { ...withSummed(bands, of, rest, 'category'), plural: 'categories', ordered: true };
    }
    case 'module': {
      const bands = (device.categories?.moduleNames ?? []).map(
        (name, k): Band => ({
          key: `module ${k}`,
          label: name === '' ? 'no module' : name,
          detail: null,
          tone: name === '' ? { kind: 'unknown' } : { kind: 'slot', slot: k - 1 },
          groups: []
        })
      );
      const of = lifetimes.module ?? new Uint16Array(lifetimes.count);
      return { ...withSummed(bands, of, rest, 'module'), plural: 'modules', ordered: false };
    }
    case 'stream': {
      const streams = device.timeline.streams;
      const bands = streams.map(
        (stream, k): Band => ({
          key: `stream ${k}`,
          label: stream === 0 ? 'default stream' : `stream ${stream}`,
          detail: null,
          tone: { kind: 'slot', slot: k },
          groups: []
        })
      );
      return { ...withSummed(bands, lifetimes.stream, rest, 'stream'), plural: 'streams', ordered: false };
    }
    case 'stack': {
      const bands = header.stacks.map((frames, k): Band => {
        const first = frames[0] === undefined ? undefined : header.frames[frames[0]];
        const [file, line, name] = first ?? [-1, 0, -1];
        const where = header.strings[file] ?? '';
        return {
          key: `stack ${k}`,
          label:
            k === 0 ? 'no stack recorded' : `${header.strings[name] ?? '?'} ${where.split(/[\\/]/).at(-1)}:${line}`,
          detail: null,
          tone: k === 0 ? { kind: 'unknown' } : { kind: 'slot', slot: k - 1 },
          groups: []
        };
      });
      return { ...withSummed(bands, lifetimes.stack, rest, null), plural: 'stacks', ordered: false };
    }
    case 'size': {
      const { labels, of } = bySize(recording);
      return { ...withSummed(ramp('size', labels), of, rest, 'size'), plural: 'sizes', ordered: true };
    }
    case 'lifetime': {
      const { labels, of } = byDuration(recording);
      return { ...withSummed(ramp('lifetime', labels), of, rest, 'lifetime'), plural: 'lifetimes', ordered: true };
    }
  }
}

/** The sums of small allocations join the bands that they belong to; what is not known of them has a band of its own. */
function withSummed(
  bands: Band[],
  of: ArrayLike<number>,
  rest: Rest | null,
  key: RestKey | null
): { bands: Band[]; of: ArrayLike<number>; ofRest: ArrayLike<number> } {
  if (rest === null) return { bands, of, ofRest: [] };
  const known = key === null ? null : rest.by[key];
  const ofRest = Uint16Array.from(rest.groups, (_, k) => Math.min(known?.[k] ?? UNKNOWN, bands.length));
  if (!ofRest.includes(bands.length)) return { bands, of, ofRest };
  const summed: Band = { key: 'summed', label: 'summed small ones', detail: null, tone: { kind: 'other' }, groups: [] };
  return { bands: [...bands, summed], of, ofRest };
}

/** A category has the same colour in every report. */
export function categoryTone(kind: string, nth: number): Tone {
  if (kind === 'before') return { kind: 'before', nth: 0 };
  if (kind === 'unknown') return { kind: 'unknown' };
  return kind === 'rounding' ? { kind: 'other' } : { kind: 'slot', slot: nth };
}

function cellName(group: Group): string {
  return group.cell ?? (group.kind === 'before' ? group.label : 'outside cells');
}

function groupBand(group: Group, index: number, nthBefore: number): Band {
  const tone: Tone =
    group.kind === 'before'
      ? { kind: 'before', nth: nthBefore }
      : group.kind === 'unknown'
        ? { kind: 'unknown' }
        : { kind: 'slot', slot: group.color };
  return {
    key: `group ${index}`,
    label: group.label,
    detail: group.source,
    reason: group.reason,
    tone,
    groups: [index]
  };
}

function ramp(name: string, labels: string[]): Band[] {
  return labels.map((label, k) => ({
    key: `${name} ${k}`,
    label,
    detail: null,
    tone: { kind: 'ramp', at: labels.length < 2 ? 0.5 : k / (labels.length - 1) },
    groups: []
  }));
}

const SIZE_LIMITS = [64 * 1024, 1 << 20, 10 << 20, 100 << 20, 1 << 30];

/** 0 above the last limit, `limits.length` up to the first. */
function classBelow(limits: readonly number[], value: number): number {
  let nth = limits.length;
  for (const limit of limits) if (value > limit) nth -= 1;
  return nth;
}

function bySize(recording: Recording): { labels: string[]; of: Uint8Array } {
  const { bytes } = recording.lifetimes;
  const of = new Uint8Array(bytes.length);
  // The largest come first: at the bottom of the stack they are the calm ground that the small ones stand on.
  for (let i = 0; i < bytes.length; i++) of[i] = classBelow(SIZE_LIMITS, bytes[i] as number);
  const bounds = [...SIZE_LIMITS.map(limit => formatBytes(limit))];
  const labels = [
    `over ${bounds.at(-1)}`,
    ...bounds.map((limit, k) => (k === 0 ? `up to ${limit}` : `${bounds[k - 1]} to ${limit}`)).reverse()
  ];
  return { labels, of };
}

const DURATIONS_US = [1e3, 1e4, 1e5, 1e6];

function byDuration(recording: Recording): { labels: string[]; of: Uint8Array } {
  const { lifetimes, steps } = recording;
  const of = new Uint8Array(lifetimes.count);
  for (let i = 0; i < lifetimes.count; i++) {
    const end = lifetimes.end[i] as number;
    const old = i < lifetimes.preexisting;
    if (end === ALIVE || old) {
      of[i] = end !== ALIVE ? 2 : old ? 0 : 1;
      continue;
    }
    const us = (steps.time[end] as number) - (steps.time[lifetimes.start[i] as number] as number);
    of[i] = 3 + classBelow(DURATIONS_US, us);
  }
  const labels = [
    'there throughout',
    'made here, stayed',
    'there before, freed here',
    'over 1 s',
    '0.1 to 1 s',
    '10 to 100 ms',
    '1 to 10 ms',
    'up to 1 ms'
  ];
  return { labels, of };
}

/** What was there before at the bottom, then from steady to restless: quiet bands keep the others' base line level. */
function stackOrder(kinds: Tone['kind'][], shape: GroupShape[]): number[] {
  const rank = (k: number): number => (kinds[k] === 'before' ? 0 : 1);
  return kinds
    .map((_, k) => k)
    .sort(
      (a, b) => rank(a) - rank(b) || (shape[b] as GroupShape).steadiness - (shape[a] as GroupShape).steadiness || a - b
    );
}

function isGrey(band: Band): boolean {
  return band.tone.kind !== 'slot' && band.tone.kind !== 'ramp';
}

function hasColour({ tone }: Band): boolean {
  return tone.kind !== 'slot' || tone.slot < MOST_BANDS;
}

/** No two bands share a colour: a slot that is taken moves on to the next free one. */
function spreadSlots(bands: Band[]): void {
  const taken = new Set<number>();
  for (const band of bands) {
    if (band.tone.kind !== 'slot') continue;
    let slot = band.tone.slot % MOST_BANDS;
    while (taken.has(slot) && taken.size < MOST_BANDS) slot = (slot + 1) % MOST_BANDS;
    taken.add(slot);
    band.tone = { kind: 'slot', slot };
  }
}
