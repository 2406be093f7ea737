import { expect, test } from 'vitest';
import { bruteTotals, randomDocument } from '../../testing/documents';
import { compileQuery, search } from './search';
import { readRecording } from './steps';

const { truth, document } = randomDocument(13, 900);
const recording = readRecording(document, 0);
const find = (query: string) => search(recording, document.header, query);

test.each([
  ['line 2', (life: { group: number; stack: number }) => life.group === 1],
  ['X1 = F', (life: { group: number; stack: number }) => life.group === 1],
  ['/^line [13]$/', (life: { group: number; stack: number }) => life.group === 0 || life.group === 2],
  ['linear.py:134', (life: { group: number; stack: number }) => life.stack === 1],
  ['nothing like it', () => false]
] as const)('%s: count, bytes and peak equal brute force', (query, wanted) => {
  const found = find(query);
  const lives = truth.lives.filter(wanted);
  expect(found.count).toBe(lives.length);
  expect(found.bytes).toBe(lives.reduce((sum, life) => sum + life.bytes, 0));
  expect(found.peak).toBe(Math.max(...bruteTotals(truth, wanted)));
  expect(new Set(found.order)).toEqual(new Set(truth.lives.flatMap((life, i) => (wanted(life) ? [i] : []))));
});

test('the walk begins with what weighs most over time', () => {
  const { order } = find('line');
  const weight = (i: number): number => {
    const life = truth.lives[i] as (typeof truth.lives)[number];
    const from = life.born < 0 ? 0 : (truth.times[life.born] as number);
    const to = life.dead < 0 ? recording.spanUs : (truth.times[life.dead] as number);
    return life.bytes * (to - from + 1);
  };
  for (let k = 1; k < order.length; k++) {
    expect(weight(order[k] as number)).toBeLessThanOrEqual(weight(order[k - 1] as number));
  }
});

test('a broken expression is a problem, not an exception', () => {
  expect(compileQuery('/(/').problem).toContain('Invalid regular expression');
  expect(find('/(/').count).toBe(0);
  expect(compileQuery('/LINE/i').test('line 4')).toBe(true);
  expect(compileQuery('/LINE/').test('line 4')).toBe(false);
  expect(compileQuery('(').test('f(x)')).toBe(true);
});
