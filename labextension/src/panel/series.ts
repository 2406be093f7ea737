/** History of one value: times in Unix microseconds, ascending; null is a gap and is drawn as one. */

export interface Point {
  timeUs: number;
  value: number;
}

/** How many samples of one drawing column become one point. */
export type Reduce = 'max' | 'mean';

export class Series {
  /** @param spanUs How far back values are kept, from the newest. */
  constructor(private _spanUs: number) {}

  get spanUs(): number {
    return this._spanUs;
  }

  set spanUs(value: number) {
    this._spanUs = value;
    this._trim();
  }

  get length(): number {
    return this._times.length - this._head;
  }

  get last(): { timeUs: number; value: number | null } | null {
    const at = this._times.length - 1;
    return at < this._head ? null : { timeUs: this._times[at] ?? 0, value: this._values[at] ?? null };
  }

  /** Add the newest value; what is not newer than the last is dropped (a state and a delta of one tick). */
  push(timeUs: number, value: number | null, gapUs = Number.POSITIVE_INFINITY): void {
    const last = this.last;
    if (last && timeUs <= last.timeUs) {
      return;
    }
    if (last && last.value !== null && timeUs - last.timeUs > gapUs) {
      this._times.push(last.timeUs + 1);
      this._values.push(null);
    }
    this._times.push(timeUs);
    this._values.push(value);
    this._trim();
  }

  /** Take over what the server kept, and put behind it what arrived here since. */
  replace(times: readonly number[], values: readonly (number | null)[]): void {
    const end = times[times.length - 1] ?? Number.NEGATIVE_INFINITY;
    const newerTimes: number[] = [];
    const newerValues: (number | null)[] = [];
    for (let at = this._head; at < this._times.length; at += 1) {
      const time = this._times[at] ?? 0;
      if (time > end) {
        newerTimes.push(time);
        newerValues.push(this._values[at] ?? null);
      }
    }
    this._times = [...times, ...newerTimes];
    this._values = [...times.map((_, at) => values[at] ?? null), ...newerValues];
    this._head = 0;
    this._trim();
  }

  /** The sample at or before a time, or null in a gap. */
  at(timeUs: number): Point | null {
    let low = this._head;
    let high = this._times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this._times[middle] ?? 0) <= timeUs) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    const value = low > this._head ? (this._values[low - 1] ?? null) : null;
    return value === null ? null : { timeUs: this._times[low - 1] ?? 0, value };
  }

  /**
   * Lines to draw: one run of points between two gaps, one point a column of `columnUs`.
   *
   * Columns lie on a fixed grid of time, so that a column that is complete never changes while the window moves.
   */
  runs(startUs: number, columnUs: number, reduce: Reduce): Point[][] {
    const runs: Point[][] = [];
    let run: Point[] = [];
    let column = Number.NaN;
    let count = 0;
    for (let at = this._head; at < this._times.length; at += 1) {
      const timeUs = this._times[at] ?? 0;
      const value = this._values[at] ?? null;
      if (timeUs < startUs) {
        continue;
      }
      if (value === null) {
        if (run.length > 0) {
          runs.push(run);
          run = [];
        }
        column = Number.NaN;
        continue;
      }
      const here = Math.floor(timeUs / columnUs);
      const open = run[run.length - 1];
      if (here === column && open) {
        count += 1;
        open.value = reduce === 'max' ? Math.max(open.value, value) : open.value + (value - open.value) / count;
        open.timeUs = timeUs;
      } else {
        run.push({ timeUs, value });
        column = here;
        count = 1;
      }
    }
    if (run.length > 0) {
      runs.push(run);
    }
    return runs;
  }

  /** All samples, oldest first; for exports. */
  *entries(): IterableIterator<{ timeUs: number; value: number | null }> {
    for (let at = this._head; at < this._times.length; at += 1) {
      yield { timeUs: this._times[at] ?? 0, value: this._values[at] ?? null };
    }
  }

  private _trim(): void {
    const oldest = (this._times[this._times.length - 1] ?? 0) - this._spanUs;
    while (this._head < this._times.length && (this._times[this._head] ?? 0) < oldest) {
      this._head += 1;
    }
    // Cut off the dead front when it is half of the array: amortised O(1) a sample, and memory stays bounded.
    if (this._head > 64 && this._head * 2 > this._times.length) {
      this._times = this._times.slice(this._head);
      this._values = this._values.slice(this._head);
      this._head = 0;
    }
  }

  private _times: number[] = [];
  private _values: (number | null)[] = [];
  private _head = 0;
}
