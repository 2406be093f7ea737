/** The parts of the picture in CSS pixels. */

import type { Rect } from './pen';

export const GUTTER_PX = 68;
export const RULER_PX = 22;
export const REGION_ROW_PX = 17;
/** Deeper nesting than this is not drawn. */
export const MOST_REGION_ROWS = 16;
/** With more rows than these the picture grows, so that the plot keeps its height. */
export const FREE_REGION_ROWS = 3;
export const MINIMAP_PX = 40;
/** Room right of the plot, so that the last tick's label and a limit's name are not cut. */
const RIGHT_PX = 12;
const TOP_PX = 8;

export interface Layout {
  width: number;
  height: number;
  regions: Rect;
  plot: Rect;
  ruler: Rect;
}

export function layOut(width: number, height: number, regionRows: number): Layout {
  const x = width < 480 ? GUTTER_PX - 12 : GUTTER_PX;
  const inner = Math.max(40, width - x - RIGHT_PX);
  const rows = regionRows * REGION_ROW_PX;
  const plotHeight = Math.max(40, height - TOP_PX - rows - RULER_PX);
  return {
    width,
    height,
    regions: { x, y: TOP_PX, width: inner, height: rows },
    plot: { x, y: TOP_PX + rows, width: inner, height: plotHeight },
    ruler: { x, y: TOP_PX + rows + plotHeight, width: inner, height: RULER_PX }
  };
}
