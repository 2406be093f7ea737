/**
 * Where a moment stands horizontally.
 *
 * Four spaces, and every variable says which one it is in:
 * - *Us*: µs since the device's start, the wall clock of the recording;
 * - *step* / *moment*: index into the list of changes (moment m = state after m steps);
 * - *u*: position along the axis, from 0 to `axis.length`. On the time axis µs with idle stretches folded, on the
 *   event axis steps;
 * - *px*: CSS pixels in the picture, from `Viewport`, which maps an interval of u to the picture's width.
 */

import { type Fold, foldedShare } from './folds';

export interface Axis {
  kind: 'time' | 'event';
  length: number;
  folds: Fold[];
  /** Position of a point in time. */
  uOfUs(us: number): number;
  usOfU(u: number): number;
  uOfStep(step: number): number;
  /** Number of steps at positions up to and including u: the moment that holds at u. */
  momentAt(u: number): number;
  /** Number of steps at positions before u. */
  momentBefore(u: number): number;
}

/** Count of `times` that are ≤ `value` (`inclusive`) or < `value`. */
export function countUpTo(times: Float64Array, value: number, inclusive: boolean): number {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    const time = times[middle] as number;
    if (time < value || (inclusive && time === value)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Wall clock with `folds` folded; `findFolds` finds them. */
export function timeAxis(times: Float64Array, spanUs: number, folds: Fold[]): Axis {
  const busy = folds.reduce((rest, f) => rest - (f.toUs - f.fromUs), spanUs);
  const width = busy * foldedShare(folds.length);
  // Piecewise linear: knots in µs and in u.
  const knotUs = [0];
  const knotU = [0];
  for (const f of folds) {
    const before = (knotU.at(-1) as number) + (f.fromUs - (knotUs.at(-1) as number));
    knotUs.push(f.fromUs, f.toUs);
    knotU.push(before, before + width);
  }
  const length = (knotU.at(-1) as number) + (spanUs - (knotUs.at(-1) as number));
  knotUs.push(spanUs);
  knotU.push(length);
  const uOfUs = (us: number): number => interpolate(knotUs, knotU, us);
  const usOfU = (u: number): number => interpolate(knotU, knotUs, u);
  return {
    kind: 'time',
    length,
    folds,
    uOfUs,
    usOfU,
    uOfStep: step => uOfUs(times[step] as number),
    momentAt: u => countUpTo(times, usOfU(u), true),
    momentBefore: u => countUpTo(times, usOfU(u), false)
  };
}

/** Every step has the same width; step i stands at i + ½. */
export function eventAxis(times: Float64Array, spanUs: number): Axis {
  const length = Math.max(times.length, 1);
  return {
    kind: 'event',
    length,
    folds: [],
    uOfUs: us => {
      const after = countUpTo(times, us, true);
      if (us <= 0) return 0;
      return after === times.length && us >= spanUs ? length : after;
    },
    usOfU: u => {
      if (times.length === 0) return 0;
      if (u >= length) return spanUs;
      return times[Math.min(times.length - 1, Math.max(0, Math.floor(u - 0.5)))] as number;
    },
    uOfStep: step => step + 0.5,
    momentAt: u => Math.min(times.length, Math.max(0, Math.floor(u + 0.5))),
    momentBefore: u => Math.min(times.length, Math.max(0, Math.ceil(u - 0.5)))
  };
}

function interpolate(from: number[], to: number[], value: number): number {
  let low = 0;
  let high = from.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if ((from[middle] as number) <= value) low = middle;
    else high = middle;
  }
  const a = from[low] as number;
  const b = from[high] as number;
  const share = b > a ? (value - a) / (b - a) : 0;
  return (to[low] as number) + share * ((to[high] as number) - (to[low] as number));
}
