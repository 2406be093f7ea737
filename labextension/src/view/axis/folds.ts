/** Which idle stretches of the wall clock are folded away, and how wide a fold stays. */

export interface Fold {
  fromUs: number;
  toUs: number;
}

/** A stretch without any change is folded when it is longer than this share of all that stays unfolded. */
const FOLD_SHARE = 0.2;
/** Ever shorter pauses could each be long for what is left; a picture of folds would be no picture. */
const MOST_FOLDS = 6;
/** Width that a fold keeps, as a share of all that stays unfolded: enough for its mark, too little to mislead. */
export const FOLDED_SHARE = 0.02;
/** With fewer changes than this the pauses between them are the picture. */
const FEWEST_STEPS = 16;

/**
 * Idle stretches to fold, in time order.
 *
 * Folding the longest makes the rest of the axis shorter, so that the next may become worth folding: the loop goes on
 * until nothing left over is long for what remains.
 */
export function findFolds(times: Float64Array, spanUs: number): Fold[] {
  const n = times.length;
  if (n < FEWEST_STEPS) return [];
  // Only the longest few hundred gaps can ever matter: FOLD_SHARE bounds how many are long at once. Gaps over 1/1000 of
  // the span number at most 1,000; what remains after folding all of them bounds the threshold.
  const large = spanUs / 1000;
  let gaps = gapsOver(large, times, spanUs);
  const busy = gaps.reduce((rest, gap) => rest - (gap.toUs - gap.fromUs), spanUs);
  const floor = Math.max(busy, 0) * FOLD_SHARE;
  if (floor < large) gaps = gapsOver(floor, times, spanUs);
  gaps.sort((a, b) => b.toUs - b.fromUs - (a.toUs - a.fromUs));
  let remaining = spanUs;
  const folds: Fold[] = [];
  for (const gap of gaps) {
    const length = gap.toUs - gap.fromUs;
    if (length <= FOLD_SHARE * remaining || folds.length === MOST_FOLDS) break;
    remaining -= length;
    folds.push(gap);
  }
  // Everything idle is no reason to fold: then there would be nothing beside the folds.
  if (remaining <= 0) return [];
  return folds.sort((a, b) => a.fromUs - b.fromUs);
}

function gapsOver(floor: number, times: Float64Array, spanUs: number): Fold[] {
  const gaps: Fold[] = [];
  let before = 0;
  for (let i = 0; i <= times.length; i++) {
    const now = i < times.length ? (times[i] as number) : spanUs;
    if (now - before > floor) gaps.push({ fromUs: before, toUs: now });
    before = now;
  }
  return gaps;
}
