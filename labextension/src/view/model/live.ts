/** Who is alive at a moment, and what happened in a stretch: the numbers behind every table. */

import { ALIVE, type Recording } from './steps';

export interface Sum {
  group: number;
  bytes: number;
  blocks: number;
}

/** A table that adds up: rows by group (requested bytes), and what rounding adds to reach allocated bytes. */
export interface LiveTable {
  rows: Sum[];
  rounding: number;
  allocated: number;
  blocks: number;
  /** Bytes in `rows` that come from sums of small allocations, exact only at the end of a bin. */
  summed: number;
}

/** Lifetimes in blocks of this many share one bound on their ends, so that long dead ones are skipped together. */
const BLOCK = 256;

export class LiveIndex {
  readonly #recording: Recording;
  #lastEnd: Uint32Array | null = null;

  constructor(recording: Recording) {
    this.#recording = recording;
  }

  /** Made at the first question: a picture of the whole asks none. */
  get #bounds(): Uint32Array {
    if (this.#lastEnd !== null) return this.#lastEnd;
    const { count, end } = this.#recording.lifetimes;
    const bounds = new Uint32Array(Math.ceil(count / BLOCK));
    for (let i = 0; i < count; i++) {
      const block = Math.floor(i / BLOCK);
      if ((end[i] as number) > (bounds[block] as number)) bounds[block] = end[i] as number;
    }
    this.#lastEnd = bounds;
    return bounds;
  }

  /** Calls `visit` with each lifetime alive at a moment, oldest first. */
  each(moment: number, visit: (lifetime: number) => void): void {
    const { count, preexisting, start, end } = this.#recording.lifetimes;
    const bounds = this.#bounds;
    for (let block = 0; block * BLOCK < count; block++) {
      const first = block * BLOCK;
      if (first >= preexisting && (start[first] as number) >= moment) return;
      // A lifetime whose end is step e is gone from moment e + 1 on.
      if ((bounds[block] as number) < moment) continue;
      const stop = Math.min(count, first + BLOCK);
      for (let i = first; i < stop; i++) {
        if (i >= preexisting && (start[i] as number) >= moment) return;
        if ((end[i] as number) >= moment) visit(i);
      }
    }
  }

  /** Who is alive at a moment, by group; adds up exactly to the allocated bytes. */
  at(moment: number): LiveTable {
    const { lifetimes, rest, steps, device } = this.#recording;
    const groups = device.groups.length;
    const bytes = new Float64Array(groups);
    const blocks = new Uint32Array(groups);
    let allocated = 0;
    let requested = 0;
    this.each(moment, i => {
      const group = lifetimes.group[i] as number;
      bytes[group] = (bytes[group] as number) + (lifetimes.requested[i] as number);
      blocks[group] = (blocks[group] as number) + 1;
      requested += lifetimes.requested[i] as number;
      allocated += lifetimes.bytes[i] as number;
    });
    let summed = 0;
    if (rest !== null && moment > 0) {
      const bin = binBefore(rest.edges, steps.time[moment - 1] as number);
      for (let k = 0; bin >= 0 && k < rest.groups.length; k++) {
        const value = rest.value[k * rest.bins + bin] as number;
        const group = rest.groups[k] as number;
        bytes[group] = (bytes[group] as number) + value;
        summed += value;
      }
    }
    return {
      rows: rowsOf(bytes, blocks),
      rounding: allocated - requested,
      allocated: allocated + summed,
      blocks: blocks.reduce((sum, n) => sum + n, 0),
      summed
    };
  }
}

/** The last bin that has ended at `time`, or −1. */
function binBefore(edges: Float64Array, time: number): number {
  let low = 0;
  let high = edges.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((edges[middle] as number) <= time) low = middle;
    else high = middle - 1;
  }
  return low - 1;
}

function rowsOf(bytes: Float64Array, blocks: Uint32Array): Sum[] {
  const rows: Sum[] = [];
  for (let group = 0; group < bytes.length; group++) {
    if (bytes[group] !== 0 || blocks[group] !== 0) {
      rows.push({ group, bytes: bytes[group] as number, blocks: blocks[group] as number });
    }
  }
  return rows.sort((a, b) => b.bytes - a.bytes || a.group - b.group);
}

export interface RangeRow {
  group: number;
  allocated: number;
  freed: number;
  /** Allocated in the range and alive at its end. */
  retained: number;
  /** Allocated in the range and freed in it. */
  transient: number;
  blocks: number;
}

export interface RangeTable {
  rows: RangeRow[];
  total: RangeRow;
  /** Change of allocated bytes over the range; equals allocated − freed + `summed`. */
  change: number;
  /** Part of `change` that comes from sums of small allocations, whose comings and goings are not known singly. */
  summed: number;
}

/** Sums over the steps that lead from moment `from` to moment `to`. */
export function sumRange(recording: Recording, from: number, to: number): RangeTable {
  const { steps, lifetimes, device } = recording;
  const blank = (group: number): RangeRow => ({ group, allocated: 0, freed: 0, retained: 0, transient: 0, blocks: 0 });
  const rows = device.groups.map((_, group) => blank(group));
  let summed = 0;
  for (let i = from; i < to; i++) {
    const who = steps.owner[i] as number;
    if (who < 0) {
      summed += steps.delta[i] as number;
      continue;
    }
    const bytes = lifetimes.bytes[who] as number;
    const begins = who >= lifetimes.preexisting && lifetimes.start[who] === i;
    const end = lifetimes.end[who] as number;
    const row = rows[lifetimes.group[who] as number] as RangeRow;
    if (!begins) {
      row.freed += bytes;
      continue;
    }
    row.allocated += bytes;
    row.blocks += 1;
    if (end === ALIVE || end >= to) row.retained += bytes;
    else row.transient += bytes;
  }
  const total = blank(-1);
  for (const row of rows) {
    total.allocated += row.allocated;
    total.freed += row.freed;
    total.retained += row.retained;
    total.transient += row.transient;
    total.blocks += row.blocks;
  }
  return {
    rows: rows
      .filter(row => row.allocated > 0 || row.freed > 0)
      .sort((a, b) => b.allocated + b.freed - a.allocated - a.freed || a.group - b.group),
    total,
    change: total.allocated - total.freed + summed,
    summed
  };
}
