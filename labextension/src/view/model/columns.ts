/** The envelope of the picture: for each pixel column the greatest and the least total, and the moment of the greatest. */

import type { Viewport } from '../axis/viewport';
import type { Curves } from './curves';

export interface Columns {
  count: number;
  /** The moment whose bands are drawn: where the total is greatest inside the column. */
  moment: Uint32Array;
  high: Float64Array;
  low: Float64Array;
  /** Greatest total over all columns. */
  most: number;
}

/**
 * Extremes over each of `count` equal parts of the viewport. A column holds every moment that lasts into it, with the
 * one that it begins with; the last column includes the viewport's right end.
 */
export function sampleColumns(curves: Curves, viewport: Viewport, count: number): Columns {
  const moment = new Uint32Array(count);
  const high = new Float64Array(count);
  const low = new Float64Array(count);
  const { axis } = viewport;
  let most = 0;
  let from = axis.momentBefore(viewport.fromU);
  for (let c = 0; c < count; c++) {
    const rightU = viewport.fromU + ((c + 1) / count) * viewport.spanU;
    const to = c === count - 1 ? axis.momentAt(viewport.toU) : axis.momentBefore(rightU);
    const at = from === to ? from : curves.extremes.greatest(from, to);
    moment[c] = at;
    high[c] = curves.total[at] as number;
    low[c] = from === to ? (high[c] as number) : (curves.total[curves.extremes.least(from, to)] as number);
    if ((high[c] as number) > most) most = high[c] as number;
    from = to;
  }
  return { count, moment, high, low, most };
}

/**
 * Where small allocations were summed, a column's steps do not know every total in between, but the document's exact
 * envelope does. Widens `high` and `low` to it; columns narrower than a bin get the bin's.
 */
export function widenToEnvelope(columns: Columns, curves: Curves, viewport: Viewport): void {
  const { rest, envelope } = curves.recording;
  if (rest === null || envelope === null) return;
  const { axis } = viewport;
  let bin = 0;
  let most = 0;
  for (let c = 0; c < columns.count; c++) {
    const fromUs = axis.usOfU(viewport.fromU + (c / columns.count) * viewport.spanU);
    const toUs = axis.usOfU(viewport.fromU + ((c + 1) / columns.count) * viewport.spanU);
    while (bin < rest.bins - 1 && (rest.edges[bin + 1] as number) <= fromUs) bin += 1;
    let high = envelope.max[bin] as number;
    let low = envelope.min[bin] as number;
    for (let b = bin + 1; b < rest.bins && (rest.edges[b] as number) < toUs; b++) {
      high = Math.max(high, envelope.max[b] as number);
      low = Math.min(low, envelope.min[b] as number);
    }
    columns.high[c] = high;
    columns.low[c] = low;
    most = Math.max(most, high);
  }
  columns.most = most;
}
