import { describe, expect, test } from 'vitest';
import { type Colours, DARK, LIGHT, parseHex } from './palette';

type V = [number, number, number];
const linear = (colour: string): V =>
  parseHex(colour).map(v =>
    v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4
  ) as unknown as V;
const luminance = ([r, g, b]: V): number => 0.2126 * r + 0.7152 * g + 0.0722 * b;
const contrast = (a: string, b: string): number => {
  const [x, y] = [luminance(linear(a)), luminance(linear(b))].sort((p, q) => q - p) as [number, number];
  return (x + 0.05) / (y + 0.05);
};
const times = (m: V[], v: V): V => m.map(row => row[0] * v[0] + row[1] * v[1] + row[2] * v[2]) as V;

/** Full deuteranopia and protanopia in linear RGB, after Machado, Oliveira and Fernandes (2009). */
const SIGHT: Record<string, V[]> = {
  normal: [
    [1, 0, 0],
    [0, 1, 0],
    [0, 0, 1]
  ],
  deuteranopia: [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.01182, 0.04294, 0.968881]
  ],
  protanopia: [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998]
  ]
};

function oklab(rgb: V): V {
  const lms = times(
    [
      [0.4122214708, 0.5363325363, 0.0514459929],
      [0.2119034982, 0.6806995451, 0.1073969566],
      [0.0883024619, 0.2817188376, 0.6299787005]
    ],
    rgb
  );
  return times(
    [
      [0.2104542553, 0.793617785, -0.0040720468],
      [1.9779984951, -2.428592205, 0.4505937099],
      [0.0259040371, 0.7827717662, -0.808675766]
    ],
    lms.map(v => Math.cbrt(Math.max(0, v))) as V
  );
}

function leastDistance(colours: readonly string[], sight: V[]): number {
  const points = colours.map(colour => oklab(times(sight, linear(colour))));
  let least = Number.POSITIVE_INFINITY;
  for (const [i, a] of points.entries()) {
    for (const b of points.slice(i + 1)) least = Math.min(least, Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]));
  }
  return least;
}

describe.each([
  ['light', LIGHT, 2.35],
  ['dark', DARK, 3]
] as [string, Colours, number][])('%s palette', (_name, colours, ground) => {
  test('bands stand out from the background', () => {
    for (const slot of colours.slots) expect(contrast(slot, colours.background)).toBeGreaterThanOrEqual(ground);
  });
  test('text and lines are readable', () => {
    for (const colour of [colours.foreground, colours.muted, colours.accent, colours.danger]) {
      expect(contrast(colour, colours.background)).toBeGreaterThanOrEqual(4.5);
    }
    for (const colour of Object.values(colours.lines))
      expect(contrast(colour, colours.background)).toBeGreaterThanOrEqual(3);
  });
  // 0.02 in OKLab is a just noticeable difference of patches side by side.
  test.each([
    ['normal', 0.13],
    ['deuteranopia', 0.09],
    ['protanopia', 0.09]
  ] as const)('any two bands differ under %s', (sight, least) => {
    expect(leastDistance(colours.slots, SIGHT[sight] as V[])).toBeGreaterThanOrEqual(least);
  });
  test('the greys differ from every slot', () => {
    for (const slot of colours.slots) {
      for (const grey of [colours.before[0] as string, colours.other, colours.unknown]) {
        expect(leastDistance([slot, grey], SIGHT.normal as V[])).toBeGreaterThan(0.04);
      }
    }
  });
});
