/** Small documents for tests: random ones with a known truth, and the container that carries them. */

import { parse, type ViewDocument } from '../view/decode';
import type { Device, DType, Group, Header } from '../view/document';

export interface Truth {
  /** Every allocation: born and dead are change numbers, −1 for "was there before" and "alive at the end". */
  lives: {
    born: number;
    dead: number;
    bytes: number;
    requested: number;
    group: number;
    stack: number;
    stream: number;
  }[];
  /** Time of each change in µs. */
  times: number[];
}

export function random(seed: number): () => number {
  let state = seed * 2654435761 + 1;
  return () => {
    state = (Math.imul(state ^ (state >>> 15), 2246822519) + 3266489917) | 0;
    return ((state ^ (state >>> 13)) >>> 0) / 4294967296;
  };
}

const SIZES = [512, 1024, 20 << 10, 1 << 20, 3 << 20, 64 << 20, 1 << 30];

/** Allocations and frees in random order; several changes may share a microsecond. */
export function randomTruth(seed: number, changes: number, groups = 5): Truth {
  const next = random(seed);
  const pickInt = (n: number): number => Math.floor(next() * n);
  const lives: Truth['lives'] = [];
  const alive: number[] = [];
  const make = (born: number): void => {
    const bytes = SIZES[pickInt(SIZES.length)] as number;
    lives.push({
      born,
      dead: -1,
      bytes,
      requested: Math.max(1, bytes - pickInt(512)),
      group: pickInt(groups),
      stack: pickInt(3),
      stream: pickInt(2)
    });
    alive.push(lives.length - 1);
  };
  for (let i = pickInt(5); i > 0; i--) make(-1);
  const times: number[] = [];
  let now = 0;
  for (let change = 0; change < changes; change++) {
    now += next() < 0.3 ? 0 : next() < 0.02 ? pickInt(200_000) : pickInt(50);
    times.push(now);
    if (alive.length > 0 && next() < 0.48) {
      const [who] = alive.splice(pickInt(alive.length), 1) as [number];
      (lives[who] as Truth['lives'][number]).dead = change;
    } else make(change);
  }
  return { lives, times };
}

/** Allocated bytes after the first m changes, for every m, by the simplest means. */
export function bruteTotals(truth: Truth, keep: (life: Truth['lives'][number]) => boolean = () => true): number[] {
  return Array.from({ length: truth.times.length + 1 }, (_, moment) => {
    let sum = 0;
    for (const life of truth.lives) {
      if (keep(life) && life.born < moment && (life.dead < 0 || life.dead >= moment)) sum += life.bytes;
    }
    return sum;
  });
}

export function makeGroup(index: number, more: Partial<Group> = {}): Group {
  return {
    kind: 'line',
    label: `line ${index + 1}`,
    source: `x${index} = f(${index})`,
    cell: 'In [3]',
    file: '/tmp/ipykernel_1/3.py',
    line: index + 1,
    function: null,
    reason: null,
    color: index,
    ...more
  };
}

export function makeDevice(truth: Truth, groups: Group[], more: Partial<Device> = {}): Device {
  const totals = bruteTotals(truth);
  const peak = Math.max(...totals);
  return {
    key: 'cuda:0',
    name: 'Test device',
    kind: 'cuda',
    total: 80 * 2 ** 30,
    limit: 80 * 2 ** 30,
    events: truth.times.length,
    startUs: 1_700_000_000_000_000,
    endUs: 1_700_000_000_000_000 + (truth.times.at(-1) ?? 0) + 10,
    headline: {
      allocatedBefore: totals[0] as number,
      allocatedPeak: peak,
      peakUs: 1_700_000_000_000_000 + (truth.times[totals.indexOf(peak) - 1] ?? 0),
      allocatedAfter: totals.at(-1) as number,
      stayed: null,
      freed: null,
      reservedBefore: null,
      reservedPeak: null,
      reservedAfter: null,
      deviceUsed: null,
      processUsed: null,
      headroom: null
    },
    missing: {},
    groups,
    peak: [],
    end: [],
    markers: [],
    regions: [],
    lanes: [],
    timeline: {
      changes: truth.times.length,
      lifetimes: truth.lives.length,
      preexisting: truth.lives.filter(life => life.born < 0).length,
      streams: [0, 7],
      rest: null
    },
    ...more
  };
}

export function timelineArrays(truth: Truth): Record<string, [DType, number[]]> {
  const sizes = [...new Set(truth.lives.flatMap(life => [life.bytes, life.requested]))];
  const born = truth.lives.map(life => life.born).filter(at => at >= 0);
  return {
    'd0.t': ['u4', truth.times.map((time, i) => time - (truth.times[i - 1] ?? 0))],
    'd0.start': ['u4', born.map((at, i) => at - (born[i - 1] ?? 0))],
    'd0.span': ['u4', truth.lives.map(life => (life.dead < 0 ? 0 : life.dead - life.born))],
    'd0.sizes': ['f8', sizes],
    'd0.bytes': ['u4', truth.lives.map(life => sizes.indexOf(life.bytes))],
    'd0.requested': ['u4', truth.lives.map(life => sizes.indexOf(life.requested))],
    'd0.group': ['u2', truth.lives.map(life => life.group)],
    'd0.stack': ['u4', truth.lives.map(life => life.stack)],
    'd0.stream': ['u1', truth.lives.map(life => life.stream)]
  };
}

export function makeHeader(devices: Device[], more: Partial<Header> = {}): Omit<Header, 'arrays'> {
  return {
    format: 'gpumem-view',
    version: 1,
    package: '0.1.0',
    title: 'In [3]',
    sentence: 'Peak 1.00 GiB at line 1 `x0 = f(0)`.',
    createdUs: 0,
    origin: 'cell',
    outcome: 'ok',
    error: null,
    cell: null,
    notes: [],
    discloses: '',
    strings: [
      '/tmp/ipykernel_1/3.py',
      'train_step',
      '/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py',
      'forward'
    ],
    frames: [
      [0, 2, 1],
      [2, 134, 3]
    ],
    stacks: [[], [1, 0], [0]],
    devices,
    ...more
  };
}

const SIZE: Record<DType, number> = { u1: 1, u2: 2, u4: 4, i4: 4, f8: 8 };

/** Write a container, not gzipped. */
export function encode(header: Omit<Header, 'arrays'>, arrays: Record<string, [DType, number[]]>): Uint8Array {
  const refs: Header['arrays'] = {};
  let offset = 0;
  for (const [name, [dtype, values]] of Object.entries(arrays)) {
    refs[name] = { dtype, offset, length: values.length };
    offset += Math.ceil((values.length * SIZE[dtype]) / 8) * 8;
  }
  const text = new TextEncoder().encode(JSON.stringify({ ...header, arrays: refs }));
  const base = Math.ceil((4 + text.length) / 8) * 8;
  const bytes = new Uint8Array(base + offset);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, text.length, true);
  bytes.set(text, 4);
  for (const [name, [dtype, values]] of Object.entries(arrays)) {
    const at = base + (refs[name]?.offset ?? 0);
    values.forEach((value, i) => {
      if (dtype === 'f8') view.setFloat64(at + 8 * i, value, true);
      else if (dtype === 'u4' || dtype === 'i4') view.setUint32(at + 4 * i, value, true);
      else if (dtype === 'u2') view.setUint16(at + 2 * i, value, true);
      else view.setUint8(at + i, value);
    });
  }
  return bytes;
}

export function randomDocument(
  seed: number,
  changes: number,
  groups = 5
): { truth: Truth; document: ViewDocument; bytes: Uint8Array } {
  const truth = randomTruth(seed, changes, groups);
  const device = makeDevice(
    truth,
    Array.from({ length: groups }, (_, k) => makeGroup(k))
  );
  const bytes = encode(makeHeader([device]), timelineArrays(truth));
  return { truth, document: parse(bytes), bytes };
}
