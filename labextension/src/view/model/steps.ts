/**
 * The allocations of one device as lifetimes over *steps*: every change of allocated bytes, in time order.
 *
 * A step is what the whole view counts in. Most are an allocation's beginning or end; where the document summed small
 * allocations (`rest`), each bin edge adds one step a group. So every total, band and table below comes from the
 * same list, and adds up by construction.
 */

import type { Counts, ViewDocument } from '../decode';
import { DocumentError } from '../decode';
import type { Device } from '../document';

/** `end` of a lifetime that was alive when the recording stopped. */
export const ALIVE = 0xffffffff;

export interface Lifetimes {
  count: number;
  /** The first `preexisting` were alive before the first step. */
  preexisting: number;
  /** Step at which it begins; 0 and without meaning for pre-existing ones. Ascending from `preexisting` on. */
  start: Uint32Array;
  /** Step at which it ends, or ALIVE. */
  end: Uint32Array;
  bytes: Float64Array;
  /** Looked up when first asked for: no picture needs it. */
  readonly requested: Float64Array;
  group: Uint16Array;
  stack: Uint32Array;
  stream: Uint8Array;
  /** Index into the device's `categories.kinds`, the high bit for "inferred", and into `moduleNames`; null: not known. */
  category: Uint8Array | null;
  module: Uint16Array | null;
}

export type RestKey = 'category' | 'module' | 'size' | 'lifetime' | 'stream';

/** Of a row of sums whose category, module, … is not known. */
export const UNKNOWN = 0xffff;

export interface Rest {
  bins: number;
  lifetimes: number;
  bytes: number;
  edges: Float64Array;
  groups: Uint16Array;
  /** What the rows of sums are, besides their groups, where that is known; UNKNOWN where one is not. */
  by: Record<RestKey, Uint16Array | null>;
  /** Group-major: the value of `groups[k]` at the end of bin b is `value[k * bins + b]`. */
  value: Float64Array;
}

export interface Steps {
  count: number;
  /** µs since the device's start. */
  time: Float64Array;
  /** Signed bytes. */
  delta: Float64Array;
  /** The lifetime that begins or ends, or −1 − k for the k-th group of `rest`. */
  owner: Int32Array;
}

export interface Recording {
  device: Device;
  index: number;
  steps: Steps;
  lifetimes: Lifetimes;
  rest: Rest | null;
  /** Length of the recording in µs; at least the last step's time. */
  spanUs: number;
  /** Exact envelope of all allocated bytes per bin of `rest`; null without it. */
  envelope: { min: Float64Array; max: Float64Array } | null;
}

/** Times are Unix microseconds: a recording that begins in 1970 has none. */
export const isTimed = (device: Device): boolean => device.startUs > 0;

/** Read device `index` of a document. `offsetUs` shifts its times, for a document that covers a part of another. */
export function readRecording(document: ViewDocument, index: number, offsetUs = 0): Recording {
  const device = document.header.devices[index];
  if (device === undefined) throw new DocumentError(`The report has no device number ${index}.`);
  const prefix = `d${index}.`;
  const { changes, timeline } = { changes: device.timeline.changes, timeline: device.timeline };
  const changeTime = accumulate(document.counts(`${prefix}t`), offsetUs);
  const lifetimes = readLifetimes(document, prefix, device);
  const rest = timeline.rest === null ? null : readRest(document, prefix, timeline.rest, offsetUs, device);
  const steps =
    (rest === null ? plainSteps(changeTime, changes, lifetimes) : null) ??
    mergeSteps(changeTime, changes, lifetimes, rest);
  const lastUs = steps.count > 0 ? (steps.time[steps.count - 1] as number) : 0;
  return {
    device,
    index,
    steps,
    lifetimes,
    rest,
    spanUs: Math.max(device.endUs - device.startUs + offsetUs, lastUs, 1),
    envelope:
      rest !== null && document.has(`${prefix}total.max`)
        ? { min: document.array(`${prefix}total.min`, 'f8'), max: document.array(`${prefix}total.max`, 'f8') }
        : null
  };
}

function accumulate(differences: Counts, offset: number): Float64Array {
  const times = new Float64Array(differences.length);
  let now = offset;
  for (let i = 0; i < differences.length; i++) {
    now += differences[i] as number;
    times[i] = now;
  }
  return times;
}

/** Decode the difference-coded columns; `start` and `end` still count changes here, not steps. */
function readLifetimes(document: ViewDocument, prefix: string, device: Device): Lifetimes {
  const { lifetimes: count, preexisting, changes } = device.timeline;
  const started = document.counts(`${prefix}start`);
  const span = document.counts(`${prefix}span`);
  const sizes = document.array(`${prefix}sizes`, 'f8');
  const start = new Uint32Array(count);
  const end = new Uint32Array(count);
  let at = 0;
  for (let i = 0; i < count; i++) {
    const old = i < preexisting;
    if (!old) at += started[i - preexisting] as number;
    start[i] = old ? 0 : at;
    const length = span[i] as number;
    end[i] = length === 0 ? ALIVE : (old ? -1 : at) + length;
    if ((!old && at >= changes) || (length !== 0 && (end[i] as number) >= changes)) {
      throw new DocumentError(
        `The report contradicts itself: allocation ${i} of ${device.key} outlives the recording.`
      );
    }
  }
  const group = document.array(`${prefix}group`, 'u2');
  const stack = document.array(`${prefix}stack`, 'u4');
  const stream = document.array(`${prefix}stream`, 'u1');
  for (let i = 0; i < count; i++) {
    if ((group[i] as number) >= device.groups.length || (stack[i] as number) >= document.header.stacks.length) {
      throw new DocumentError(`The report contradicts itself: allocation ${i} of ${device.key} belongs to nobody.`);
    }
  }
  // Checked here, so that a damaged report says so at once.
  checkSizes(sizes, document.counts(`${prefix}requested`), device);
  let requested: Float64Array | null = null;
  return {
    count,
    preexisting,
    start,
    end,
    bytes: lookUp(sizes, document.counts(`${prefix}bytes`), device),
    get requested(): Float64Array {
      requested ??= lookUp(sizes, document.counts(`${prefix}requested`), device);
      return requested;
    },
    group,
    stack,
    stream,
    category: document.has(`${prefix}category`) ? document.array(`${prefix}category`, 'u1') : null,
    module: document.has(`${prefix}module`) ? document.array(`${prefix}module`, 'u2') : null
  };
}

function checkSizes(sizes: Float64Array, index: Counts, device: Device): void {
  for (let i = 0; i < index.length; i++) {
    if ((index[i] as number) >= sizes.length) {
      throw new DocumentError(`The report contradicts itself: allocation ${i} of ${device.key} has no size.`);
    }
  }
}

function lookUp(sizes: Float64Array, index: Counts, device: Device): Float64Array {
  checkSizes(sizes, index, device);
  const values = new Float64Array(index.length);
  for (let i = 0; i < index.length; i++) values[i] = sizes[index[i] as number] as number;
  return values;
}

function readRest(
  document: ViewDocument,
  prefix: string,
  about: { bins: number; lifetimes: number; bytes: number },
  offset: number,
  device: Device
): Rest {
  const edges = document.array(`${prefix}rest.t`, 'f8');
  const groups = document.array(`${prefix}rest.group`, 'u2');
  const value = document.array(`${prefix}rest.value`, 'f8');
  if (edges.length !== about.bins + 1 || value.length !== about.bins * groups.length) {
    throw new DocumentError(
      `The report contradicts itself: the sums of small allocations of ${device.key} do not fit.`
    );
  }
  for (const group of groups) {
    if (group >= device.groups.length) {
      throw new DocumentError(`The report contradicts itself: a sum of ${device.key} belongs to nobody.`);
    }
  }
  const key = (name: RestKey): Uint16Array | null => restKey(document, `${prefix}rest.${name}`, groups.length, device);
  const by = {
    category: key('category'),
    module: key('module'),
    size: key('size'),
    lifetime: key('lifetime'),
    stream: key('stream')
  };
  return { ...about, edges: offset === 0 ? edges : edges.map(t => t + offset), groups, by, value };
}

function restKey(document: ViewDocument, name: string, rows: number, device: Device): Uint16Array | null {
  if (!document.has(name)) return null;
  const written = document.counts(name);
  if (written.length !== rows) {
    throw new DocumentError(
      `The report contradicts itself: the sums of small allocations of ${device.key} do not fit.`
    );
  }
  const none = name.endsWith('.module') ? 0xffff : 0xff;
  return Uint16Array.from(written, value => (value === none ? UNKNOWN : value));
}

/**
 * Where each change is one allocation's beginning or end, which it nearly always is, changes are steps already: no
 * sorting, and `start` and `end` stay as they are. null where it is not so. A quarter of a first paint's work.
 */
function plainSteps(changeTime: Float64Array, changes: number, lives: Lifetimes): Steps | null {
  const { start, end, bytes, preexisting } = lives;
  const delta = new Float64Array(changes);
  const owner = new Int32Array(changes).fill(-1);
  let known = 0;
  for (let i = 0; i < lives.count; i++) {
    const size = bytes[i] as number;
    const from = start[i] as number;
    const to = end[i] as number;
    if (i >= preexisting) {
      if (owner[from] !== -1) return null;
      owner[from] = i;
      delta[from] = size;
      known += 1;
    }
    if (to === ALIVE) continue;
    if (owner[to] !== -1) return null;
    owner[to] = i;
    delta[to] = -size;
    known += 1;
  }
  return known === changes ? { count: changes, time: changeTime, delta, owner } : null;
}

/** Merge the ends and beginnings of lifetimes with the edges of `rest`; rewrites `start` and `end` to count steps. */
function mergeSteps(changeTime: Float64Array, changes: number, lives: Lifetimes, rest: Rest | null): Steps {
  const byEnd = orderByEnd(lives, changes);
  const edges = restSteps(rest);
  const capacity = lives.count - lives.preexisting + byEnd.length + edges.owner.length;
  const time = new Float64Array(capacity);
  const delta = new Float64Array(capacity);
  const owner = new Int32Array(capacity);
  const { start, end, bytes } = lives;
  let count = 0;
  let nextStart = lives.preexisting;
  let nextEnd = 0;
  let nextEdge = 0;
  const flushEdges = (until: number): void => {
    while (nextEdge < edges.owner.length && (edges.time[nextEdge] as number) < until) {
      time[count] = edges.time[nextEdge] as number;
      delta[count] = edges.delta[nextEdge] as number;
      owner[count++] = edges.owner[nextEdge++] as number;
    }
  };
  for (let change = 0; change < changes; change++) {
    const now = changeTime[change] as number;
    if (nextEdge < edges.owner.length) flushEdges(now);
    while (nextEnd < byEnd.length && end[byEnd[nextEnd] as number] === change) {
      const id = byEnd[nextEnd++] as number;
      time[count] = now;
      delta[count] = -(bytes[id] as number);
      owner[count] = id;
      end[id] = count++;
    }
    while (nextStart < lives.count && start[nextStart] === change) {
      time[count] = now;
      delta[count] = bytes[nextStart] as number;
      owner[count] = nextStart;
      start[nextStart++] = count++;
    }
  }
  flushEdges(Number.POSITIVE_INFINITY);
  if (nextStart < lives.count || nextEnd < byEnd.length) {
    throw new DocumentError('The report contradicts itself: an allocation ends before it begins.');
  }
  return { count, time, delta, owner };
}

/** Lifetimes that end, in the order of their ends (counting sort). */
function orderByEnd(lives: Lifetimes, changes: number): Uint32Array {
  const place = new Uint32Array(changes + 1);
  let ending = 0;
  for (let i = 0; i < lives.count; i++) {
    const end = lives.end[i] as number;
    if (end === ALIVE) continue;
    place[end + 1] = (place[end + 1] as number) + 1;
    ending += 1;
  }
  for (let i = 1; i <= changes; i++) place[i] = (place[i] as number) + (place[i - 1] as number);
  const order = new Uint32Array(ending);
  for (let i = 0; i < lives.count; i++) {
    const end = lives.end[i] as number;
    if (end === ALIVE) continue;
    const at = place[end] as number;
    order[at] = i;
    place[end] = at + 1;
  }
  return order;
}

/**
 * The sums of small allocations as steps: at each bin's end, by how much each group changed. A curve that was only
 * sampled (no lifetimes) has no value before its first bin's end either; that one stands for the bin, so that the
 * picture does not begin with a hole.
 */
function restSteps(rest: Rest | null): { time: number[]; delta: number[]; owner: number[] } {
  const out = { time: [] as number[], delta: [] as number[], owner: [] as number[] };
  if (rest === null) return out;
  for (let bin = 0; bin < rest.bins; bin++) {
    for (let k = 0; k < rest.groups.length; k++) {
      const now = rest.value[k * rest.bins + bin] as number;
      const before = bin === 0 ? 0 : (rest.value[k * rest.bins + bin - 1] as number);
      if (now === before) continue;
      out.time.push(rest.edges[bin === 0 && rest.lifetimes === 0 ? 0 : bin + 1] as number);
      out.delta.push(now - before);
      out.owner.push(-1 - k);
    }
  }
  return out;
}
