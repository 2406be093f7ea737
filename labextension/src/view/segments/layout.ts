/**
 * Where segments stand in the map: in rows from left to right, so that area is bytes. A segment that does not fit the
 * rest of a row begins the next one; one that is longer than a row goes on below.
 */

import type { Segment } from './model';

/** A stretch of one segment in one row; all in bytes but `row`. */
export interface Piece {
  /** Number in the order shown. */
  place: number;
  segment: Segment;
  row: number;
  /** Where it begins in the row, and which of the segment's bytes it shows. */
  x: number;
  from: number;
  bytes: number;
}

export interface Layout {
  pieces: Piece[];
  rows: number;
  /** Bytes that a whole row shows. */
  perRow: number;
  /** Index of the first piece of each row. */
  firstOfRow: number[];
}

/** Everything in this many rows, about, before one zooms. */
export const ROWS = 14;

export function layOut(segments: readonly Segment[], zoom: number): Layout {
  const total = segments.reduce((sum, segment) => sum + segment.extent, 0);
  const perRow = Math.max(1, total / (ROWS * zoom));
  const pieces: Piece[] = [];
  const firstOfRow: number[] = [];
  let row = 0;
  let x = 0;
  for (const [place, segment] of segments.entries()) {
    if (x > 0 && x + segment.extent > perRow) {
      row += 1;
      x = 0;
    }
    for (let from = 0; from < segment.extent; ) {
      const bytes = Math.min(segment.extent - from, perRow - x);
      firstOfRow[row] ??= pieces.length;
      pieces.push({ place, segment, row, x, from, bytes });
      from += bytes;
      x += bytes;
      if (from < segment.extent) {
        row += 1;
        x = 0;
      }
    }
  }
  return { pieces, rows: pieces.length === 0 ? 0 : row + 1, perRow, firstOfRow };
}

/** The piece of a row at `x` bytes; null beside all of them. */
export function pieceAt(layout: Layout, row: number, x: number): Piece | null {
  const first = layout.firstOfRow[row];
  if (first === undefined) return null;
  let low = first;
  let high = (layout.firstOfRow[row + 1] ?? layout.pieces.length) - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((layout.pieces[middle] as Piece).x <= x) low = middle;
    else high = middle - 1;
  }
  const piece = layout.pieces[low] as Piece;
  return x >= piece.x && x < piece.x + piece.bytes ? piece : null;
}

/** First index of `spans` that ends after `offset`. */
export function spanAt(segment: Segment, offset: number): number {
  let low = 0;
  let high = segment.spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    const span = segment.spans[middle] as Segment['spans'][number];
    if (span.offset + span.size <= offset) low = middle + 1;
    else high = middle;
  }
  return low;
}
