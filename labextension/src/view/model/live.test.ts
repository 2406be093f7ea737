import { expect, test } from 'vitest';
import { random, randomDocument, type Truth } from '../../testing/documents';
import { makeBanding } from './bands';
import { Curves } from './curves';
import { LiveIndex, sumRange } from './live';
import { pick } from './pick';
import { findSingles } from './singles';
import { readRecording } from './steps';

function load(seed: number, changes: number) {
  const { truth, document } = randomDocument(seed, changes);
  const recording = readRecording(document, 0);
  const curves = new Curves(recording, makeBanding(recording, document.header, 'line'));
  return { truth, recording, curves, live: new LiveIndex(recording) };
}

const aliveAt = (truth: Truth, moment: number): Truth['lives'] =>
  truth.lives.filter(life => life.born < moment && (life.dead < 0 || life.dead >= moment));

test('who is alive equals brute force and adds up to the allocated bytes', () => {
  const { truth, live, curves } = load(2, 1500);
  for (let moment = 0; moment <= 1500; moment += 37) {
    const alive = aliveAt(truth, moment);
    const table = live.at(moment);
    expect(table.allocated).toBe(curves.total[moment]);
    expect(table.rows.reduce((sum, row) => sum + row.bytes, 0) + table.rounding).toBe(table.allocated);
    expect(table.blocks).toBe(alive.length);
    for (const row of table.rows) {
      const own = alive.filter(life => life.group === row.group);
      expect(row.bytes).toBe(own.reduce((sum, life) => sum + life.requested, 0));
      expect(row.blocks).toBe(own.length);
    }
  }
});

test('sums of a stretch equal brute force, and explain its change', () => {
  const { truth, recording, curves } = load(3, 900);
  const next = random(1);
  for (let k = 0; k < 60; k++) {
    const from = Math.floor(next() * 900);
    const to = from + Math.floor(next() * (901 - from));
    const sums = sumRange(recording, from, to);
    const born = truth.lives.filter(life => life.born >= from && life.born < to);
    const dead = truth.lives.filter(life => life.dead >= from && life.dead < to);
    const passing = born.filter(life => life.dead >= 0 && life.dead < to);
    const bytes = (lives: Truth['lives']): number => lives.reduce((sum, life) => sum + life.bytes, 0);
    expect(sums.total).toEqual({
      group: -1,
      allocated: bytes(born),
      freed: bytes(dead),
      retained: bytes(born) - bytes(passing),
      transient: bytes(passing),
      blocks: born.length
    });
    expect(sums.change).toBe((curves.total[to] as number) - (curves.total[from] as number));
    expect(sums.rows.reduce((sum, row) => sum + row.allocated - row.freed, 0)).toBe(sums.change);
  }
});

test('a point of the picture belongs to the allocation that is stacked there', () => {
  const { truth, curves, live } = load(4, 400);
  for (let moment = 1; moment <= 400; moment += 29) {
    // Stack by hand: bands from the bottom, in each the oldest first.
    let level = 0;
    for (const [band, { groups }] of curves.banding.bands.entries()) {
      for (const [id, life] of truth.lives.entries()) {
        if (life.group !== groups[0] || !aliveAt(truth, moment).includes(life)) continue;
        const picked = pick(curves, live, moment, level + life.bytes / 2);
        expect(picked?.band).toBe(band);
        expect(picked?.lifetime).toBe(id);
        level += life.bytes;
      }
    }
    expect(pick(curves, live, moment, level + 1)).toBeNull();
    expect(pick(curves, live, moment, -1)).toBeNull();
  }
});

test('outlines of single allocations lie where the stack puts them', () => {
  const { curves, live } = load(6, 300);
  const [from, to] = [90, 150];
  const singles = findSingles(curves, live, from, to, 1);
  expect(singles).not.toBeNull();
  for (let moment = from; moment <= to; moment++) {
    const here = (singles ?? []).filter(
      single => (single.moments[0] as number) <= moment && (single.open || moment < single.until)
    );
    let covered = 0;
    for (const single of here) {
      const bottom = single.bottoms[single.moments.findLastIndex(at => at <= moment)] as number;
      expect(pick(curves, live, moment, bottom + single.bytes / 2)?.lifetime).toBe(single.lifetime);
      covered += single.bytes;
    }
    expect(covered).toBe(curves.total[moment]);
  }
});

test('too many to see are not outlined', () => {
  const { curves, live } = load(7, 1500);
  expect(findSingles(curves, live, 0, 1500, 1)).toBeNull();
});
