/** Bytes ↔ height in the picture, linear or logarithmic. */

import { byteTicks } from '../axis/ticks';
import type { Rect } from './pen';

/** On the logarithmic scale heights below top / 2^16 are nearly linear, so that zero has a place. */
const LOG_OCTAVES = 16;
const MIN_TICK_PX = 36;
/** Room above the greatest value, for the labels of peak and markers. */
const AIR = 1.07;

export class Scale {
  readonly top: number;
  readonly log: boolean;
  readonly ticks: number[];
  readonly #plot: Rect;
  readonly #unit: number;

  constructor(most: number, plot: Rect, log: boolean) {
    const ticks = byteTicks(Math.max(most, 1), Math.max(2, Math.min(6, plot.height / MIN_TICK_PX)));
    // A round height, or the scale would tremble with each pan: the half tick that leaves some air above the most.
    const half = Math.max((ticks[1] ?? 1) / 2, 1);
    this.top = Math.max(1, Math.ceil((most * AIR) / half) * half);
    this.log = log;
    this.#plot = plot;
    this.#unit = this.top / 2 ** LOG_OCTAVES;
    this.ticks = log ? this.#logTicks() : ticks.filter(tick => tick <= this.top);
  }

  y(bytes: number): number {
    const { y, height } = this.#plot;
    return y + height * (1 - this.#share(bytes));
  }

  bytesAt(y: number): number {
    const share = 1 - (y - this.#plot.y) / this.#plot.height;
    if (!this.log) return share * this.top;
    return (2 ** (share * Math.log2(1 + this.top / this.#unit)) - 1) * this.#unit;
  }

  #share(bytes: number): number {
    return this.log ? Math.log2(1 + bytes / this.#unit) / Math.log2(1 + this.top / this.#unit) : bytes / this.top;
  }

  #logTicks(): number[] {
    const ticks = [0];
    for (let value = 2 ** Math.floor(Math.log2(this.top)); value > this.#unit * 2 && ticks.length < 7; value /= 8) {
      ticks.push(value);
    }
    return ticks;
  }
}
