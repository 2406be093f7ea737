/** Bytes ↔ height in the picture, linear or logarithmic. */

import { byteTicks } from '../axis/ticks';
import type { Rect } from './pen';

/** On the logarithmic scale heights below top / 2^16 are nearly linear, so that zero has a place. */
const LOG_OCTAVES = 16;
const MIN_TICK_PX = 36;

export class Scale {
  readonly top: number;
  readonly log: boolean;
  readonly ticks: number[];
  readonly #plot: Rect;
  readonly #unit: number;

  constructor(most: number, plot: Rect, log: boolean) {
    const ticks = byteTicks(Math.max(most, 1), Math.max(2, Math.min(6, plot.height / MIN_TICK_PX)));
    // The top tick gives the picture a round height; without it the scale would tremble with each pan.
    this.top = Math.max(ticks.at(-1) as number, 1);
    // Half a tick of air is enough: do not double the scale for the last few bytes.
    const step = (ticks[1] as number) - (ticks[0] as number);
    if (most > 0 && this.top - most > step / 2) this.top -= step / 2;
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
