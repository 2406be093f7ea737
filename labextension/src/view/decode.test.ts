import { describe, expect, test } from 'vitest';
import { encode, makeDevice, makeGroup, makeHeader, randomTruth, timelineArrays } from '../testing/documents';
import { decode, parse } from './decode';
import { readRecording } from './model/steps';

const truth = randomTruth(1, 40, 2);
const groups = [makeGroup(0), makeGroup(1)];
const device = makeDevice(truth, groups);
const good = encode(makeHeader([device]), timelineArrays(truth));

async function gzip(bytes: Uint8Array): Promise<Uint8Array> {
  const stream = new Response(bytes as Uint8Array<ArrayBuffer>).body?.pipeThrough(new CompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

test('plain and gzipped containers give the same', async () => {
  const plain = await decode(good);
  const packed = await decode(await gzip(good));
  expect(packed.header).toEqual(plain.header);
  expect(packed.array('d0.t', 'u4')).toEqual(plain.array('d0.t', 'u4'));
  expect(plain.has('d0.t')).toBe(true);
  expect(plain.has('d9.t')).toBe(false);
});

test('a container that lies anywhere in a buffer is read', () => {
  const shifted = new Uint8Array(good.length + 3);
  shifted.set(good, 3);
  expect(parse(shifted.subarray(3)).array('d0.sizes', 'f8')).toEqual(parse(good).array('d0.sizes', 'f8'));
});

test('counts and indices may come narrower than described', () => {
  const arrays = timelineArrays(truth);
  const wide = readRecording(parse(good), 0);
  for (const name of ['d0.start', 'd0.span', 'd0.bytes', 'd0.requested', 'd0.group', 'd0.stack', 'd0.t']) {
    const [, values] = arrays[name] as ['u4', number[]];
    const most = Math.max(...values);
    arrays[name] = [most < 256 ? 'u1' : most < 65_536 ? 'u2' : 'u4', values];
  }
  expect(Object.values(arrays).filter(([dtype]) => dtype === 'u1').length).toBeGreaterThan(4);
  const document = parse(encode(makeHeader([device]), arrays));
  const narrow = readRecording(document, 0);
  expect(narrow.steps).toEqual(wide.steps);
  expect(narrow.lifetimes.requested).toEqual(wide.lifetimes.requested);
  expect({ ...narrow.lifetimes }).toEqual({ ...wide.lifetimes });
  expect(document.array('d0.stack', 'u4')).toBeInstanceOf(Uint32Array);
  expect(document.counts('d0.start')).toBeInstanceOf(Uint8Array);
});

describe('what does not hold together is refused with a sentence', () => {
  test('empty', () => expect(() => parse(new Uint8Array())).toThrow('The report is empty'));
  test('something else', () =>
    expect(() => parse(new TextEncoder().encode('<!DOCTYPE html><p>hello'))).toThrow('not a gpumem report'));
  test('cut short', () => expect(() => parse(good.subarray(0, good.length - 64))).toThrow('cut short'));
  test('damaged gzip', async () => {
    const packed = await gzip(good);
    await expect(decode(packed.subarray(0, packed.length / 2))).rejects.toThrow('damaged');
  });
  test('a newer format', () =>
    expect(() => parse(encode(makeHeader([device], { version: 9 }), timelineArrays(truth)))).toThrow(
      'format 9, this view reads format 1'
    ));
  test('another format', () =>
    expect(() => parse(encode(makeHeader([device], { format: 'other' as 'gpumem-view' }), {}))).toThrow(
      'not a gpumem report'
    ));
  test('arrays of another length', () => {
    const arrays = timelineArrays(truth);
    arrays['d0.group'] = ['u2', [0]];
    expect(() => parse(encode(makeHeader([device]), arrays))).toThrow('cuda:0 has 1 values of "group"');
  });
  test('an array of another type', () => {
    const arrays = timelineArrays(truth);
    arrays['d0.group'] = ['u4', arrays['d0.group']?.[1] ?? []];
    expect(() => readRecording(parse(encode(makeHeader([device]), arrays)), 0)).toThrow('"d0.group" holds u4, not u2');
  });
  test.each([
    ['d0.group', 99, 'belongs to nobody'],
    ['d0.stack', 99, 'belongs to nobody'],
    ['d0.span', 4_000, 'outlives the recording'],
    ['d0.bytes', 4_000, 'has no size'],
    ['d0.requested', 4_000, 'has no size']
  ])('%s out of bounds', (name, value, message) => {
    const arrays = timelineArrays(truth);
    const [dtype, values] = arrays[name] as ['u2', number[]];
    arrays[name] = [dtype, [...values.slice(0, -1), value]];
    expect(() => readRecording(parse(encode(makeHeader([device]), arrays)), 0)).toThrow(message);
  });
  test('a device that is not there', () => expect(() => readRecording(parse(good), 3)).toThrow('no device number 3'));
});
