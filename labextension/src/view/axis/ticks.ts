/** Round numbers along both axes. */

/** Ticks at 1, 2 or 5 × 10^k between two values, about `count` of them and no closer than `least`. */
export function decimalTicks(from: number, to: number, count: number, least = 0): { ticks: number[]; step: number } {
  const span = to - from;
  if (!(span > 0)) return { ticks: [], step: 1 };
  const raw = Math.max(span / Math.max(1, count), least);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 5, 10].find(m => m * power >= raw) ?? 10) * power;
  const ticks: number[] = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-9; k++) ticks.push(k * step + 0);
  return { ticks, step };
}

/** Ticks at powers of two (bytes are binary), from 0 up to and including the first that reaches `most`. */
export function byteTicks(most: number, count: number): number[] {
  const raw = Math.max(most, 1) / Math.max(1, count);
  const step = Math.max(1, 2 ** Math.ceil(Math.log2(raw)));
  const ticks: number[] = [];
  for (let value = 0; value < most + step; value += step) ticks.push(value);
  return ticks;
}
