import { expect, test } from 'vitest';
import { random } from '../../testing/documents';
import type { Rgb } from './palette';
import { rasterise, type StackPaint } from './raster';

const COLOURS: Rgb[] = [
  [200, 0, 0],
  [0, 200, 0],
  [0, 0, 200]
];
const paint: StackPaint = {
  fills: COLOURS.map(colour => ({ colour, hatch: null })),
  summed: [90, 90, 90],
  background: [255, 255, 255],
  foreground: [0, 0, 0],
  bleach: 0.5
};
const rgb = (pixel: number): number[] => [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];

/** Columns with random band borders; none level over two columns, so that no border is drawn over the fills. */
function shapeOf(width: number, height: number) {
  const next = random(7);
  const levels = Array.from({ length: 4 }, () => new Float64Array(width));
  for (let x = 0; x < width; x++) {
    const cuts = [next(), next(), next()].map(share => share * height).sort((a, b) => b - a);
    (levels[0] as Float64Array)[x] = height;
    for (const [k, cut] of cuts.entries()) (levels[k + 1] as Float64Array)[x] = cut;
  }
  const high = (levels[3] as Float64Array).map(y => y / 2);
  return { width, height, levels, high, bleachedTo: high.slice() };
}

test('every pixel has the colour of the band that lies there, above the stack none', () => {
  const shape = shapeOf(40, 60);
  const pixels = new Uint32Array(40 * 60);
  rasterise(pixels, shape, paint);
  for (let x = 0; x < 40; x++) {
    for (let y = 0; y < 60; y++) {
      const edge = (border: ArrayLike<number>): number => Math.round(border[x] as number);
      const band = [2, 1, 0].find(
        b => y >= edge(shape.levels[b + 1] as Float64Array) && y < edge(shape.levels[b] as Float64Array)
      );
      const pixel = pixels[y * 40 + x] as number;
      if (band !== undefined) expect(rgb(pixel)).toEqual(COLOURS[band]);
      else if (y >= edge(shape.high)) expect(rgb(pixel)).toEqual([173, 173, 173]);
      else expect(pixel).toBe(0);
    }
  }
});

test('what is not there all through a column is bleached', () => {
  const shape = {
    width: 1,
    height: 10,
    levels: [10, 4, 4, 4].map(y => Float64Array.of(y)),
    high: Float64Array.of(4),
    bleachedTo: Float64Array.of(7)
  };
  const pixels = new Uint32Array(10);
  rasterise(pixels, shape, paint);
  expect([...pixels].map(pixel => pixel & 255)).toEqual([0, 0, 0, 0, 228, 228, 228, 200, 200, 200]);
});

test('level runs get a border that parts neighbours without colour', () => {
  const flat = (y: number): Float64Array => new Float64Array(4).fill(y);
  const shape = { width: 4, height: 20, levels: [20, 12, 6, 6].map(flat), high: flat(6), bleachedTo: flat(6) };
  const pixels = new Uint32Array(80);
  rasterise(pixels, shape, paint);
  // Towards the background between bands, towards the foreground on top.
  expect(rgb(pixels[12 * 4] as number)).toEqual([239, 179, 179]);
  expect(rgb(pixels[13 * 4] as number)).toEqual([200, 0, 0]);
  expect(((pixels[6 * 4 + 1] as number) >> 8) & 255).toBe(100);
});
