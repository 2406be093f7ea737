import { expect, test } from 'vitest';
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
import { ALIVE, readRecording } from './steps';

const groups = [makeGroup(0), makeGroup(1)];
const life = (born: number, dead: number, bytes: number): Truth['lives'][number] => ({
  born,
  dead,
  bytes,
  requested: bytes,
  group: 0,
  stack: 0,
  stream: 0
});
const read = (truth: Truth) =>
  readRecording(parse(encode(makeHeader([makeDevice(truth, groups)]), timelineArrays(truth))), 0);

test('where each change is one beginning or end, changes are the steps', () => {
  const truth = randomTruth(8, 500, 2);
  const { steps, lifetimes } = read(truth);
  expect(Array.from(steps.time)).toEqual(truth.times);
  for (const [id, { born, dead, bytes }] of truth.lives.entries()) {
    if (born >= 0) expect([lifetimes.start[id], steps.owner[born], steps.delta[born]]).toEqual([born, id, bytes]);
    expect(lifetimes.end[id]).toBe(dead < 0 ? ALIVE : dead);
    if (dead >= 0) expect([steps.owner[dead], steps.delta[dead]]).toEqual([id, -bytes]);
  }
});

test('a change that is an end and a beginning gives two steps, one of neither none', () => {
  const { steps, lifetimes } = read({ lives: [life(0, 1, 512), life(1, 3, 2048)], times: [5, 9, 20, 31] });
  expect(Array.from(steps.time)).toEqual([5, 9, 9, 31]);
  expect(Array.from(steps.delta)).toEqual([512, -512, 2048, -2048]);
  expect(Array.from(steps.owner)).toEqual([0, 0, 1, 1]);
  expect(Array.from(lifetimes.start)).toEqual([0, 2]);
  expect(Array.from(lifetimes.end)).toEqual([1, 3]);
});
