/** Who was at an address before and after, against brute force. */

import { describe, expect, test } from 'vitest';
import {
  encode,
  makeDevice,
  makeGroup,
  makeHeader,
  random,
  randomTruth,
  timelineArrays
} from '../../testing/documents';
import { parse } from '../decode';
import { Places } from './places';
import { readRecording } from './steps';

const UNIT = 512;
const BASE = 0x300_0000_0000;

function placed(seed: number, changes: number) {
  const next = random(seed);
  const truth = randomTruth(seed, changes, 3);
  // The first address stands for "unknown"; a gap over 32 bits is split by an entry that nobody refers to.
  const table = [0, BASE, ...Array.from({ length: 6 }, (_, k) => BASE + (k + 1) * (8 << 20))];
  const gaps = [0, 2 ** 32 - 1, BASE / UNIT - (2 ** 32 - 1)];
  for (let k = 2; k < table.length; k++) gaps.push(((table[k] as number) - (table[k - 1] as number)) / UNIT);
  const which = truth.lives.map(() => Math.floor(next() * table.length));
  const arrays = timelineArrays(truth);
  arrays['d0.addr'] = ['u4', which.map(k => (k === 0 ? 0 : k + 1))];
  arrays['d0.addrs'] = ['u4', gaps];
  arrays['d0.seg.base'] = ['f8', [BASE, BASE]];
  arrays['d0.seg.size'] = ['f8', [16 << 20, 4 * 2 ** 30]];
  arrays['d0.seg.from'] = ['f8', [-1, 200]];
  arrays['d0.seg.to'] = ['f8', [200, -1]];
  arrays['d0.seg.pool'] = ['u1', [1, 0]];
  const device = makeDevice(
    truth,
    [0, 1, 2].map(k => makeGroup(k))
  );
  device.timeline.pools = ['large blocks', 'small blocks'];
  const document = parse(encode(makeHeader([device]), arrays));
  const recording = readRecording(document, 0);
  return { truth, recording, places: Places.of(document, recording) as Places, at: which.map(k => table[k] as number) };
}

describe.each([1, 2, 3, 4])('seed %i', seed => {
  test('neighbours at an address', () => {
    const { truth, places, at } = placed(seed, 120);
    let found = 0;
    truth.lives.forEach((life, i) => {
      const place = places.of(i);
      const own = at[i] as number;
      if (own === 0) {
        expect(place).toBeNull();
        return;
      }
      const there = truth.lives
        .map((other, k) => ({ ...other, k, low: at[k] as number }))
        .filter(({ k, low, bytes }) => k !== i && low !== 0 && low < own + life.bytes && low + bytes > own);
      const before = there.filter(({ dead }) => dead >= 0 && dead < life.born).sort((a, b) => b.dead - a.dead)[0];
      const after = there.filter(({ born }) => life.dead >= 0 && born > life.dead).sort((a, b) => a.born - b.born)[0];
      expect(place?.before ?? null).toBe(before?.k ?? null);
      expect(place?.after ?? null).toBe(after?.k ?? null);
      expect(place?.address).toBe(own);
      if (before !== undefined && after !== undefined) found += 1;
    });
    expect(found).toBeGreaterThan(0);
  });

  test('the segment is the one that was there when the allocation began', () => {
    const { recording, places } = placed(seed, 120);
    const pools = new Set<string>();
    for (let i = 0; i < recording.lifetimes.count; i++) {
      const place = places.of(i);
      if (place === null) continue;
      const old = i < recording.lifetimes.preexisting;
      const us = old ? 0 : (recording.steps.time[recording.lifetimes.start[i] as number] as number);
      if (place.segment === null) {
        expect(us).toBeLessThan(200);
        expect(place.address - BASE).toBeGreaterThanOrEqual(16 << 20);
      } else {
        expect(us <= 200 ? ['small blocks', 'large blocks'] : ['large blocks']).toContain(place.segment.pool);
        pools.add(place.segment.pool);
      }
    }
    expect(pools.size).toBeGreaterThan(0);
  });
});

test('a document without addresses has no places', () => {
  const truth = randomTruth(1, 20);
  const document = parse(
    encode(makeHeader([makeDevice(truth, [makeGroup(0)])]), timelineArrays(randomTruth(1, 20, 1)))
  );
  expect(Places.of(document, readRecording(document, 0))).toBeNull();
});
