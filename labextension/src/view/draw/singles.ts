/** Single allocations, where the zoom is close enough: shaded in turn, outlined, and labelled with their size. */

import type { Viewport } from '../axis/viewport';
import { formatBytes } from '../format';
import type { Single } from '../model/singles';
import type { Colours } from './palette';
import { FONT, type Pen, type Rect } from './pen';
import type { Scale } from './scale';

const MOST_LABELS = 80;
const LABEL_PX = { width: 58, height: 15 };
/** Outlines of lower boxes would be all border. */
export const LEAST_HEIGHT_PX = 3;

export function drawSingles(
  pen: Pen,
  plot: Rect,
  scale: Scale,
  viewport: Viewport,
  singles: readonly Single[],
  colours: Colours
): void {
  const xOf = (moment: number): number =>
    moment === 0 ? plot.x : clampX(plot, plot.x + viewport.pxOfU(viewport.axis.uOfStep(moment - 1), plot.width));
  let labels = 0;
  pen.font = FONT;
  pen.textAlign = 'left';
  pen.textBaseline = 'middle';
  for (const single of singles) {
    trace(pen, single, scale, xOf, plot);
    // Two shades by parity part neighbours of one band; a hash would sometimes give both the same.
    if (single.lifetime % 2 === 1) {
      pen.fillStyle = colours.dark ? '#000000' : '#ffffff';
      pen.globalAlpha = 0.16;
      pen.fill();
    }
    pen.globalAlpha = 0.7;
    pen.strokeStyle = colours.background;
    pen.lineWidth = 1;
    pen.stroke();
    pen.globalAlpha = 1;
  }
  const folds = viewport.axis.folds.map(({ fromUs, toUs }): Piece => {
    const x = (us: number): number => plot.x + viewport.pxOfU(viewport.axis.uOfUs(us), plot.width);
    return { from: x(fromUs), to: x(toUs) };
  });
  for (const single of singles) {
    if (labels < MOST_LABELS && drawLabel(pen, plot, single, scale, xOf, folds, colours)) labels += 1;
  }
}

/** Pixels from left to right. */
interface Piece {
  from: number;
  to: number;
}

/** The widest part of a stretch that no fold covers: a torn strip lies over what is drawn there. */
export function widestPiece({ from, to }: Piece, folds: readonly Piece[]): Piece {
  let best = { from, to: from };
  let left = from;
  for (const fold of [...folds, { from: Number.POSITIVE_INFINITY, to: Number.POSITIVE_INFINITY }]) {
    const right = Math.min(to, fold.from);
    if (right - left > best.to - best.from) best = { from: left, to: right };
    left = Math.max(left, fold.to);
  }
  return best;
}

/** The outline of one allocation. */
export function trace(pen: Pen, single: Single, scale: Scale, xOf: (moment: number) => number, plot: Rect): void {
  const { moments, bottoms, bytes } = single;
  const right = (k: number): number =>
    k + 1 < moments.length ? xOf(moments[k + 1] as number) : lastX(single, xOf, plot);
  pen.beginPath();
  for (let k = 0; k < moments.length; k++) {
    const y = scale.y((bottoms[k] as number) + bytes);
    if (k === 0) pen.moveTo(xOf(moments[k] as number), y);
    else pen.lineTo(xOf(moments[k] as number), y);
    pen.lineTo(right(k), y);
  }
  for (let k = moments.length - 1; k >= 0; k--) {
    const y = scale.y(bottoms[k] as number);
    pen.lineTo(right(k), y);
    pen.lineTo(xOf(moments[k] as number), y);
  }
  pen.closePath();
}

function lastX(single: Single, xOf: (moment: number) => number, plot: Rect): number {
  return single.open ? plot.x + plot.width : xOf(single.until);
}

function drawLabel(
  pen: Pen,
  plot: Rect,
  single: Single,
  scale: Scale,
  xOf: (moment: number) => number,
  folds: readonly Piece[],
  colours: Colours
): boolean {
  const { moments, bottoms, bytes } = single;
  let best = -1;
  let room: Piece = { from: 0, to: 0 };
  for (let k = 0; k < moments.length; k++) {
    const to = k + 1 < moments.length ? xOf(moments[k + 1] as number) : lastX(single, xOf, plot);
    const piece = widestPiece({ from: xOf(moments[k] as number), to }, folds);
    if (piece.to - piece.from > room.to - room.from) {
      room = piece;
      best = k;
    }
  }
  if (best < 0 || room.to - room.from < LABEL_PX.width) return false;
  const top = scale.y((bottoms[best] as number) + bytes);
  const bottom = scale.y(bottoms[best] as number);
  if (bottom - top < LABEL_PX.height) return false;
  const text = formatBytes(bytes);
  const x = room.from + 4;
  const y = (top + bottom) / 2;
  // A plate behind the text, since no one text colour reads on all ten slots.
  pen.fillStyle = colours.background;
  pen.globalAlpha = 0.72;
  pen.fillRect(x - 2, y - 7, pen.measureText(text).width + 4, 14);
  pen.globalAlpha = 1;
  pen.fillStyle = colours.foreground;
  pen.fillText(text, x, y);
  return true;
}

function clampX(plot: Rect, x: number): number {
  return Math.min(plot.x + plot.width, Math.max(plot.x, x));
}
