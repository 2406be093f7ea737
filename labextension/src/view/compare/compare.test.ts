/** The comparison's rows and stacks against brute force. */

import { describe, expect, test } from 'vitest';
import {
  encode,
  makeDevice,
  makeGroup,
  makeHeader,
  randomTruth,
  type Truth,
  timelineArrays
} from '../../testing/documents';
import { parse } from '../decode';
import type { CompareDevice } from '../document';
import { Session } from '../session';
import { changesAt, momentOf, stacksOf } from './model';

const GROUPS = 4;

function held(truth: Truth, group: number, moment: number): number {
  return truth.lives
    .filter(life => life.group === group && life.born < moment && (life.dead < 0 || life.dead >= moment))
    .reduce((sum, life) => sum + life.requested, 0);
}

function both(seedA: number, seedB: number) {
  const truths = [randomTruth(seedA, 80, GROUPS), randomTruth(seedB, 120, GROUPS)] as const;
  const groups = [...Array.from({ length: GROUPS }, (_, k) => makeGroup(k)), makeGroup(9, { kind: 'rounding' })];
  const devices = truths.map(truth => makeDevice(truth, groups));
  const compare: CompareDevice = {
    key: 'cuda:0',
    a: 0,
    b: 1,
    rows: [0, 1, 2, 3].map(k => ({ a: [k], b: [k], bytesA: 0, bytesB: 0, endA: 0, endB: 0 }))
  };
  const arrays = timelineArrays(truths[0]);
  for (const [name, array] of Object.entries(timelineArrays(truths[1]))) arrays[name.replace('d0.', 'd1.')] = array;
  const header = makeHeader(devices, {
    compare: { titles: ['A', 'B'], sentences: ['', ''], devices: [compare] }
  });
  const document = parse(encode(header, arrays));
  return { truths, compare, sides: { a: new Session(document, 0), b: new Session(document, 1) } };
}

describe.each([1, 2, 3])('seed %i', seed => {
  test('clicked moments are compared by owner, the largest change first', () => {
    const { truths, compare, sides } = both(seed, seed + 10);
    for (const [side, moment] of [
      [sides.a, 30],
      [sides.b, 77]
    ] as const) {
      side.setHere({ source: side.source, moment, us: 0, lifetime: null });
    }
    const changes = changesAt(compare, sides, 'here');
    for (const { row, a, b } of changes) {
      expect([a, b]).toEqual([held(truths[0], row.a[0] as number, 30), held(truths[1], row.b[0] as number, 77)]);
    }
    const sizes = changes.map(({ a, b }) => Math.abs(b - a));
    expect(sizes).toEqual([...sizes].sort((p, q) => q - p));
  });

  test('the stacks of an owner add up to it on both sides', () => {
    const { truths, compare, sides } = both(seed, seed + 20);
    const [peakA, peakB] = [momentOf(sides.a, 'peak'), momentOf(sides.b, 'peak')];
    for (const row of compare.rows) {
      const group = row.a[0] as number;
      const change = { group: null, row, a: held(truths[0], group, peakA), b: held(truths[1], group, peakB) };
      const stacks = stacksOf(change, sides, 'peak');
      if (stacks === null) continue;
      expect(stacks.summed).toEqual([0, 0]);
      expect(stacks.stacks.reduce((sum, { a }) => sum + a, 0)).toBe(change.a);
      expect(stacks.stacks.reduce((sum, { b }) => sum + b, 0)).toBe(change.b);
    }
  });
});

test('frames that all stacks share are told once, and each keeps one of its own', () => {
  const { sides, compare } = both(1, 2);
  const row = compare.rows[0];
  if (row === undefined) throw new Error('no rows');
  const moment = sides.a.source.recording.steps.count;
  const stacks = stacksOf({ group: null, row, a: 0, b: 0 }, sides, 'end');
  expect(moment).toBeGreaterThan(0);
  for (const { frames } of stacks?.stacks ?? []) {
    for (const shared of stacks?.shared ?? []) expect(frames).not.toContain(shared);
  }
});

test('equal colours stay, and what has none shares one band', () => {
  const { sides } = both(4, 5);
  for (const session of [sides.a, sides.b]) {
    for (const band of session.banding.bands) {
      if (band.tone.kind === 'slot') expect(band.tone.slot).toBe(session.group(band.groups[0] as number).color);
    }
  }
});
