/**
 * The stacked bands: as pixels where the pen can (the screen), else as one polygon a band (SVG, saved pictures). However
 * many allocations there are, a frame has a dozen shapes.
 */

import type { Columns } from '../model/columns';
import type { Curves } from '../model/curves';
import { type Colours, mix, parseColour, type Rgb, toneColour } from './palette';
import type { Pen, Rect } from './pen';
import { rasterise, type StackPaint, type StackShape } from './raster';
import type { Scale } from './scale';

/** How strongly bands outside the emphasis are drawn. */
const FADED = 0.22;
/** How much the part of a column that is occupied only now and then is bleached. */
const BLEACH = 0.45;

export interface StackStyle {
  colours: Colours;
  /** Bands to stress, or null for all. */
  emphasis: ReadonlySet<number> | null;
  /** Pixels per CSS pixel. */
  density: number;
}

export function drawStack(
  pen: Pen,
  plot: Rect,
  scale: Scale,
  curves: Curves,
  columns: Columns,
  style: StackStyle
): void {
  const levels = stackLevels(curves, columns, scale);
  const edges = bleachedEdges(columns, scale);
  if (pen.blit !== undefined) {
    const height = Math.round(plot.height * style.density);
    const toRows = (values: Float64Array): Float64Array => values.map(y => ((y - plot.y) / plot.height) * height);
    const shape: StackShape = {
      width: columns.count,
      height,
      levels: levels.map(toRows),
      high: toRows(edges.high),
      bleachedTo: toRows(edges.bleachedTo)
    };
    const paint = stackPaint(curves, style);
    pen.blit(columns.count, height, plot, pixels => rasterise(pixels, shape, paint));
    return;
  }
  const { bands } = curves.banding;
  const left = (c: number): number => plot.x + (c / columns.count) * plot.width;
  for (let b = 0; b < bands.length; b++) {
    const { tone } = bands[b] as (typeof bands)[number];
    pen.globalAlpha = style.emphasis === null || style.emphasis.has(b) ? 1 : FADED;
    pen.fillStyle = toneColour(tone, style.colours);
    traceBand(pen, levels, b, columns.count, left);
    pen.fill();
  }
  pen.globalAlpha = 1;
  drawSummedPeaks(pen, levels, bands.length, edges.high, left, style.colours);
  bleach(pen, edges, left, style.colours);
  drawEdges(pen, levels, bands.length, columns.count, left, style.colours);
}

function stackPaint(curves: Curves, { colours, emphasis }: StackStyle): StackPaint {
  const rgb = (colour: string): Rgb => {
    const [r, g, b] = parseColour(colour) ?? (colours.dark ? [17, 20, 24] : [255, 255, 255]);
    return [r, g, b];
  };
  const background = rgb(colours.background);
  return {
    fills: curves.banding.bands.map(({ tone }, b) => {
      const fade = emphasis === null || emphasis.has(b) ? 0 : 1 - FADED;
      const shown = (colour: string): Rgb => mix(rgb(colour), background, fade);
      return {
        colour: shown(toneColour(tone, colours)),
        hatch: tone.kind === 'before' ? shown(colours.hatch) : null
      };
    }),
    summed: rgb(colours.other),
    background,
    foreground: rgb(colours.foreground),
    bleach: BLEACH
  };
}

/** Heights in px of the band borders, border-major: `levels[b][c]` is the bottom of band b in column c. */
function stackLevels(curves: Curves, columns: Columns, scale: Scale): Float64Array[] {
  const bands = curves.banding.bands.length;
  const levels = Array.from({ length: bands + 1 }, () => new Float64Array(columns.count));
  const bottom = scale.y(0);
  let previous = -1;
  for (let c = 0; c < columns.count; c++) {
    const moment = columns.moment[c] as number;
    if (moment === previous) {
      for (const level of levels) level[c] = level[c - 1] as number;
      continue;
    }
    previous = moment;
    const composition = curves.composition(moment);
    const limit = columns.high[c] as number;
    let sum = 0;
    (levels[0] as Float64Array)[c] = bottom;
    for (let b = 0; b < bands; b++) {
      sum += composition[b] as number;
      (levels[b + 1] as Float64Array)[c] = scale.y(Math.min(sum, limit));
    }
  }
  return levels;
}

function traceBand(pen: Pen, levels: Float64Array[], band: number, count: number, left: (c: number) => number): void {
  const lower = levels[band] as Float64Array;
  const upper = levels[band + 1] as Float64Array;
  pen.beginPath();
  pen.moveTo(left(0), upper[0] as number);
  for (let c = 1; c < count; c++) {
    if (upper[c] === upper[c - 1]) continue;
    pen.lineTo(left(c), upper[c - 1] as number);
    pen.lineTo(left(c), upper[c] as number);
  }
  pen.lineTo(left(count), upper[count - 1] as number);
  pen.lineTo(left(count), lower[count - 1] as number);
  for (let c = count - 1; c > 0; c--) {
    if (lower[c] === lower[c - 1]) continue;
    pen.lineTo(left(c), lower[c] as number);
    pen.lineTo(left(c), lower[c - 1] as number);
  }
  pen.lineTo(left(0), lower[0] as number);
  pen.closePath();
}

/** Where each column's top is, and down to where it is occupied only now and then. */
function bleachedEdges(columns: Columns, scale: Scale): { high: Float64Array; bleachedTo: Float64Array } {
  const high = columns.high.map(bytes => scale.y(bytes));
  const low = columns.low.map(bytes => scale.y(bytes));
  const last = columns.count - 1;
  // A column at the flank of a wide step holds both its levels; its neighbours say whether that is more than an edge.
  const bleachedTo = high.map((top, c) => {
    const calm = Math.min(low[Math.max(0, c - 1)] as number, low[Math.min(last, c + 1)] as number);
    return Math.min(low[c] as number, Math.max(calm, top));
  });
  return { high, bleachedTo };
}

/** Memory of small allocations that came and went inside a bin: in the exact envelope, in no single band. */
function drawSummedPeaks(
  pen: Pen,
  levels: Float64Array[],
  bands: number,
  high: Float64Array,
  left: (c: number) => number,
  colours: Colours
): void {
  const top = levels[bands] as Float64Array;
  pen.fillStyle = colours.other;
  pen.globalAlpha = 0.5;
  pen.beginPath();
  for (let c = 0; c < high.length; ) {
    let stop = c + 1;
    while (stop < high.length && top[stop] === top[c] && high[stop] === high[c]) stop += 1;
    const height = (top[c] as number) - (high[c] as number);
    if (height > 0.5) pen.rect(left(c), high[c] as number, left(stop) - left(c), height);
    c = stop;
  }
  pen.fill();
  pen.globalAlpha = 1;
}

/** A column shows its fullest moment; what is not there all through it is bleached, so that spikes look like spikes. */
function bleach(
  pen: Pen,
  { high, bleachedTo }: { high: Float64Array; bleachedTo: Float64Array },
  left: (c: number) => number,
  colours: Colours
): void {
  pen.fillStyle = colours.background;
  pen.globalAlpha = BLEACH;
  pen.beginPath();
  for (let c = 0; c < high.length; c++) {
    const height = (bleachedTo[c] as number) - (high[c] as number);
    if (height >= 1) pen.rect(left(c), high[c] as number, left(c + 1) - left(c), height);
  }
  pen.fill();
  pen.globalAlpha = 1;
}

/** Runs shorter than this have no border: between spikes a pixel wide it would be all that one sees. */
const LEAST_RUN_PX = 2;

/**
 * A line of background between bands, and a darker one along the top: borders that need no colour to be seen. Only
 * level runs get one; what stands upright is told by its fill.
 */
function drawEdges(
  pen: Pen,
  levels: Float64Array[],
  bands: number,
  count: number,
  left: (c: number) => number,
  colours: Colours
): void {
  for (let b = 1; b <= bands; b++) {
    const level = levels[b] as Float64Array;
    const below = levels[b - 1] as Float64Array;
    const top = b === bands;
    pen.strokeStyle = top ? colours.foreground : colours.background;
    pen.lineWidth = top ? 1 : 0.75;
    pen.globalAlpha = top ? 0.5 : 0.7;
    pen.beginPath();
    for (let c = 0; c < count; ) {
      let stop = c + 1;
      while (stop < count && level[stop] === level[c]) stop += 1;
      // A band thinner than its border would vanish under it.
      const visible = top || (below[c] as number) - (level[c] as number) > 2;
      if (visible && left(stop) - left(c) >= LEAST_RUN_PX) {
        pen.moveTo(left(c), level[c] as number);
        pen.lineTo(left(stop), level[c] as number);
      }
      c = stop;
    }
    pen.stroke();
  }
  pen.globalAlpha = 1;
}
