/** The overview: the whole recording's total, and the window that the picture shows. */

import { Viewport } from '../axis/viewport';
import { type Columns, sampleColumns } from '../model/columns';
import type { Curves } from '../model/curves';
import type { Colours } from './palette';
import type { Pen, Rect } from './pen';

/** `drawn` are the picture's columns, where it shows the whole as wide as this: nothing is then sampled twice. */
export function drawOverview(
  pen: Pen,
  area: Rect,
  curves: Curves,
  viewport: Viewport,
  colours: Colours,
  drawn: Columns | null = null
): void {
  const count = Math.max(1, Math.round(area.width));
  const columns = drawn?.count === count ? drawn : sampleColumns(curves, new Viewport(viewport.axis), count);
  const most = Math.max(columns.most, 1);
  pen.fillStyle = colours.other;
  pen.globalAlpha = 0.55;
  pen.beginPath();
  for (let c = 0; c < columns.count; c++) {
    const height = ((columns.high[c] as number) / most) * (area.height - 4);
    pen.rect(area.x + c, area.y + area.height - height, 1, height);
  }
  pen.fill();
  pen.globalAlpha = 1;
  for (const fold of viewport.axis.folds) {
    const x = area.x + (viewport.axis.uOfUs(fold.fromUs) / viewport.axis.length) * area.width;
    const width = (viewport.axis.uOfUs(fold.toUs) / viewport.axis.length) * area.width - (x - area.x);
    pen.fillStyle = colours.background;
    pen.fillRect(x, area.y, Math.max(1, width), area.height);
  }
}

export function drawWindow(pen: Pen, area: Rect, viewport: Viewport, colours: Colours): void {
  const left = area.x + (viewport.fromU / viewport.axis.length) * area.width;
  const right = Math.max(left + 2, area.x + (viewport.toU / viewport.axis.length) * area.width);
  pen.fillStyle = colours.background;
  pen.globalAlpha = 0.65;
  pen.fillRect(area.x, area.y, left - area.x, area.height);
  pen.fillRect(right, area.y, area.x + area.width - right, area.height);
  pen.globalAlpha = 1;
  pen.strokeStyle = viewport.isWhole ? colours.grid : colours.accent;
  pen.lineWidth = viewport.isWhole ? 1 : 1.5;
  pen.strokeRect(left + 0.75, area.y + 0.75, right - left - 1.5, area.height - 1.5);
}
