import { describe, expect, test } from 'vitest';
import { eventAxis, timeAxis } from './axis';
import { findFolds } from './folds';
import { byteTicks, decimalTicks } from './ticks';
import { Viewport } from './viewport';

/** Twenty busy steps of 1 ms, six idle seconds, twenty more. */
const times = Float64Array.from({ length: 40 }, (_, i) => i * 1000 + (i >= 20 ? 6e6 : 0));
const spanUs = 6_040_000;

describe('folds', () => {
  test('a long idle stretch is folded, short ones are not', () => {
    expect(findFolds(times, spanUs)).toEqual([{ fromUs: 19_000, toUs: 6_020_000 }]);
  });
  test('several, one uncovered by the other', () => {
    const two = Float64Array.from({ length: 60 }, (_, i) => i * 1000 + (i >= 20 ? 6e6 : 0) + (i >= 40 ? 300_000 : 0));
    const folds = findFolds(two, 6_360_000);
    expect(folds.map(fold => fold.toUs - fold.fromUs)).toEqual([6_001_000, 301_000]);
  });
  test('pauses that nobody notices stay, unless there is nothing else', () => {
    // A cell of 49 ms with five pauses of 6 ms.
    const cell = Float64Array.from({ length: 60 }, (_, i) => i * 300 + Math.floor(i / 10) * 6000);
    expect(findFolds(cell, 49_000)).toEqual([]);
    const spikes = Float64Array.from({ length: 40 }, (_, i) => i * 10 + (i >= 20 ? 50_000 : 0));
    expect(findFolds(spikes, 50_400)).toEqual([{ fromUs: 190, toUs: 50_200 }]);
  });
  test('equal pauses between the cells of a notebook are folded all', () => {
    const cells = Float64Array.from({ length: 600 }, (_, i) => i * 1000 + Math.floor(i / 30) * 120e6);
    const spanUs = 600_000 + 19 * 120e6;
    const folds = findFolds(cells, spanUs);
    expect(folds.length).toBe(19);
    const axis = timeAxis(cells, spanUs, folds);
    expect(axis.length).toBeGreaterThan(600_000);
    expect(axis.length).toBeLessThan(600_000 * 1.31);
  });
  test('more pauses than a picture has room for are none', () => {
    const many = Float64Array.from({ length: 2000 }, (_, i) => i * 10 + Math.floor(i / 10) * 1e6);
    expect(findFolds(many, 20_000 + 199e6)).toEqual([]);
  });
  test('idle before the first and after the last step', () => {
    const late = Float64Array.from({ length: 40 }, (_, i) => 1e6 + i * 1000);
    expect(findFolds(late, 3e6)).toEqual([
      { fromUs: 0, toUs: 1e6 },
      { fromUs: 1_039_000, toUs: 3e6 }
    ]);
  });
  test('nothing to fold: steady, few steps, none', () => {
    expect(
      findFolds(
        Float64Array.from({ length: 100 }, (_, i) => i * 10),
        1000
      )
    ).toEqual([]);
    expect(findFolds(Float64Array.of(0, 5e6), 1e7)).toEqual([]);
    expect(findFolds(new Float64Array(), 1e7)).toEqual([]);
  });
  test('all steps at one moment are not folded to nothing', () => {
    expect(findFolds(new Float64Array(50).fill(500), 1000)).toEqual([]);
  });
});

describe.each([
  ['time', timeAxis(times, spanUs, [])],
  ['folded', timeAxis(times, spanUs, findFolds(times, spanUs))],
  ['event', eventAxis(times, spanUs)]
])('%s axis', (_name, axis) => {
  test('positions rise with time and never leave the axis', () => {
    let last = 0;
    for (let us = 0; us <= spanUs; us += 997) {
      const u = axis.uOfUs(us);
      expect(u).toBeGreaterThanOrEqual(last);
      last = u;
    }
    expect(axis.uOfUs(spanUs)).toBeCloseTo(axis.length, 6);
  });
  test('moments count the steps up to a position', () => {
    for (let step = 0; step < times.length; step++) {
      const u = axis.uOfStep(step);
      expect(axis.momentAt(u + 1e-6)).toBe(step + 1);
      expect(axis.momentBefore(u - 1e-6)).toBe(step);
    }
    expect(axis.momentAt(axis.length)).toBe(times.length);
    expect(axis.momentBefore(0)).toBe(0);
  });
});

test('a folded axis keeps busy time at one scale and leads back', () => {
  const axis = timeAxis(times, spanUs, findFolds(times, spanUs));
  expect(axis.length).toBeLessThan(60_000);
  expect(axis.uOfUs(10_000) - axis.uOfUs(5_000)).toBeCloseTo(5_000, 6);
  expect(axis.uOfUs(6_030_000) - axis.uOfUs(6_025_000)).toBeCloseTo(5_000, 6);
  for (let us = 0; us <= spanUs; us += 1009) expect(axis.usOfU(axis.uOfUs(us))).toBeCloseTo(us, 3);
});

describe('viewport', () => {
  const axis = timeAxis(times, spanUs, []);
  test('zoom keeps the point under the mouse', () => {
    const viewport = new Viewport(axis).zoom(3, 0.25).zoom(2, 0.7);
    const closer = viewport.zoom(1.7, 0.4);
    expect(closer.uOfPx(400, 1000)).toBeCloseTo(viewport.uOfPx(400, 1000), 6);
  });
  test('it stays on the axis', () => {
    const viewport = new Viewport(axis).zoom(10, 0.5);
    expect(viewport.pan(-100).fromU).toBe(0);
    expect(viewport.pan(100).toU).toBe(axis.length);
    expect(viewport.zoom(1e-9, 0.3).isWhole).toBe(true);
    expect(viewport.zoom(1e12, 0.3).spanU).toBe(0.5);
  });
});

test('ticks are round', () => {
  expect(decimalTicks(0, 95, 5).ticks).toEqual([0, 20, 40, 60, 80]);
  // Counts have no tenths, and a step of 0.1 would hit no whole number exactly.
  expect(decimalTicks(311_233.6, 311_235.4, 12, 1).ticks).toEqual([311_234, 311_235]);
  expect(byteTicks(3.5 * 2 ** 30, 4)).toEqual([0, 1, 2, 3, 4].map(g => g * 2 ** 30));
});
