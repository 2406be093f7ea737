/** Where the named regions lie: each in the first row that is free at its beginning, so that nesting reads downwards. */

import type { CellSpan, Device } from '../document';
import type { PlacedRegion } from './frame';
import { MOST_REGION_ROWS } from './layout';

/**
 * Measured cells get a row of their own on top. What nests deeper than there are rows is not drawn; hovering lists it
 * with the others.
 */
export function placeRegions(
  device: Device,
  spanUs: number,
  cells: readonly CellSpan[] = []
): { regions: PlacedRegion[]; rows: number } {
  const first = cells.length > 0 ? 1 : 0;
  const ends: number[] = [];
  const bands = cells.map(
    (cell): PlacedRegion => ({
      name: cell.title,
      fromUs: cell.startUs - device.startUs,
      toUs: cell.endUs - device.startUs,
      row: 0,
      cell
    })
  );
  const regions = device.regions
    .map(({ name, startUs, endUs }) => ({
      name,
      fromUs: startUs === null ? 0 : startUs - device.startUs,
      toUs: endUs === null ? spanUs : endUs - device.startUs
    }))
    .sort((a, b) => a.fromUs - b.fromUs || b.toUs - a.toUs)
    .map((region): PlacedRegion => {
      let row = ends.findIndex(end => end <= region.fromUs);
      if (row < 0) row = ends.length;
      ends[row] = region.toUs;
      return { ...region, row: row + first, cell: null };
    });
  return { regions: [...bands, ...regions], rows: Math.min(ends.length + first, MOST_REGION_ROWS) };
}
