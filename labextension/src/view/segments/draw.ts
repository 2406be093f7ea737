/** Pixels of the map. A live block is at least a line wide: the small one that pins a whole segment must be seen. */

import type { Colours } from '../draw/palette';
import { type Layout, type Piece, spanAt } from './layout';
import type { Segment, Span } from './model';

export const ROW_PX = 19;
const BAR_PX = 15;
const LEAST_PX = 1.5;
/** A used share that is there is seen. */
const LEAST_CELL_PX = 3;
/** Pages of expandable segments: of small blocks, of others. */
const PAGE = { small: 2 << 20, large: 20 << 20 } as const;

export interface Paint {
  colours: Colours;
  /** Colour of an owner. */
  ofGroup: (group: number | null) => string;
  /** Owners to stress; null for none. */
  emphasis: ReadonlySet<number> | null;
  hatch: (colour: string, background: string) => CanvasPattern | string;
}

export function drawMap(
  pen: CanvasRenderingContext2D,
  layout: Layout,
  size: { width: number; height: number; top: number },
  paint: Paint
): void {
  const first = Math.max(0, Math.floor(size.top / ROW_PX));
  const last = Math.min(layout.rows - 1, Math.floor((size.top + size.height) / ROW_PX));
  const scale = size.width / layout.perRow;
  const end = layout.firstOfRow[last + 1] ?? layout.pieces.length;
  for (let k = layout.firstOfRow[first] ?? 0; k < end; k++) {
    const piece = layout.pieces[k] as Piece;
    drawPiece(pen, piece, piece.x * scale, piece.row * ROW_PX - size.top, piece.bytes * scale, paint);
  }
}

export function drawPiece(
  pen: CanvasRenderingContext2D,
  piece: Piece,
  left: number,
  top: number,
  width: number,
  paint: Paint,
  height = BAR_PX
): void {
  const { segment } = piece;
  const { colours } = paint;
  // A pixel between segments, where there is room for one.
  const room = Math.max(width - (width > 4 ? 1 : 0), 0.5);
  const first = spanAt(segment, piece.from);
  const last = spanAt(segment, piece.from + piece.bytes - 1);
  const box: Box = { left, top, width: room, height };
  if (last - first + 1 > Math.max(room, 8)) drawCells(pen, piece, box, paint, first);
  else drawSpans(pen, piece, box, paint, first);
  pen.globalAlpha = 1;
  if (width <= 4) return;
  // A segment that goes on in the next row is open there.
  const right = left + room;
  pen.fillStyle = colours.muted;
  pen.fillRect(left, top, room, 1);
  pen.fillRect(left, top + height - 1, room, 1);
  if (piece.from === 0) pen.fillRect(left, top, 1, height);
  if (piece.from + piece.bytes >= segment.extent) pen.fillRect(right - 1, top, 1, height);
}

/** A frame around all pieces of a segment. */
export function outline(
  pen: CanvasRenderingContext2D,
  layout: Layout,
  segment: Segment,
  size: { width: number; top: number },
  colour: string
): void {
  const scale = size.width / layout.perRow;
  pen.lineWidth = 2.5;
  pen.strokeStyle = colour;
  for (const piece of layout.pieces) {
    if (piece.segment !== segment) continue;
    const width = Math.max(piece.bytes * scale, 1);
    pen.strokeRect(piece.x * scale - 1, piece.row * ROW_PX - size.top - 1, width + 1, BAR_PX + 2);
  }
}

interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

const isUsed = (span: Span): boolean => span.kind === 'used' || span.kind === 'pending';

function alphaOf(group: number | null, paint: Paint): number {
  return paint.emphasis !== null && (group === null || !paint.emphasis.has(group)) ? 0.22 : 1;
}

/** Every stretch by itself; free ones first, so that a thin block stands over what it pins. */
function drawSpans(pen: CanvasRenderingContext2D, piece: Piece, box: Box, paint: Paint, first: number): void {
  const { segment } = piece;
  const scale = box.width / piece.bytes;
  const until = piece.from + piece.bytes;
  for (const used of [false, true]) {
    for (let k = first; k < segment.spans.length; k++) {
      const span = segment.spans[k] as Span;
      if (span.offset >= until) break;
      if (isUsed(span) !== used) continue;
      const from = Math.max(span.offset, piece.from);
      const x = box.left + (from - piece.from) * scale;
      const width = (Math.min(span.offset + span.size, until) - from) * scale;
      const shown = used ? Math.max(width, Math.min(LEAST_PX, box.width)) : width;
      pen.globalAlpha = used ? alphaOf(span.group, paint) : 1;
      pen.fillStyle = fillOf(span, segment, paint);
      pen.fillRect(Math.min(x, box.left + box.width - shown), box.top, shown, box.height);
    }
  }
}

/** More stretches than pixels: a column for each pixel, as high as its used share, in the colour of the largest owner. */
function drawCells(pen: CanvasRenderingContext2D, piece: Piece, box: Box, paint: Paint, first: number): void {
  const { segment } = piece;
  const columns = Math.max(1, Math.round(box.width));
  const perColumn = piece.bytes / columns;
  const wide = box.width / columns;
  pen.fillStyle = fillOf({ offset: 0, size: 0, kind: 'free', group: null }, segment, paint);
  pen.fillRect(box.left, box.top, box.width, box.height);
  let k = first;
  for (let column = 0; column < columns; column++) {
    const from = piece.from + column * perColumn;
    const until = from + perColumn;
    let used = 0;
    let most = 0;
    let owner: Span | null = null;
    for (; k < segment.spans.length; k++) {
      const span = segment.spans[k] as Span;
      if (span.offset >= until) break;
      const here = Math.min(span.offset + span.size, until) - Math.max(span.offset, from);
      if (isUsed(span)) {
        used += here;
        if (here > most) {
          most = here;
          owner = span;
        }
      }
      // The next column begins in the same stretch.
      if (span.offset + span.size > until) break;
    }
    if (owner === null) continue;
    const high = Math.max(LEAST_CELL_PX, (used / perColumn) * box.height);
    pen.globalAlpha = alphaOf(owner.group, paint);
    pen.fillStyle = fillOf(owner, segment, paint);
    pen.fillRect(box.left + column * wide, box.top + box.height - high, wide, high);
  }
}

/** Free memory that goes back is plain, what cannot is hatched in the colour of warnings. */
export function isReturnable(span: Span, segment: Segment): boolean {
  if (segment.active === 0) return true;
  return segment.expandable && span.size > (segment.small ? PAGE.small : PAGE.large);
}

function fillOf(span: Span, segment: Segment, paint: Paint): CanvasPattern | string {
  const { colours, hatch } = paint;
  const warn = colours.lines['outside torch'];
  switch (span.kind) {
    case 'used':
      return paint.ofGroup(span.group);
    case 'pending':
      return hatch(paint.ofGroup(span.group), colours.background);
    case 'unmapped':
      return colours.background;
    case 'free':
      return isReturnable(span, segment) ? colours.grid : hatch(warn, colours.grid);
  }
}

/** Diagonal stripes, made once for each pair of colours. */
export function hatcher(pen: CanvasRenderingContext2D): Paint['hatch'] {
  const made = new Map<string, CanvasPattern | string>();
  return (colour, background) => {
    const key = `${colour} ${background}`;
    let pattern = made.get(key);
    if (pattern === undefined) {
      pattern = makeHatch(pen, colour, background);
      made.set(key, pattern);
    }
    return pattern;
  };
}

function makeHatch(pen: CanvasRenderingContext2D, colour: string, background: string): CanvasPattern | string {
  const tile = document.createElement('canvas');
  tile.width = tile.height = 6;
  const inner = tile.getContext('2d');
  if (inner === null) return colour;
  inner.fillStyle = background;
  inner.fillRect(0, 0, 6, 6);
  inner.strokeStyle = colour;
  inner.lineWidth = 2;
  inner.beginPath();
  for (const shift of [-6, 0, 6]) {
    inner.moveTo(shift - 1, 7);
    inner.lineTo(shift + 7, -1);
  }
  inner.stroke();
  return pen.createPattern(tile, 'repeat') ?? colour;
}
