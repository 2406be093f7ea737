/** What surrounds the stack: grid, ruler, folds, regions and markers. */

import { decimalTicks } from '../axis/ticks';
import type { Viewport } from '../axis/viewport';
import type { CellSpan, Marker } from '../document';
import { formatBytes, formatCount, formatDuration, formatMoment } from '../format';
import { LABEL_PX, type Labels, plate, plateOf } from './labels';
import { type Layout, REGION_ROW_PX } from './layout';
import type { Colours } from './palette';
import { FONT, type Pen, type Rect } from './pen';
import type { Scale } from './scale';

const TICK_PX = 90;

export interface PlacedRegion {
  name: string;
  fromUs: number;
  toUs: number;
  row: number;
  /** A measured cell, and not a region that the program named. */
  cell: CellSpan | null;
}

export function drawGrid(pen: Pen, layout: Layout, scale: Scale, colours: Colours): void {
  const { plot } = layout;
  pen.font = FONT;
  pen.textAlign = 'right';
  pen.textBaseline = 'middle';
  pen.lineWidth = 1;
  for (const tick of scale.ticks) {
    const y = Math.round(scale.y(tick)) + 0.5;
    pen.strokeStyle = tick === 0 ? colours.muted : colours.grid;
    pen.beginPath();
    pen.moveTo(plot.x, y);
    pen.lineTo(plot.x + plot.width, y);
    pen.stroke();
    pen.fillStyle = colours.muted;
    pen.fillText(formatBytes(tick), plot.x - 6, Math.min(y, plot.y + plot.height - 5));
  }
}

export function drawRuler(pen: Pen, layout: Layout, viewport: Viewport, colours: Colours): void {
  const { ruler, plot } = layout;
  const { axis } = viewport;
  pen.font = FONT;
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  pen.fillStyle = colours.muted;
  pen.strokeStyle = colours.muted;
  pen.lineWidth = 1;
  const y = ruler.y + 13;
  const folds = foldLabels(pen, layout, viewport);
  let lastRight = Number.NEGATIVE_INFINITY;
  for (const { u, text } of rulerTicks(viewport, plot.width)) {
    const x = plot.x + viewport.pxOfU(u, plot.width);
    const half = pen.measureText(text).width / 2;
    const center = Math.min(Math.max(x, plot.x - 40 + half), layout.width - half - 2);
    const hidden = folds.some(fold => center + half > fold.left - 6 && center - half < fold.right + 6);
    if (center - half < lastRight + 8 || hidden) continue;
    lastRight = center + half;
    pen.beginPath();
    pen.moveTo(x, ruler.y);
    pen.lineTo(x, ruler.y + 4);
    pen.stroke();
    pen.fillText(text, center, y);
  }
  for (const fold of axis.folds) drawFold(pen, plot, viewport, fold, colours);
  pen.font = FONT;
  pen.textAlign = 'left';
  pen.fillStyle = colours.muted;
  for (const { left, text } of folds) pen.fillText(text, left, y);
}

/**
 * "⋯ 5.89 s, nothing allocated ⋯" under a fold (not "idle": imports and sums take time as well), the time alone where
 * folds are several or the plot is narrow. It goes before the ticks, since it is what makes them jump.
 */
function foldLabels(pen: Pen, layout: Layout, viewport: Viewport): { left: number; right: number; text: string }[] {
  const { plot } = layout;
  const out: { left: number; right: number; text: string }[] = [];
  for (const fold of viewport.axis.folds) {
    const u = (viewport.axis.uOfUs(fold.fromUs) + viewport.axis.uOfUs(fold.toUs)) / 2;
    const x = plot.x + viewport.pxOfU(u, plot.width);
    if (x < plot.x || x > plot.x + plot.width) continue;
    const time = formatDuration(fold.toUs - fold.fromUs);
    const long = `⋯ ${time}, nothing allocated ⋯`;
    const fits = viewport.axis.folds.length === 1 && pen.measureText(long).width <= plot.width / 4;
    const text = fits ? long : `⋯ ${time} ⋯`;
    const width = pen.measureText(text).width;
    const left = Math.min(Math.max(x - width / 2, 4), layout.width - width - 4);
    if (left > (out.at(-1)?.right ?? Number.NEGATIVE_INFINITY) + 6) out.push({ left, right: left + width, text });
  }
  return out;
}

const changeText = (count: number): string => (count === 0 ? 'change 0' : formatCount(count));

/** Ticks in every unfolded stretch: round in time, even where the axis is not. */
function rulerTicks(viewport: Viewport, width: number): { u: number; text: string }[] {
  const { axis } = viewport;
  const count = Math.max(2, width / TICK_PX);
  if (axis.kind === 'event') {
    const { ticks } = decimalTicks(viewport.fromU, viewport.toU, count, 1);
    if (ticks.length > 0) return ticks.map(u => ({ u, text: changeText(u) }));
    // So close that no whole number is in view: between which changes is told all the same.
    const middle = (viewport.fromU + viewport.toU) / 2;
    return [{ u: middle, text: changeText(Math.round(middle)) }];
  }
  // Times are whole microseconds: ticks between two of them would all have one name.
  const { step } = decimalTicks(0, viewport.spanU, count, 1);
  const out: { u: number; text: string }[] = [];
  let fromUs = axis.usOfU(viewport.fromU);
  const toUs = axis.usOfU(viewport.toU);
  for (const fold of [...axis.folds, { fromUs: Number.POSITIVE_INFINITY, toUs: Number.POSITIVE_INFINITY }]) {
    const until = Math.min(toUs, fold.fromUs);
    for (let k = Math.ceil(fromUs / step - 1e-9); k * step <= until + step * 1e-9; k++) {
      out.push({ u: axis.uOfUs(k * step), text: formatMoment(k * step, step) });
    }
    if (fold.toUs >= toUs) break;
    fromUs = Math.max(fromUs, fold.toUs);
  }
  if (out.length > 0) return out;
  const middle = (viewport.fromU + viewport.toU) / 2;
  return [{ u: middle, text: formatMoment(Math.floor(axis.usOfU(middle)), step) }];
}

/** A fold is a torn strip with the length of what was left out. */
function drawFold(
  pen: Pen,
  plot: Rect,
  viewport: Viewport,
  fold: { fromUs: number; toUs: number },
  colours: Colours
): void {
  const left = plot.x + viewport.pxOfU(viewport.axis.uOfUs(fold.fromUs), plot.width);
  const right = plot.x + viewport.pxOfU(viewport.axis.uOfUs(fold.toUs), plot.width);
  if (right < plot.x || left > plot.x + plot.width) return;
  pen.save();
  pen.beginPath();
  pen.rect(plot.x, plot.y, plot.width, plot.height + 8);
  pen.clip();
  pen.fillStyle = colours.background;
  pen.globalAlpha = 0.7;
  pen.fillRect(left, plot.y, right - left, plot.height);
  pen.globalAlpha = 1;
  pen.globalAlpha = 0.6;
  pen.strokeStyle = colours.muted;
  pen.lineWidth = 1;
  for (const x of [left, right]) {
    pen.beginPath();
    const tooth = 4;
    pen.moveTo(x, plot.y);
    for (let y = plot.y, k = 0; y < plot.y + plot.height; y += tooth, k++)
      pen.lineTo(x + (k % 2 === 0 ? 1.5 : -1.5), y);
    pen.stroke();
  }
  pen.restore();
}

/** `record_function` regions as bars above the plot, nested ones below their parents. */
export function drawRegions(
  pen: Pen,
  layout: Layout,
  viewport: Viewport,
  regions: readonly PlacedRegion[],
  colours: Colours
): void {
  const { regions: area, plot } = layout;
  if (area.height === 0) return;
  pen.save();
  pen.beginPath();
  pen.rect(area.x, area.y, area.width, area.height);
  pen.clip();
  pen.font = FONT;
  pen.textAlign = 'left';
  pen.textBaseline = 'middle';
  // A thousand regions under a pixel each would be noise: what is narrower than a pixel joins its neighbour.
  const rows = Math.round(area.height / REGION_ROW_PX);
  const reached = Array.from({ length: rows }, () => Number.NEGATIVE_INFINITY);
  let nth = 0;
  for (const region of regions) {
    if (region.row >= rows) continue;
    nth += 1;
    const left = area.x + viewport.pxOfU(viewport.axis.uOfUs(region.fromUs), plot.width);
    const right = area.x + viewport.pxOfU(viewport.axis.uOfUs(region.toUs), plot.width);
    if (right < area.x || left > area.x + area.width || right - (reached[region.row] as number) < 1) continue;
    const x = Math.max(left, area.x);
    const width = Math.max(1, Math.min(right, area.x + area.width) - x - 1);
    reached[region.row] = right;
    const y = area.y + region.row * REGION_ROW_PX;
    pen.fillStyle = region.cell === null ? colours.grid : colours.accent;
    // Cells follow each other without a gap: two shades in turn keep them apart.
    pen.globalAlpha = region.cell === null ? 1 : nth % 2 === 0 ? 0.16 : 0.28;
    pen.fillRect(x, y, width, REGION_ROW_PX - 2);
    pen.globalAlpha = 1;
    if (width < 24) continue;
    pen.save();
    pen.beginPath();
    pen.rect(x, y, width, REGION_ROW_PX);
    pen.clip();
    pen.fillStyle = colours.foreground;
    pen.fillText(region.name, x + 4, y + REGION_ROW_PX / 2 - 1);
    pen.restore();
  }
  pen.restore();
}

/** Middle of the markers' names under the plot's top, and in how many rows a grave one may stand. */
const MARKER_LABEL_PX = 18;
const MARKER_ROWS = 3;
/** Markers of little weight closer than this are drawn once. */
const MARKER_PX = 6;

const MARKER_GLYPH: Record<Marker['kind'], string> = {
  oom: 'out of memory',
  retry: 'retry',
  segment_free: 'segments freed',
  overflow: 'recording overflowed',
  exception: 'exception'
};

export function isGrave(kind: Marker['kind']): boolean {
  return kind === 'oom' || kind === 'exception' || kind === 'overflow';
}

export function drawMarkers(
  pen: Pen,
  layout: Layout,
  viewport: Viewport,
  markers: readonly Marker[],
  startUs: number,
  labels: Labels,
  colours: Colours
): void {
  const { plot } = layout;
  let free = Number.NEGATIVE_INFINITY;
  let lastX = Number.NEGATIVE_INFINITY;
  for (const marker of markers) {
    const x = plot.x + viewport.pxOfU(viewport.axis.uOfUs(marker.timeUs - startUs), plot.width);
    if (x < plot.x - 1 || x > plot.x + plot.width + 1) continue;
    const grave = isGrave(marker.kind);
    // Thousands of freed segments are one fringe, not thousands of shapes.
    if (!grave && x - lastX < MARKER_PX) continue;
    if (!grave) lastX = x;
    pen.strokeStyle = grave ? colours.danger : colours.muted;
    pen.fillStyle = pen.strokeStyle;
    pen.lineWidth = grave ? 1.5 : 1;
    pen.setLineDash(grave ? [] : [2, 2]);
    pen.beginPath();
    pen.moveTo(x, plot.y);
    pen.lineTo(x, plot.y + plot.height);
    pen.stroke();
    pen.setLineDash([]);
    pen.beginPath();
    pen.moveTo(x - 5, plot.y);
    pen.lineTo(x + 5, plot.y);
    pen.lineTo(x, plot.y + 8);
    pen.closePath();
    pen.fill();
    if (!grave && x < free) continue;
    free = nameMarker(pen, plot, marker.kind, x, free, labels, colours);
  }
}

/** Write a marker's name where there is room right of `free`, and return from where on the next one may stand. */
function nameMarker(
  pen: Pen,
  plot: Rect,
  kind: Marker['kind'],
  x: number,
  free: number,
  labels: Labels,
  colours: Colours
): number {
  const text = MARKER_GLYPH[kind];
  const grave = isGrave(kind);
  const { width } = plateOf(pen, text, 0, 0);
  const left = Math.min(Math.max(x - width / 2, plot.x), plot.x + plot.width - width);
  if (left < free) return free;
  const places = Array.from({ length: grave ? MARKER_ROWS : 1 }, (_, row) =>
    plateOf(pen, text, left, plot.y + MARKER_LABEL_PX + row * LABEL_PX)
  );
  // What ended the cell is named even where nothing is free.
  const at = labels.place(places) ?? (grave ? (places[0] as Rect) : null);
  if (at === null) return free;
  plate(pen, text, at, grave ? colours.danger : colours.muted, colours);
  return left + width + 4;
}
