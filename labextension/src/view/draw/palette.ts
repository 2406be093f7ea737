/**
 * Every colour of the picture, for both themes.
 *
 * The ten slots were found by annealing over OKLab: the least distance between any two is as great as it gets under
 * normal sight, deuteranopia and protanopia at once, with a contrast to the background of at least 2.4 (light) or
 * 3 (dark). `palette.test.ts` holds them to it. Neighbours in the stack are parted by a line of the background
 * besides, so that no reader depends on hue alone.
 */

import type { Tone } from '../model/bands';

export interface Colours {
  dark: boolean;
  background: string;
  foreground: string;
  muted: string;
  grid: string;
  accent: string;
  danger: string;
  slots: readonly string[];
  /** Ends of the ordered scale, dark end first on a light ground. */
  ramp: readonly [Rgb, Rgb, Rgb];
  before: readonly string[];
  hatch: string;
  unknown: string;
  other: string;
  lines: Record<LineName, string>;
}

export type LineName =
  | 'allocated'
  | 'reserved'
  | 'device used'
  | 'process used'
  | 'host used'
  | 'pinned host'
  | 'limit'
  | 'outside torch';
export type Rgb = readonly [number, number, number];

export const LIGHT: Colours = {
  dark: false,
  background: '#ffffff',
  foreground: '#1b1f24',
  muted: '#5b6470',
  grid: '#e6e8eb',
  accent: '#0b62d6',
  danger: '#b3121d',
  slots: ['#3698f9', '#e69228', '#1dbe84', '#cd61b6', '#7757e9', '#dd4b20', '#2a37c0', '#853f13', '#4f7b76', '#852b74'],
  ramp: [
    [32, 49, 122],
    [42, 140, 160],
    [214, 190, 70]
  ],
  before: ['#c6cad0', '#b3b8c0', '#d5d8dc'],
  hatch: '#a9afb8',
  unknown: '#8f969f',
  other: '#6d747d',
  lines: {
    allocated: '#1b1f24',
    reserved: '#1b1f24',
    'device used': '#5b6470',
    'process used': '#0b62d6',
    'host used': '#5b6470',
    'pinned host': '#1a7f37',
    limit: '#b3121d',
    'outside torch': '#8a5a00'
  }
};

export const DARK: Colours = {
  dark: true,
  background: '#111418',
  foreground: '#e8eaed',
  muted: '#a2abb6',
  grid: '#2a2f36',
  accent: '#7ab4ff',
  danger: '#ff8079',
  slots: ['#b0c1fe', '#f2c52a', '#22f3c4', '#9e7eab', '#575bbd', '#9d5205', '#0f99ee', '#dd873c', '#75b49b', '#a33984'],
  ramp: [
    [244, 222, 120],
    [60, 160, 170],
    [92, 92, 190]
  ],
  before: ['#4a515b', '#5a626d', '#3c434c'],
  hatch: '#6a737e',
  unknown: '#7d8590',
  other: '#9aa2ad',
  lines: {
    allocated: '#e8eaed',
    reserved: '#e8eaed',
    'device used': '#a2abb6',
    'process used': '#7ab4ff',
    'host used': '#a2abb6',
    'pinned host': '#56d364',
    limit: '#ff8079',
    'outside torch': '#e0b050'
  }
};

/** Dashes tell the lines apart without colour. */
export const DASHES: Record<LineName, readonly number[]> = {
  allocated: [],
  reserved: [],
  'device used': [2, 3],
  'process used': [7, 3],
  'host used': [2, 3],
  'pinned host': [9, 2, 1, 2],
  limit: [10, 3, 2, 3],
  'outside torch': [4, 2]
};

export function toneColour(tone: Tone, colours: Colours): string {
  switch (tone.kind) {
    case 'slot':
      return colours.slots[tone.slot % colours.slots.length] as string;
    case 'ramp':
      return css(rampColour(tone.at, colours.ramp));
    case 'before':
      return colours.before[tone.nth % colours.before.length] as string;
    case 'unknown':
      return colours.unknown;
    case 'other':
      return colours.other;
  }
}

function rampColour(at: number, [low, middle, high]: readonly [Rgb, Rgb, Rgb]): Rgb {
  const [from, to, share] = at < 0.5 ? [low, middle, at * 2] : [middle, high, at * 2 - 1];
  return [0, 1, 2].map(k => (from[k] as number) + share * ((to[k] as number) - (from[k] as number))) as unknown as Rgb;
}

/** `share` of `b` in `a`. */
export function mix(a: Rgb, b: Rgb, share: number): Rgb {
  return [a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1]), a[2] + share * (b[2] - a[2])];
}

/** Red, green and blue (0 to 255) and alpha (0 to 1) of a `#rrggbb` or computed `rgb()` colour; null for others. */
export function parseColour(colour: string): readonly [number, number, number, number] | null {
  if (/^#[0-9a-f]{6}$/i.test(colour)) return [...parseHex(colour), 1];
  const parts = /^rgba?\(([^)]+)\)$/
    .exec(colour)?.[1]
    ?.split(/[\s,/]+/)
    .map(Number);
  if (parts === undefined || parts.length < 3 || parts.some(Number.isNaN)) return null;
  return [parts[0] as number, parts[1] as number, parts[2] as number, parts[3] ?? 1];
}

function css([r, g, b]: Rgb): string {
  return `#${[r, g, b].map(v => Math.round(v).toString(16).padStart(2, '0')).join('')}`;
}

export function parseHex(colour: string): Rgb {
  return [1, 3, 5].map(at => Number.parseInt(colour.slice(at, at + 2), 16)) as unknown as Rgb;
}
