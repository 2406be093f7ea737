import { expect, test } from 'vitest';
import { bruteTotals, random, randomDocument } from '../../testing/documents';
import { eventAxis, timeAxis } from '../axis/axis';
import { findFolds } from '../axis/folds';
import { Viewport } from '../axis/viewport';
import { filterBanding, HIDDEN, makeBanding } from './bands';
import { sampleColumns } from './columns';
import { Curves, Extremes } from './curves';
import { readRecording } from './steps';

function load(seed: number, changes: number, groups = 5) {
  const { truth, document } = randomDocument(seed, changes, groups);
  const recording = readRecording(document, 0);
  const banding = makeBanding(recording, document.header, 'line');
  return { truth, document, recording, banding, curves: new Curves(recording, banding) };
}

test.each([0, 1, 2, 17, 300, 2000])('totals equal brute force at every moment (%i changes)', changes => {
  const { truth, curves } = load(changes + 1, changes);
  // Frees come before allocations of the same change, but each change is one of both: the moments are the same.
  expect(Array.from(curves.total)).toEqual(bruteTotals(truth));
});

test('the bands of every moment add up to its total and equal brute force', () => {
  const { truth, curves, banding } = load(5, 1200);
  for (const moment of [0, 1, 255, 256, 257, 900, 511, 1200, 3]) {
    const bands = curves.composition(moment);
    expect(bands.reduce((a, b) => a + b, 0)).toBe(curves.total[moment]);
    for (const [k, band] of banding.bands.entries()) {
      const group = band.groups[0];
      const expected = bruteTotals({ ...truth, times: truth.times.slice(0, moment) }, life => life.group === group);
      expect(bands[k]).toBe(expected[moment]);
    }
  }
});

test('extremes equal brute force on random stretches', () => {
  const next = random(3);
  const values = Float64Array.from({ length: 5000 }, () => Math.floor(next() * 100));
  const extremes = new Extremes(values);
  for (let k = 0; k < 500; k++) {
    const from = Math.floor(next() * 5000);
    const to = from + Math.floor(next() * (5000 - from));
    const part = values.slice(from, to + 1);
    const most = part.reduce((a, b) => Math.max(a, b));
    const least = part.reduce((a, b) => Math.min(a, b));
    expect(extremes.greatest(from, to)).toBe(from + part.indexOf(most));
    expect(extremes.least(from, to)).toBe(from + part.indexOf(least));
  }
});

test.each(['time', 'folded', 'event'])('the drawn envelope equals brute force at every zoom (%s axis)', kind => {
  const { truth, curves, recording } = load(11, 3000);
  const { time } = recording.steps;
  const { spanUs } = recording;
  const axis =
    kind === 'event'
      ? eventAxis(time, spanUs)
      : timeAxis(time, spanUs, kind === 'folded' ? findFolds(time, spanUs) : []);
  const totals = bruteTotals(truth);
  const positions = truth.times.map((_, i) => axis.uOfStep(i));
  const next = random(9);
  for (let zoom = 1; zoom < 1e5; zoom *= 3) {
    const span = axis.length / zoom;
    const from = next() * (axis.length - span);
    const viewport = new Viewport(axis, from, from + span);
    const columns = sampleColumns(curves, viewport, 50);
    for (let c = 0; c < 50; c++) {
      const left = viewport.fromU + (c / 50) * viewport.spanU;
      const right = viewport.fromU + ((c + 1) / 50) * viewport.spanU;
      // Moments that last into the column: after a step before its right end, until a step not before its left end.
      const inside = totals.filter(
        (_, m) =>
          (m === 0 || (positions[m - 1] as number) < right || (c === 49 && (positions[m - 1] as number) <= right)) &&
          (m === totals.length - 1 || (positions[m] as number) >= left)
      );
      expect(columns.high[c]).toBe(Math.max(...inside));
      expect(columns.low[c]).toBe(Math.min(...inside));
      expect(totals[columns.moment[c] as number]).toBe(columns.high[c]);
    }
  }
});

test('what is hidden leaves totals and comes back', () => {
  const { truth, recording, banding, curves } = load(21, 800);
  const hidden = banding.bands[1];
  const less = new Curves(recording, filterBanding(banding, new Set([hidden?.key ?? '']), null, null));
  expect(Array.from(less.total)).toEqual(bruteTotals(truth, life => life.group !== hidden?.groups[0]));
  expect(Array.from(curves.total)).toEqual(bruteTotals(truth));
});

test('more lines than colours: the smallest share one band, and nothing is lost', () => {
  const { truth, recording, banding, curves } = load(31, 1500, 40);
  expect(banding.bands.length).toBe(10);
  expect(banding.bands.flatMap(band => band.groups).sort((a, b) => a - b)).toEqual([...Array(40).keys()]);
  expect(banding.ofLifetime.includes(HIDDEN)).toBe(false);
  expect(recording.lifetimes.count).toBe(truth.lives.length);
  expect(Array.from(curves.total)).toEqual(bruteTotals(truth));
  const slots = banding.bands.flatMap(band => (band.tone.kind === 'slot' ? [band.tone.slot] : []));
  expect(new Set(slots).size).toBe(slots.length);
});

test.each(['size', 'lifetime', 'stream', 'stack', 'cell'] as const)('colouring by %s keeps every byte', by => {
  const { truth, recording, document } = load(41, 700);
  const banding = makeBanding(recording, document.header, by);
  expect(Array.from(new Curves(recording, banding).total)).toEqual(bruteTotals(truth));
});
