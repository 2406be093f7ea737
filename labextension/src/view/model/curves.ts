/**
 * Bytes over moments, and their extremes over any stretch of moments.
 *
 * *Moment* m is the state after the first m steps, so there is one more moment than steps. Totals are kept for every
 * moment with a pyramid of extremes over them; the bytes of each band are kept every CHECKPOINT moments and rolled
 * forward from there. A frame asks for about one extreme and one composition a pixel column: at 2 M steps that is
 * some 100 k additions, far below a millisecond's worth of pixels.
 */

import type { Banding } from './bands';
import { HIDDEN } from './bands';
import type { Recording } from './steps';
import { CHECKPOINT, foldCheckpoints } from './sweep';

const FANOUT = 16;

export class Extremes {
  readonly #values: Float64Array;
  /** Level k summarises FANOUT^(k+1) values an entry: the index of the greatest and of the least. */
  readonly #greatest: Uint32Array[] = [];
  readonly #least: Uint32Array[] = [];

  constructor(values: Float64Array) {
    this.#values = values;
    let length = values.length;
    if (length > FANOUT) {
      const { greatest, least } = summariseValues(values);
      this.#greatest.push(greatest);
      this.#least.push(least);
      length = greatest.length;
    }
    while (length > FANOUT) {
      this.#greatest.push(summarise(values, this.#greatest.at(-1) as Uint32Array, 1));
      this.#least.push(summarise(values, this.#least.at(-1) as Uint32Array, -1));
      length = Math.ceil(length / FANOUT);
    }
  }

  /** The first index of the greatest value in [from, to]; both ends belong to it. */
  greatest(from: number, to: number): number {
    return this.#extreme(from, to, this.#greatest, 1);
  }

  /** The first index of the least value in [from, to]. */
  least(from: number, to: number): number {
    return this.#extreme(from, to, this.#least, -1);
  }

  #extreme(from: number, to: number, levels: Uint32Array[], sign: 1 | -1): number {
    const values = this.#values;
    let best = from;
    let extreme = sign * (values[from] as number);
    let at = from;
    while (at <= to) {
      // The widest block that begins here and ends inside.
      let level = -1;
      let width = 1;
      while (level + 1 < levels.length && at % (width * FANOUT) === 0 && at + width * FANOUT - 1 <= to) {
        width *= FANOUT;
        level += 1;
      }
      const candidate = level < 0 ? at : ((levels[level] as Uint32Array)[at / width] as number);
      // Blocks come in order, so of equal values the first stays.
      const value = sign * (values[candidate] as number);
      if (value > extreme) {
        extreme = value;
        best = candidate;
      }
      at += width;
    }
    return best;
  }
}

/** The lowest level: both extremes in one pass over the values, which are too many for the processor's caches. */
function summariseValues(values: Float64Array): { greatest: Uint32Array; least: Uint32Array } {
  const length = Math.ceil(values.length / FANOUT);
  const greatest = new Uint32Array(length);
  const least = new Uint32Array(length);
  for (let i = 0; i < length; i++) {
    const first = i * FANOUT;
    const stop = Math.min(values.length, first + FANOUT);
    let high = first;
    let low = first;
    let most = values[first] as number;
    let fewest = most;
    for (let j = first + 1; j < stop; j++) {
      const value = values[j] as number;
      if (value > most) {
        most = value;
        high = j;
      } else if (value < fewest) {
        fewest = value;
        low = j;
      }
    }
    greatest[i] = high;
    least[i] = low;
  }
  return { greatest, least };
}

/** One level of the pyramid over the level `below`. */
function summarise(values: Float64Array, below: Uint32Array, sign: 1 | -1): Uint32Array {
  const level = new Uint32Array(Math.ceil(below.length / FANOUT));
  for (let i = 0; i < level.length; i++) {
    const stop = Math.min(below.length, (i + 1) * FANOUT);
    let best = below[i * FANOUT] as number;
    for (let j = i * FANOUT + 1; j < stop; j++) {
      const candidate = below[j] as number;
      if (sign * ((values[candidate] as number) - (values[best] as number)) > 0) best = candidate;
    }
    level[i] = best;
  }
  return level;
}

export class Curves {
  readonly recording: Recording;
  readonly banding: Banding;
  /** Bytes of all shown bands at each moment. */
  readonly total: Float64Array;
  readonly extremes: Extremes;
  readonly #checkpoints: Float64Array;
  readonly #rolled: Float64Array;
  #rolledMoment = -1;

  constructor(recording: Recording, banding: Banding) {
    this.recording = recording;
    this.banding = banding;
    const { steps, lifetimes } = recording;
    const bands = banding.bands.length;
    this.#rolled = new Float64Array(bands);
    const { swept } = banding;
    if (swept?.sweep.checkpoints != null && swept.sweep.total.length === steps.count + 1) {
      this.total = swept.sweep.total;
      this.extremes = new Extremes(this.total);
      this.#checkpoints = foldCheckpoints(swept.sweep.checkpoints, swept.sweep.classes, swept.bandOfClass, bands);
      return;
    }
    const { ofLifetime, ofRest } = banding;
    const total = new Float64Array(steps.count + 1);
    const checkpoints = new Float64Array((Math.floor(steps.count / CHECKPOINT) + 1) * bands);
    const now = new Float64Array(bands);
    let sum = 0;
    for (let i = 0; i < lifetimes.preexisting; i++) {
      const band = ofLifetime[i] as number;
      if (band === HIDDEN) continue;
      now[band] = (now[band] as number) + (lifetimes.bytes[i] as number);
      sum += lifetimes.bytes[i] as number;
    }
    total[0] = sum;
    checkpoints.set(now, 0);
    const { owner, delta } = steps;
    for (let i = 0; i < steps.count; i++) {
      const who = owner[i] as number;
      const band = (who >= 0 ? ofLifetime[who] : ofRest[-1 - who]) as number;
      if (band !== HIDDEN) {
        now[band] = (now[band] as number) + (delta[i] as number);
        sum += delta[i] as number;
      }
      total[i + 1] = sum;
      if ((i + 1) % CHECKPOINT === 0) checkpoints.set(now, ((i + 1) / CHECKPOINT) * bands);
    }
    this.total = total;
    this.extremes = new Extremes(total);
    this.#checkpoints = checkpoints;
  }

  get moments(): number {
    return this.total.length;
  }

  /** Bytes of each band at a moment. The array is reused by the next call. */
  composition(moment: number): Float64Array {
    const rolled = this.#rolled;
    const bands = rolled.length;
    const ahead = moment - this.#rolledMoment;
    if (this.#rolledMoment < 0 || ahead < 0 || ahead > CHECKPOINT) {
      const checkpoint = Math.floor(moment / CHECKPOINT);
      rolled.set(this.#checkpoints.subarray(checkpoint * bands, (checkpoint + 1) * bands));
      this.#rolledMoment = checkpoint * CHECKPOINT;
    }
    const { owner, delta } = this.recording.steps;
    const { ofLifetime, ofRest } = this.banding;
    for (let i = this.#rolledMoment; i < moment; i++) {
      const who = owner[i] as number;
      const band = (who >= 0 ? ofLifetime[who] : ofRest[-1 - who]) as number;
      if (band !== HIDDEN) rolled[band] = (rolled[band] as number) + (delta[i] as number);
    }
    this.#rolledMoment = moment;
    return rolled;
  }
}
