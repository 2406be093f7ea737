/**
 * One walk over all steps: how each class of allocations behaves, and what the curves need. The walk is the largest part
 * of what a first paint costs, so it is made once for both.
 */

import type { Recording } from './steps';

/** Bytes of each class are kept every so many steps. Rolling over 128 of them costs as much as looking up an extreme. */
export const CHECKPOINT = 256;
/** With more classes than these their checkpoints would take more room than the steps themselves. */
const MOST_KEPT = 64;

export interface Sweep {
  classes: number;
  /** The most that each class held at once. */
  peak: Float64Array;
  /** Bytes × µs of each class. */
  area: Float64Array;
  /** Bytes of all classes at each moment. */
  total: Float64Array;
  /** Bytes of each class every CHECKPOINT steps; null with too many classes. */
  checkpoints: Float64Array | null;
}

export function sweep(recording: Recording, classes: number, of: ArrayLike<number>, ofRest: ArrayLike<number>): Sweep {
  const { steps, lifetimes, spanUs } = recording;
  const now = new Float64Array(classes);
  const peak = new Float64Array(classes);
  const area = new Float64Array(classes);
  const total = new Float64Array(steps.count + 1);
  let sum = 0;
  for (let i = 0; i < lifetimes.preexisting; i++) {
    const which = of[i] as number;
    const bytes = lifetimes.bytes[i] as number;
    now[which] = (now[which] as number) + bytes;
    area[which] = (area[which] as number) + bytes * spanUs;
    sum += bytes;
  }
  peak.set(now);
  total[0] = sum;
  const rows = Math.floor(steps.count / CHECKPOINT) + 1;
  const checkpoints = classes <= MOST_KEPT ? new Float64Array(rows * classes) : null;
  checkpoints?.set(now, 0);
  const { owner, delta } = steps;
  for (let i = 0; i < steps.count; i++) {
    const who = owner[i] as number;
    const change = delta[i] as number;
    const which = (who >= 0 ? of[who] : ofRest[-1 - who]) as number;
    const value = (now[which] as number) + change;
    now[which] = value;
    if (value > (peak[which] as number)) peak[which] = value;
    // What comes adds its bytes until the end; what goes takes them back from then on.
    area[which] = (area[which] as number) + change * (spanUs - (steps.time[i] as number));
    sum += change;
    total[i + 1] = sum;
    if ((i + 1) % CHECKPOINT === 0) checkpoints?.set(now, ((i + 1) / CHECKPOINT) * classes);
  }
  return { classes, peak, area, total, checkpoints };
}

/** The checkpoints of bands that classes fall into; every class falls into one. */
export function foldCheckpoints(
  from: Float64Array,
  classes: number,
  band: ArrayLike<number>,
  bands: number
): Float64Array {
  const rows = from.length / classes;
  const out = new Float64Array(rows * bands);
  for (let k = 0; k < classes; k++) {
    const to = band[k] as number;
    if (to >= bands) continue;
    for (let row = 0; row < rows; row++) {
      const at = row * bands + to;
      out[at] = (out[at] as number) + (from[row * classes + k] as number);
    }
  }
  return out;
}
