/** The sign at the peak, and its name. */

import type { Viewport } from '../axis/viewport';
import type { Columns } from '../model/columns';
import { LABEL_PX, type Labels, plate, plateOf } from './labels';
import type { Colours } from './palette';
import type { Pen, Rect } from './pen';
import type { Scale } from './scale';

const NAME = 'peak';
const HALF_PX = 4;
const HEIGHT_PX = 7;
/** Rows in which the name may stand, beside the sign first. */
const ROWS = [0, 1, -1, 2, -2, 3, -3];

export interface PeakPoint {
  x: number;
  y: number;
}

/** Where the peak's tip lies; null where it is not in view. */
export function peakPoint(u: number, plot: Rect, viewport: Viewport, columns: Columns, scale: Scale): PeakPoint | null {
  const x = plot.x + viewport.pxOfU(u, plot.width);
  if (x < plot.x - 1 || x > plot.x + plot.width + 1) return null;
  const column = Math.floor(((x - plot.x) / plot.width) * columns.count);
  return { x, y: scale.y(columns.high[Math.min(columns.count - 1, Math.max(0, column))] as number) };
}

/** The room that the sign itself takes. */
export const peakSign = ({ x, y }: PeakPoint): Rect => ({
  x: x - HALF_PX,
  y: y - HEIGHT_PX,
  width: 2 * HALF_PX,
  height: HEIGHT_PX
});

export function drawPeak(pen: Pen, plot: Rect, point: PeakPoint, labels: Labels, colours: Colours): void {
  const { x, y } = point;
  const { width } = plateOf(pen, NAME, 0, 0);
  const beside = Math.min(Math.max(y - LABEL_PX / 2, plot.y + LABEL_PX / 2), plot.y + plot.height - LABEL_PX / 2);
  const places = ROWS.flatMap(row => [
    plateOf(pen, NAME, x + HALF_PX + 1, beside + row * LABEL_PX),
    plateOf(pen, NAME, x - HALF_PX - 1 - width, beside + row * LABEL_PX)
  ]);
  // Without a free place the sign speaks for itself.
  const at = labels.place(places);
  if (at !== null) plate(pen, NAME, at, colours.foreground, colours);
  pen.fillStyle = colours.foreground;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x - HALF_PX, y - HEIGHT_PX);
  pen.lineTo(x + HALF_PX, y - HEIGHT_PX);
  pen.closePath();
  pen.fill();
}
