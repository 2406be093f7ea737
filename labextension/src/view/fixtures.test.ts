/** Documents that Python wrote, and what it says that a reader must find in them. */

import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { countUpTo, timeAxis } from './axis/axis';
import { Viewport } from './axis/viewport';
import { decode, type ViewDocument } from './decode';
import { makeBanding } from './model/bands';
import { sampleColumns, widenToEnvelope } from './model/columns';
import { Curves } from './model/curves';
import { LiveIndex } from './model/live';
import { readRecording } from './model/steps';
import { Session } from './session';

const FOLDER = '../tests/data/view';

interface Expected {
  sentence: string;
  devices: {
    key: string;
    allocatedPeak: number;
    peakUs: number | null;
    allocatedAfter: number;
    lifetimes: number;
    moments: {
      timeUs: number;
      allocated: number;
      byGroup: Record<string, number>;
      bySize: Record<string, number>;
      byLifetime: Record<string, number>;
      byStream: Record<string, number>;
    }[];
  }[];
}

const load = (name: string): Promise<ViewDocument> => decode(new Uint8Array(readFileSync(`${FOLDER}/${name}.bin`)));
const truth = (name: string): Expected => JSON.parse(readFileSync(`${FOLDER}/${name}.json`, 'utf-8')) as Expected;

test.each(['complete', 'aggregated', 'counters', 'gap', 'empty'])('%s: the header arrives whole', async name => {
  const { header } = await load(name);
  const expected = truth(name);
  expect(header.sentence).toBe(expected.sentence);
  expect(header.devices.map(device => device.key)).toEqual(expected.devices.map(device => device.key));
  for (const [k, device] of header.devices.entries()) {
    expect(device.headline.allocatedPeak).toBe(expected.devices[k]?.allocatedPeak);
    const { timeline } = device;
    expect(
      timeline.rest === null ? timeline.lifetimes : timeline.lifetimes + timeline.rest.lifetimes
    ).toBeGreaterThanOrEqual(timeline.lifetimes);
  }
});

test.each(['complete', 'gap', 'aggregated'])(
  '%s: totals and groups are exact at the moments that Python names',
  async name => {
    const document = await load(name);
    for (const [index, expected] of truth(name).devices.entries()) {
      const recording = readRecording(document, index);
      const live = new LiveIndex(recording);
      const curves = new Curves(recording, makeBanding(recording, document.header, 'line'));
      for (const { timeUs, allocated, byGroup } of expected.moments) {
        const us = timeUs - recording.device.startUs;
        // Sums of small allocations are exact at the ends of bins, where the recorded moments of that fixture lie.
        const onEdge = recording.rest === null || recording.rest.edges.indexOf(us) > 0;
        if (!onEdge) continue;
        const moment = countUpTo(recording.steps.time, us, true);
        expect(curves.total[moment]).toBe(allocated);
        const table = live.at(moment);
        expect(table.allocated).toBe(allocated);
        if (recording.rest === null) {
          const rounding = recording.device.groups.findIndex(group => group.kind === 'rounding');
          const rows = new Map(table.rows.map(row => [String(row.group), row.bytes]));
          expect([...rows.keys()].filter(key => key !== String(rounding)).sort()).toEqual(Object.keys(byGroup).sort());
        }
      }
      const { headline } = recording.device;
      if (headline.peakUs !== null) {
        const peak = countUpTo(recording.steps.time, headline.peakUs - recording.device.startUs, true);
        expect(live.at(peak).allocated).toBe(headline.allocatedPeak);
      }
      expect(curves.total.at(-1)).toBe(headline.allocatedAfter);
    }
  }
);

test.each([
  ['size', 'bySize'],
  ['lifetime', 'byLifetime'],
  ['stream', 'byStream']
] as const)('aggregated: colours by %s are exact, the sums of small allocations too', async (by, key) => {
  const document = await load('aggregated');
  const recording = readRecording(document, 0);
  const { rest } = recording;
  expect(rest?.lifetimes).toBeGreaterThan(2000);
  const curves = new Curves(recording, makeBanding(recording, document.header, by));
  const { bands } = curves.banding;
  expect(bands.some(band => band.key === 'summed')).toBe(false);
  let told = 0;
  for (const expected of truth('aggregated').devices[0]?.moments ?? []) {
    const us = expected.timeUs - recording.device.startUs;
    if ((rest?.edges.indexOf(us) ?? 0) <= 0) continue;
    const bytes = curves.composition(countUpTo(recording.steps.time, us, true));
    const found = bands.map((band, k): [string, number] => [band.key.split(' ')[1] as string, bytes[k] as number]);
    expect(Object.fromEntries(found.filter(([, value]) => value > 0))).toEqual(expected[key]);
    told += Object.keys(expected[key]).length;
  }
  expect(told).toBeGreaterThan(8);
});

test('aggregated: the drawn envelope is the exact one, at every zoom', async () => {
  const document = await load('aggregated');
  const recording = readRecording(document, 0);
  expect(recording.rest).not.toBeNull();
  const curves = new Curves(recording, makeBanding(recording, document.header, 'line'));
  const axis = timeAxis(recording.steps.time, recording.spanUs, []);
  for (const zoom of [1, 7, 90]) {
    const viewport = new Viewport(axis).zoom(zoom, 0.4);
    const columns = sampleColumns(curves, viewport, 120);
    widenToEnvelope(columns, curves, viewport);
    expect(columns.most).toBeLessThanOrEqual(recording.device.headline.allocatedPeak ?? 0);
    if (zoom === 1) expect(columns.most).toBe(recording.device.headline.allocatedPeak);
    for (let c = 0; c < columns.count; c++) expect(columns.low[c]).toBeLessThanOrEqual(columns.high[c] as number);
  }
});

test('detail: a stretch stands where it belongs on the axis of the whole', async () => {
  const document = await load('detail');
  const whole = readRecording(await load('aggregated'), 0);
  const offset = (document.header.devices[0]?.startUs ?? 0) - whole.device.startUs;
  const detail = readRecording(document, 0, offset);
  expect(offset).toBe(100_000);
  expect(detail.steps.time[0]).toBeGreaterThanOrEqual(100_000);
  expect(detail.steps.time.at(-1)).toBeLessThanOrEqual(105_000);
  expect(detail.rest).toBeNull();
});

test.each(['size', 'stream', 'line'] as const)(
  'detail: its allocations have the colours of the whole (%s)',
  async by => {
    const session = new Session(await load('aggregated'));
    session.setColorBy(by);
    const detail = await load('detail');
    session.addDetail(detail);
    const { startUs } = session.source.recording.device;
    const from = (detail.header.devices[0]?.startUs ?? 0) - startUs;
    session.setViewport(new Viewport(session.source.axis, from + 1000, from + 4000));
    const { curves, recording } = session.active();
    expect(recording.rest).toBeNull();
    const whole = truth('aggregated').devices[0]?.moments[0];
    expect(whole).toBeDefined();
    for (const moment of [0, 40, curves.moments - 1]) {
      expect(curves.composition(moment).reduce((a, b) => a + b, 0)).toBe(curves.total[moment]);
    }
    expect(curves.total[40]).toBeGreaterThan(0);
    expect(curves.banding.bands).toBe(session.banding.bands);
  }
);

test('counters: what was only sampled is drawn, and explains itself', async () => {
  const document = await load('counters');
  const recording = readRecording(document, 0);
  expect(recording.lifetimes.count).toBe(0);
  const curves = new Curves(recording, makeBanding(recording, document.header, 'line'));
  expect(curves.total.reduce((a, b) => Math.max(a, b))).toBeGreaterThan(0);
});
