/**
 * The view document: what Python ships and every view draws (widget, HTML report). Version 1.
 *
 * Container, before gzip: `u32` little-endian header length; header as UTF-8 JSON; zero bytes up to a multiple of 8;
 * the array section. `header.arrays[name]` gives dtype, byte offset from the start of the array section (a multiple of
 * 8) and element count; all numbers little-endian. An array that is described below as u4 or u2 may come narrower where
 * its values fit. `gpumem_magic/report/document.py` writes it.
 *
 * Units: bytes, and Unix microseconds (`…Us`). Array times are microseconds relative to the device's `startUs`.
 * `null` means unknown; the reason stands in `missing` under the same name.
 */

import type { SegmentMoments } from './segments/document';
import type { WhatIf } from './whatif/document';

export const FORMAT = 'gpumem-view';
export const VERSION = 1;

export type DType = 'u1' | 'u2' | 'u4' | 'i4' | 'f8';

export interface ArrayRef {
  dtype: DType;
  offset: number;
  length: number;
}

export interface Header {
  format: typeof FORMAT;
  version: number;
  /** Version of the package that wrote the document. */
  package: string;
  /** "In [7]", the label, or a file name. */
  title: string;
  /** The one sentence that a tired person can act on. */
  sentence: string;
  createdUs: number;
  origin: 'cell' | 'statement' | 'block' | 'file';
  outcome: 'ok' | 'error' | 'out of memory' | 'interrupted' | null;
  /** "Type: message" of the cell's own exception. */
  error: string | null;
  cell: { executionCount: number | null; label: string | null; runs: number } | null;
  notes: { level: 'info' | 'warning'; text: string }[];
  /** What a reader of the file learns beyond numbers, e.g. "Contains 4 lines of source and 12 file paths." */
  discloses: string;
  strings: string[];
  /** [index of file in strings, line (0: unknown), index of function name in strings] */
  frames: [number, number, number][];
  /** Indices into `frames`, innermost first; `stacks[0]` is empty: no stack recorded. */
  stacks: number[][];
  devices: Device[];
  arrays: Record<string, ArrayRef>;
  /** The measured runs of a notebook's cells that lie one behind the other in here; empty for one recording. */
  cells?: CellSpan[];
  /** Two recordings in one document: `devices` are those of A, then those of B. */
  compare?: Compare | null;
}

export interface CellSpan {
  /** What `Group.cell` of its lines says. */
  title: string;
  executionCount: number | null;
  /** The cell's id in the notebook, where the front end sent it. */
  cellId: string | null;
  startUs: number;
  endUs: number;
  /** The first line of the run's own report. */
  sentence: string;
}

/** What changed from A to B, aligned by the code that allocated; the device that changed most comes first. */
export interface Compare {
  titles: [string, string];
  sentences: [string, string];
  devices: CompareDevice[];
}

export interface CompareDevice {
  key: string;
  /** Indices into `devices`; null where that recording did not use it. */
  a: number | null;
  b: number | null;
  /** The largest change of the peak first. Bytes at each one's peak, and at its end. */
  rows: CompareRow[];
}

export interface CompareRow {
  /** The owner's groups among those of each device. */
  a: number[];
  b: number[];
  bytesA: number;
  bytesB: number;
  endA: number;
  endB: number;
}

export interface Device {
  /** torch's notation, "cuda:0", "cpu". Array names of device i begin with `d<i>.`. */
  key: string;
  name: string | null;
  kind: 'cuda' | 'xpu' | 'cpu' | 'host';
  /** Whose bytes are drawn where it is not the allocator's: all that processes hold, sampled from outside. */
  whose?: 'process';
  total: number | null;
  /** The most that this process may reserve: memory fraction, or the device's total. */
  limit: number | null;
  events: number;
  startUs: number;
  endUs: number;
  headline: Headline;
  missing: Record<string, string>;
  groups: Group[];
  /** Who was alive at the allocated peak and at the end; each adds up exactly to the headline's number. */
  peak: Row[];
  end: Row[];
  /** Who holds what was allocated here and stayed, an owner's largest first; absent or empty where nobody looked. */
  held?: Held[];
  /** What grew with each iteration of a loop, and what stayed for another reason; absent where there is neither. */
  growth?: Growth | null;
  markers: Marker[];
  regions: { name: string; startUs: number | null; endUs: number | null }[];
  /** Further curves over the same axis: `d<i>.lane<k>.t` (f8) and `.v` (f8). */
  lanes: Lane[];
  timeline: Timeline;
  /** What memory was for; null or absent where nobody looked. */
  categories?: Categories | null;
  /** Addresses are known, so that a kernel can send the map of segments at any moment. */
  mapped?: boolean;
  /** The moments whose map a file carries. */
  segments?: SegmentMoments | null;
  /** Why other settings cannot be replayed; null when they can. */
  notReplayed?: string | null;
  /** What other settings would have done, where a file carries it. */
  whatIf?: WhatIf | null;
}

/**
 * What memory was for, seen by storage, or inferred from phase, line and size.
 *
 * Arrays of device i, per lifetime: `d<i>.category` u1, whose low seven bits are an index into `kinds` and whose high
 * bit says "inferred"; `d<i>.module` u2, an index into `moduleNames`.
 */
export interface Categories {
  /** Stable names in the order of the bands, "parameter" lowest; `names` are what to print. */
  kinds: string[];
  names: string[];
  /** Largest first; each adds up exactly to the headline's number. */
  peak: CategoryRow[];
  end: CategoryRow[];
  /** What belongs to a module, at the peak, largest first. */
  modules: ModuleRow[];
  /** Paths, "model.layers[3]"; the first is empty: no module. */
  moduleNames: string[];
  /** What backward allocated, by the group of the line whose forward it belongs to, at the peak; all inferred. */
  backward: Row[];
  /** Why module paths are missing. */
  reason: string | null;
}

export interface CategoryRow {
  category: number;
  bytes: number;
  blocks: number;
  /** The part of `bytes` that was not seen by storage. */
  inferred: number;
}

export interface ModuleRow {
  module: number;
  bytes: number;
  blocks: number;
  inferred: number;
  /** [category, bytes], largest first. */
  byCategory: [number, number][];
}

export interface Headline {
  allocatedBefore: number | null;
  allocatedPeak: number | null;
  peakUs: number | null;
  allocatedAfter: number | null;
  /** Allocated in the cell and alive at its end. */
  stayed: number | null;
  /** There before the cell and freed in it. */
  freed: number | null;
  reservedBefore: number | null;
  reservedPeak: number | null;
  reservedAfter: number | null;
  /** Whole device, by the driver, at the end. */
  deviceUsed: number | null;
  /** This process on the device, by the driver, at the end. */
  processUsed: number | null;
  /** limit − reservedPeak. */
  headroom: number | null;
}

export type GroupKind = 'line' | 'frame' | 'before' | 'unknown' | 'rounding';

/** Whose memory: a band of the picture and a row of the tables. */
export interface Group {
  kind: GroupKind;
  /** "line 4", "train.py:67 forward", "before the cell", "rounding and unsplit remainders". */
  label: string;
  /** The source line itself, or null. */
  source: string | null;
  /** "In [7]" or null. */
  cell: string | null;
  file: string | null;
  line: number | null;
  function: string | null;
  /** Why it is unknown, for kind 'unknown'. */
  reason: string | null;
  /** Palette slot; stable for a line across reports of the same cell. */
  color: number;
}

export interface Row {
  group: number;
  bytes: number;
  blocks: number;
}

/** What one Python path keeps of what stayed: `path` reaches the largest of its blocks. */
export interface Held {
  /** Index into `groups`. */
  group: number;
  path: string;
  /** "variable", "autograd graph", "reference cycle", … */
  kind: string;
  bytes: number;
  blocks: number;
}

export interface Growth {
  /** Most iterations that any loop ran; 0 when no repetition was found. */
  iterations: number;
  /** Verdicts, the largest first. */
  leaks: Leak[];
  /** Real, but too small to matter, or meant. */
  small: Leak[];
  once: { what: string; sentence: string; bytes: number; line: Place }[];
}

export interface Place {
  label: string;
  source: string | null;
  cell: string | null;
  line: number | null;
}

export interface LeakLine extends Place {
  bytesPerIteration: number;
  bytes: number;
  blocks: number;
}

export interface Leak {
  kind: 'kept' | 'regrown' | 'reruns';
  sentence: string;
  /** The way out; empty or absent where none is known. */
  remedy?: string;
  /** What all iterations left, and the median of one. */
  bytes: number;
  bytesPerIteration: number;
  iterations: number;
  /** In how many of them something stayed. */
  grown: number;
  /** How many iterations lie between two that left something; null: without any order. */
  every: number | null;
  loop: Place | null;
  lines: LeakLine[];
  keepers: { path: string; root: string; kind: string; bytes: number; graphNodes: number; line: Place | null }[];
  /** Bytes alive at the end that each iteration left (its size in each, of what was regrown), `leftPer` of them a value. */
  left: number[];
  leftPer: number;
}

export interface Marker {
  timeUs: number;
  kind: 'oom' | 'retry' | 'segment_free' | 'overflow' | 'exception';
  text: string;
}

export interface Lane {
  name: 'reserved' | 'device used' | 'process used' | 'host used' | 'pinned host';
  /** 'step' holds its value until the next point; 'sample' was measured at points in time. */
  shape: 'step' | 'sample';
}

/**
 * Allocations as lifetimes over a list of changes (an allocation's beginning or end), in time order.
 *
 * Arrays of device i:
 * - `d<i>.t` u4[changes]: µs since the previous change (the first: since startUs; a gap over 2^32−1 is split by
 *   changes that belong to no lifetime).
 * - `d<i>.start` u4[lifetimes − preexisting]: change at which it begins, as difference to the previous one's.
 * - `d<i>.span` u4[lifetimes]: number of changes from its beginning (from change −1 for pre-existing ones) to its
 *   end; 0: alive at the end.
 * - `d<i>.bytes` u4[lifetimes] and `d<i>.requested` u4[lifetimes]: index into `d<i>.sizes` f8[…].
 * - `d<i>.group` u2[lifetimes]: index into `groups`.
 * - `d<i>.stack` u4[lifetimes]: index into `header.stacks`.
 * - `d<i>.stream` u1[lifetimes]: index into `streams`.
 * - `d<i>.addr` u4[lifetimes], where addresses are known: index into the table `d<i>.addrs` u4[…] of addresses in units
 *   of 512 bytes, each as difference to the one before; index 0: unknown. With it the segments over the recording:
 *   `d<i>.seg.base`, `.size`, `.from`, `.to` f8[…] (µs; −1: before the recording, still there) and `.pool` u1[…]: index
 *   into `pools`.
 *
 * The first `preexisting` lifetimes were alive before the first change. A lifetime may stand for `many` blocks that
 * live and die together (memory from before the cell, folded by owner).
 *
 * When not everything fits the size limit, the largest lifetimes (bytes × duration) are kept singly and the others
 * are summed into `rest`: `d<i>.rest.t` f8[bins + 1] edges, `d<i>.rest.group` u2[k], `d<i>.rest.value` f8[k × bins]
 * (value at the end of each bin, group-major). A group may have several rows, told apart by `d<i>.rest.category` u1[k],
 * `.module` u2[k], `.stream` u1[k] (as those of lifetimes), `.size` u1[k] (0: over 1 GiB, 100 MiB, 10 MiB, 1 MiB,
 * 64 KiB, 5: up to that) and `.lifetime` u1[k] (0: there throughout, 1: made here and stayed, 2: there before and freed
 * here, 3: over 1 s, 0.1 s, 10 ms, 1 ms, 7: up to that); the greatest value of the type says that it is not known, an
 * array that lacks the same of all. `d<i>.total.min` / `.max` f8[bins] are the exact envelope of *all*
 * allocated bytes in each bin, so that totals stay exact at every level of detail. A bin edge lies on the peak.
 */
export interface Timeline {
  changes: number;
  lifetimes: number;
  preexisting: number;
  streams: number[];
  /** Names of pools: "large blocks, default stream". */
  pools?: string[];
  rest: { bins: number; lifetimes: number; bytes: number } | null;
}

/** Front end → kernel over the widget's comm: ask for every lifetime of a range. */
export interface DetailRequest {
  kind: 'detail';
  id: number;
  device: number;
  startUs: number;
  endUs: number;
}

/** Kernel → front end; the one buffer is a container whose only device covers the range asked for. */
export interface DetailReply {
  kind: 'detail';
  id: number;
  error: string | null;
}
