/** Where the named regions lie: each in the first row that is free at its beginning, so that nesting reads downwards. */

import type { Device } from '../document';
import type { PlacedRegion } from './frame';
import { MOST_REGION_ROWS } from './layout';

export function placeRegions(device: Device, spanUs: number): { regions: PlacedRegion[]; rows: number } {
  const ends: number[] = [];
  const regions = device.regions
    .map(({ name, startUs, endUs }) => ({
      name,
      fromUs: startUs === null ? 0 : startUs - device.startUs,
      toUs: endUs === null ? spanUs : endUs - device.startUs
    }))
    .sort((a, b) => a.fromUs - b.fromUs || b.toUs - a.toUs)
    .flatMap((region): PlacedRegion[] => {
      let row = ends.findIndex(end => end <= region.fromUs);
      if (row < 0) row = ends.length;
      // What nests deeper than there are rows is left to the list of regions that hovering shows.
      if (row >= MOST_REGION_ROWS) return [];
      ends[row] = region.toUs;
      return [{ ...region, row }];
    });
  return { regions, rows: ends.length };
}
