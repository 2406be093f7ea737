/**
 * The stack as pixels. On a machine without a graphics processor (remote desktops, CI) filling ten jagged polygons
 * costs tens of milliseconds a frame; writing each pixel once costs two, however restless the memory is.
 */

import { mix, type Rgb } from './palette';

/** The stack in pixels of the raster: y from its top, one value a column. */
export interface StackShape {
  width: number;
  height: number;
  /** Border-major: `levels[b]` is the bottom of band b, `levels[b + 1]` its top. */
  levels: readonly Float64Array[];
  /** Top of everything, small summed allocations included. */
  high: Float64Array;
  /** Down to here a column is occupied only now and then. */
  bleachedTo: Float64Array;
}

export interface StackPaint {
  /** One colour a band, and the second one of a hatched band or null. */
  fills: readonly { colour: Rgb; hatch: Rgb | null }[];
  summed: Rgb;
  background: Rgb;
  foreground: Rgb;
  /** Share of background in what is bleached. */
  bleach: number;
}

/** Slanted lines this many pixels apart. */
const HATCH_PX = 7;
/** Runs shorter than this have no border: between spikes a pixel wide it would be all that one sees. */
const LEAST_RUN = 2;
/** A band thinner than this would vanish under its border. */
const LEAST_BAND = 2.5;
const BORDER = 0.7;
const TOP_BORDER = 0.5;

/** RGBA bytes as `ImageData` has them, read as one little-endian number. */
function pack([r, g, b]: Rgb): number {
  return ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;
}

function unpack(pixel: number): Rgb {
  return [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
}

/** Paint the stack; pixels above it stay transparent. `pixels` has width × height entries, all 0. */
export function rasterise(pixels: Uint32Array, shape: StackShape, paint: StackPaint): void {
  fillBands(pixels, shape, paint);
  for (let b = 1; b < shape.levels.length; b++) drawBorder(pixels, shape, paint, b);
}

/** What fills a stretch of a column: full colour and bleached, for the ground and, where hatched, for the lines. */
interface Ink {
  strong: number;
  pale: number;
  lines: { strong: number; pale: number } | null;
}

function fillBands(pixels: Uint32Array, shape: StackShape, paint: StackPaint): void {
  const { width, height, levels, high, bleachedTo } = shape;
  const ink = (colour: Rgb): { strong: number; pale: number } => ({
    strong: pack(colour),
    pale: pack(mix(colour, paint.background, paint.bleach))
  });
  const inks: Ink[] = paint.fills.map(({ colour, hatch }) => ({
    ...ink(colour),
    lines: hatch === null ? null : ink(hatch)
  }));
  // Above the last band: small allocations that came and went between two known sums.
  inks.push({ ...ink(mix(paint.summed, paint.background, 0.5)), lines: null });
  const row = (y: number): number => Math.min(height, Math.max(0, Math.round(y)));
  for (let x = 0; x < width; x++) {
    const paleTo = row(bleachedTo[x] as number);
    let y = row(high[x] as number);
    for (let b = inks.length - 1; b >= 0; b--) {
      const until = row((levels[b] as Float64Array)[x] as number);
      const fill = inks[b] as Ink;
      if (fill.lines === null) fillPlain(pixels, width, x, y, until, paleTo, fill);
      else fillHatched(pixels, width, x, y, until, paleTo, fill, fill.lines);
      y = Math.max(y, until);
    }
  }
}

function fillPlain(
  pixels: Uint32Array,
  width: number,
  x: number,
  from: number,
  until: number,
  paleTo: number,
  ink: Ink
): void {
  let y = from;
  for (const split = Math.min(until, paleTo); y < split; y++) pixels[y * width + x] = ink.pale;
  for (; y < until; y++) pixels[y * width + x] = ink.strong;
}

function fillHatched(
  pixels: Uint32Array,
  width: number,
  x: number,
  from: number,
  until: number,
  paleTo: number,
  ink: Ink,
  lines: { strong: number; pale: number }
): void {
  for (let y = from; y < until; y++) {
    const here = (x + y) % HATCH_PX === 0 ? lines : ink;
    pixels[y * width + x] = y < paleTo ? here.pale : here.strong;
  }
}

/** A line of background along the top of a band, of foreground along the top of all: only where it runs level. */
function drawBorder(pixels: Uint32Array, shape: StackShape, paint: StackPaint, border: number): void {
  const { width, height, levels } = shape;
  const level = levels[border] as Float64Array;
  const below = levels[border - 1] as Float64Array;
  const last = levels[levels.length - 1] as Float64Array;
  for (let x = 0; x < width; ) {
    const y = level[x] as number;
    // Bands above may be empty here.
    const top = last[x] === y;
    let stop = x + 1;
    while (stop < width && level[stop] === y) stop += 1;
    const visible = (below[x] as number) - y > (top ? 0 : LEAST_BAND);
    const line = Math.round(y);
    if (visible && stop - x >= LEAST_RUN && line >= 0 && line < height) {
      for (let at = line * width + x; at < line * width + stop; at++) {
        const under = unpack(pixels[at] as number);
        pixels[at] = pack(top ? mix(under, paint.foreground, TOP_BORDER) : mix(under, paint.background, BORDER));
      }
    }
    x = stop;
  }
}
