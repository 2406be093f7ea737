/**
 * The map of segments at some moments, as `gpumem_magic/report/segments.py` writes it.
 *
 * Arrays of moment k of device i, `d<i>.m<k>.…`; a kernel's answer holds one moment, as moment 0 of device 0:
 * - by segment, in address order: `extent`, `mapped`, `returnable`, `requested` f8 (bytes; `extent` counts unmapped
 *   holes, `mapped` does not), `address` and `addressHigh` u4 (low and high half), `stream` u1 (index into `streams`),
 *   `flags` u1 (1: small blocks, 2: expandable, 4: private pool), `spans` u4 (how many of the following are its own);
 * - by span, what is not free, in the segments' order: `gap` u4 (free bytes before it) and `size` u4, both in units of
 *   512 bytes, `group` u2 (index into the device's groups; 65535: nobody's), `kind` u1 (0 in use, 1 waiting for
 *   another stream, 2 unmapped).
 */

export const UNIT = 512;
export const NOBODY = 0xffff;

export interface SegmentNumbers {
  reserved: number;
  /** Blocks in use, and those that wait for another stream. */
  active: number;
  requested: number;
  /** active − requested. */
  rounding: number;
  /** reserved − active. */
  free: number;
  /** Of the free bytes, what `empty_cache()` would give back, and what it would not. */
  returnable: number;
  pinned: number;
  largestFree: number;
  segments: number;
  emptySegments: number;
  /** 1 − largestFree / free. */
  scattered: number;
}

export interface SegmentMoment {
  /** Unix microseconds. */
  timeUs: number;
  /** "peak", "end", "out of memory", or "". */
  name: string;
  streams: number[];
  numbers: SegmentNumbers;
}

export interface SegmentMoments {
  moments: SegmentMoment[];
}
