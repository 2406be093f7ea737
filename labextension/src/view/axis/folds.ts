/** Which idle stretches of the wall clock are folded away, and how wide a fold stays. */

export interface Fold {
  fromUs: number;
  toUs: number;
}

/** A stretch without any change is folded when it is longer than this share of all that stays unfolded. */
const FOLD_SHARE = 0.35;
/** Nobody waits in a shorter stretch: it is folded only when it is longer than all that then remains. */
const NOTICED_US = 100_000;
/** With fewer changes a stretch between two folds the pauses are the picture. */
const FEWEST_BETWEEN = 4;
/** One each between the cells of a long notebook; a picture of folds would be no picture. */
const MOST_FOLDS = 60;
/** Width that a fold keeps, as a share of all that stays unfolded: enough for its mark, too little to mislead. */
const FOLDED_SHARE = 0.02;
/** All of them together keep no more than this. */
const ALL_FOLDED_SHARE = 0.3;
/** With fewer changes than this the pauses between them are the picture. */
const FEWEST_STEPS = 16;

/** Width of each of so many folds, as a share of all that stays unfolded. */
export function foldedShare(count: number): number {
  return Math.min(FOLDED_SHARE, ALL_FOLDED_SHARE / Math.max(count, 1));
}

/**
 * Idle stretches to fold, in time order: the longest ones, as many as are each long for what then remains. Those that
 * one notices not one after the other: of twenty equal pauses between twenty cells none is long for the others. The
 * static picture's rule is the same (`gpumem_magic/analysis/axis.py`).
 */
export function findFolds(times: Float64Array, spanUs: number): Fold[] {
  const n = times.length;
  if (n < FEWEST_STEPS) return [];
  // Gaps over 1/1000 of the span number at most 1,000; what remains after folding all of them bounds the threshold.
  const large = spanUs / 1000;
  let gaps = gapsOver(large, times, spanUs);
  const busy = gaps.reduce((rest, gap) => rest - (gap.toUs - gap.fromUs), spanUs);
  const floor = Math.max(busy, 0) * FOLD_SHARE;
  if (floor < large) gaps = gapsOver(floor, times, spanUs);
  gaps.sort((a, b) => b.toUs - b.fromUs - (a.toUs - a.fromUs));
  let remaining = spanUs;
  let count = 0;
  for (const [k, gap] of gaps.slice(0, MOST_FOLDS).entries()) {
    const length = gap.toUs - gap.fromUs;
    remaining -= length;
    // Everything idle is no reason to fold: then there would be nothing beside the folds.
    if (remaining <= 0) break;
    if (length < NOTICED_US) {
      if (length <= remaining || k > count) break;
      count = k + 1;
    } else if (length > remaining * FOLD_SHARE && n >= FEWEST_BETWEEN * (k + 2)) count = k + 1;
  }
  return gaps.slice(0, count).sort((a, b) => a.fromUs - b.fromUs);
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
