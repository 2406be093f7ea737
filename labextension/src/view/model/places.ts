/** Where allocations lay: who was at an address before and after, and in which segment. */

import type { ViewDocument } from '../decode';
import { DocumentError } from '../decode';
import { ALIVE, type Recording } from './steps';

const UNIT = 512;

export interface Segment {
  base: number;
  size: number;
  /** µs since the recording's start; null: there before it, or still there at its end. */
  fromUs: number | null;
  toUs: number | null;
  pool: string;
}

export interface Place {
  address: number;
  segment: Segment | null;
  /** The last one that overlapped these addresses and ended before, and the first that began after. */
  before: number | null;
  after: number | null;
}

export class Places {
  readonly #recording: Recording;
  readonly #addresses: Float64Array;
  readonly #segments: Segment[];

  private constructor(recording: Recording, addresses: Float64Array, segments: Segment[]) {
    this.#recording = recording;
    this.#addresses = addresses;
    this.#segments = segments;
  }

  /** null where the document holds no addresses. `documentDevice` is the device's index in that document. */
  static of(document: ViewDocument, recording: Recording): Places | null {
    const prefix = `d${recording.index}.`;
    if (!document.has(`${prefix}addr`)) return null;
    const index = document.array(`${prefix}addr`, 'u4');
    const table = document.array(`${prefix}addrs`, 'u4');
    if (index.length !== recording.lifetimes.count) {
      throw new DocumentError('The report contradicts itself: it has not one address an allocation.');
    }
    const known = new Float64Array(table.length);
    for (let i = 1; i < table.length; i++) known[i] = (known[i - 1] as number) + (table[i] as number) * UNIT;
    const addresses = new Float64Array(index.length);
    for (let i = 0; i < index.length; i++) addresses[i] = known[index[i] as number] ?? 0;
    return new Places(recording, addresses, readSegments(document, prefix, recording));
  }

  /** null where an allocation's address is not known: it stands for many, or was there all the time. */
  of(lifetime: number): Place | null {
    const address = this.#addresses[lifetime] as number;
    if (address === 0) return null;
    const { lifetimes, steps } = this.#recording;
    const { start, end, bytes, preexisting, count } = lifetimes;
    const top = address + (bytes[lifetime] as number);
    const from = lifetime < preexisting ? -1 : (start[lifetime] as number);
    const to = end[lifetime] as number;
    let before: number | null = null;
    let after: number | null = null;
    for (let i = 0; i < count; i++) {
      const low = this.#addresses[i] as number;
      if (i === lifetime || low === 0 || low >= top || low + (bytes[i] as number) <= address) continue;
      const born = i < preexisting ? -1 : (start[i] as number);
      const gone = end[i] as number;
      // Lifetimes come in the order of their beginnings.
      if (gone !== ALIVE && gone < from && (before === null || gone > (end[before] as number))) before = i;
      else if (to !== ALIVE && born >= to && after === null) after = i;
    }
    const us = from < 0 ? 0 : (steps.time[from] as number);
    return { address, segment: this.#segmentAt(address, us), before, after };
  }

  #segmentAt(address: number, us: number): Segment | null {
    return (
      this.#segments.find(
        ({ base, size, fromUs, toUs }) =>
          base <= address && address < base + size && (fromUs === null || fromUs <= us) && (toUs === null || us <= toUs)
      ) ?? null
    );
  }
}

function readSegments(document: ViewDocument, prefix: string, recording: Recording): Segment[] {
  if (!document.has(`${prefix}seg.base`)) return [];
  const column = (name: string): Float64Array => document.array(`${prefix}seg.${name}`, 'f8');
  const [base, size, from, to] = [column('base'), column('size'), column('from'), column('to')];
  const pool = document.array(`${prefix}seg.pool`, 'u1');
  const names = recording.device.timeline.pools ?? [];
  return Array.from(base, (address, k) => ({
    base: address,
    size: size[k] as number,
    fromUs: (from[k] as number) < 0 ? null : (from[k] as number),
    toUs: (to[k] as number) < 0 ? null : (to[k] as number),
    pool: names[pool[k] as number] ?? ''
  }));
}
