/** Pixels of the map. A live block is at least a line wide: the small one that pins a whole segment must be seen. */

import type { Colours } from '../draw/palette';
import { type Layout, type Piece, spanAt } from './layout';
import type { Segment, Span } from './model';

export const ROW_PX = 19;
const BAR_PX = 15;
const LEAST_PX = 1.5;
/** Pages of expandable segments: of small blocks, of others. */
const PAGE = { small: 2 << 20, large: 20 << 20 } as const;

export interface Paint {
  colours: Colours;
  /** Colour of an owner. */
  ofGroup: (group: number | null) => string;
  /** Owners to stress; null for none. */
  emphasis: ReadonlySet<number> | null;
  /** The segment that is selected, or null. */
  selected: Segment | null;
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
  const scale = room / piece.bytes;
  const xOf = (offset: number): number => left + (offset - piece.from) * scale;
  const until = piece.from + piece.bytes;
  const start = spanAt(segment, piece.from);
  // Free ones first, so that a thin block stands over what it pins.
  for (const used of [false, true]) {
    for (let k = start; k < segment.spans.length; k++) {
      const span = segment.spans[k] as Span;
      if (span.offset >= until) break;
      if ((span.kind === 'used' || span.kind === 'pending') !== used) continue;
      const from = Math.max(span.offset, piece.from);
      const x = xOf(from);
      const w = (Math.min(span.offset + span.size, until) - from) * scale;
      const wide = used ? Math.max(w, Math.min(LEAST_PX, room)) : w;
      pen.globalAlpha =
        paint.emphasis !== null && used && (span.group === null || !paint.emphasis.has(span.group)) ? 0.22 : 1;
      pen.fillStyle = fillOf(span, segment, paint);
      pen.fillRect(Math.min(x, left + room - wide), top, wide, height);
    }
  }
  pen.globalAlpha = 1;
  pen.lineWidth = 1;
  const chosen = paint.selected === segment;
  pen.strokeStyle = chosen ? colours.accent : colours.muted;
  if (chosen) {
    pen.lineWidth = 2.5;
    pen.strokeRect(left - 1, top - 1, room + 2, height + 2);
  } else if (width > 4) pen.strokeRect(left + 0.5, top + 0.5, Math.max(room - 1, 1), height - 1);
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
