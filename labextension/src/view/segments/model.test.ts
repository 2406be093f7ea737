import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { encode, makeDevice, makeHeader, randomTruth } from '../../testing/documents';
import { decode, parse } from '../decode';
import type { SegmentMoment, SegmentMoments } from './document';
import { isReturnable } from './draw';
import { layOut, pieceAt, spanAt } from './layout';
import { inOrder, pinsOf, readMap, type Segment, type Span, sentenceOf } from './model';

const MIB = 2 ** 20;
const UNITS = MIB / 512;

/** Three segments: one half full, one empty, an expandable one with a hole. */
const ARRAYS: Parameters<typeof encode>[1] = {
  'd0.m0.extent': ['f8', [20 * MIB, 2 * MIB, 100 * MIB]],
  'd0.m0.mapped': ['f8', [20 * MIB, 2 * MIB, 60 * MIB]],
  'd0.m0.returnable': ['f8', [0, 2 * MIB, 0]],
  'd0.m0.requested': ['f8', [9 * MIB, 0, 59 * MIB]],
  'd0.m0.address': ['u4', [0x10000000, 0x20000000, 0]],
  'd0.m0.addressHigh': ['u4', [0x7f5a, 0x7f5a, 0x4000]],
  'd0.m0.stream': ['u1', [0, 1, 0]],
  'd0.m0.flags': ['u1', [0, 1, 2 | 4]],
  'd0.m0.spans': ['u4', [2, 0, 3]],
  'd0.m0.gap': ['u4', [4 * UNITS, 3 * UNITS, 0, 0, 0]],
  'd0.m0.size': ['u4', [1 * UNITS, 9 * UNITS, 10 * UNITS, 40 * UNITS, 50 * UNITS]],
  'd0.m0.group': ['u2', [0, 1, 1, 65535, 65535]],
  'd0.m0.kind': ['u1', [0, 1, 0, 2, 0]]
};
const MOMENT = {
  timeUs: 5,
  name: 'peak',
  streams: [0, 7],
  numbers: {
    reserved: 82 * MIB,
    active: 70 * MIB,
    requested: 68 * MIB,
    rounding: 2 * MIB,
    free: 12 * MIB,
    returnable: 2 * MIB,
    pinned: 10 * MIB,
    largestFree: 4 * MIB,
    segments: 3,
    emptySegments: 1,
    scattered: 0.6
  }
};

const read = (arrays = ARRAYS) => {
  const truth = randomTruth(1, 0);
  return readMap(
    parse(
      encode(
        makeHeader([
          {
            ...makeDevice({ lives: [], times: [] }, []),
            timeline: { changes: 0, lifetimes: 0, preexisting: 0, streams: [], rest: null },
            events: truth.times.length
          }
        ]),
        arrays
      )
    ),
    0,
    0,
    MOMENT
  );
};

describe('a map of segments', () => {
  const { segments } = read();
  const [half, empty, grown] = segments as [Segment, Segment, Segment];

  test('has every byte of each segment in one stretch', () => {
    for (const segment of segments) {
      let at = 0;
      for (const span of segment.spans) {
        expect(span.offset).toBe(at);
        at += span.size;
      }
      expect(at).toBe(segment.extent);
    }
    expect(half.spans.map(span => [span.kind, span.size / MIB])).toEqual([
      ['free', 4],
      ['used', 1],
      ['free', 3],
      ['pending', 9],
      ['free', 3]
    ]);
  });

  test('knows what is in use, free, wasted, and where', () => {
    expect([half.active, half.free, half.waste].map(n => n / MIB)).toEqual([10, 10, 10]);
    expect([empty.active, empty.waste, empty.returnable].map(n => n / MIB)).toEqual([0, 0, 2]);
    expect([grown.active, grown.free].map(n => n / MIB)).toEqual([60, 0]);
    expect(half.address).toBe('0x7f5a10000000');
    expect([half.stream, empty.stream]).toEqual([0, 7]);
    expect([empty.small, grown.expandable, grown.private]).toEqual([true, true, true]);
    expect(grown.spans.map(span => span.group)).toEqual([1, null, null]);
  });

  test('is ordered by waste, size or address', () => {
    expect(inOrder(segments, 'waste').map(segment => segment.index)).toEqual([0, 1, 2]);
    expect(inOrder(segments, 'size').map(segment => segment.index)).toEqual([2, 0, 1]);
    expect(inOrder(segments, 'address')).toEqual(segments);
  });

  test('names who pins what: free bytes count once for each owner in the segment', () => {
    expect(pinsOf([half])).toEqual([
      { group: 1, bytes: 9 * MIB, blocks: 1, pinned: 10 * MIB, segments: 1 },
      { group: 0, bytes: 1 * MIB, blocks: 1, pinned: 10 * MIB, segments: 1 }
    ]);
    expect(pinsOf([empty])).toEqual([]);
  });

  test('says it in a sentence', () => {
    expect(sentenceOf({ moment: MOMENT, segments }, group => `line ${group}`)).toBe(
      '82.0 MiB reserved for 70.0 MiB in use; empty_cache() would give back 2.00 MiB; ' +
        '10.0 MiB more is free but pinned in one segment, most of it by line 1.'
    );
  });

  test('tells free memory that goes back from free memory that is pinned', () => {
    expect(isReturnable(half.spans[0] as Segment['spans'][number], half)).toBe(false);
    expect(isReturnable(empty.spans[0] as Segment['spans'][number], empty)).toBe(true);
  });

  test('refuses spans that are not there', () => {
    expect(() => read({ ...ARRAYS, 'd0.m0.spans': ['u4', [2, 9, 3]] })).toThrow('contradicts itself');
  });
});

describe('the layout', () => {
  const make = (extents: number[]): Segment[] =>
    extents.map(
      (extent, index) =>
        ({ index, extent, spans: [{ offset: 0, size: extent, kind: 'free', group: null }] }) as unknown as Segment
    );

  test('shows every byte once, in order, and no row is too long', () => {
    const segments = make([700, 10, 10, 300, 5, 5, 900, 70]);
    for (const zoom of [1, 2, 8]) {
      const layout = layOut(segments, zoom);
      const shown = new Map<number, number>();
      for (const piece of layout.pieces) {
        expect(piece.from).toBe(shown.get(piece.place) ?? 0);
        shown.set(piece.place, piece.from + piece.bytes);
        expect(piece.x + piece.bytes).toBeLessThanOrEqual(layout.perRow + 1e-9);
      }
      expect([...shown.values()]).toEqual([700, 10, 10, 300, 5, 5, 900, 70]);
    }
  });

  test('finds what lies under a point, and nothing beside', () => {
    const layout = layOut(make([100, 100, 100, 100]), 1 / 14);
    expect(layout.rows).toBe(1);
    expect(pieceAt(layout, 0, 0)?.place).toBe(0);
    expect(pieceAt(layout, 0, 199)?.place).toBe(1);
    expect(pieceAt(layout, 0, 200)?.place).toBe(2);
    expect(pieceAt(layout, 0, 400)).toBe(null);
    expect(pieceAt(layout, 1, 0)).toBe(null);
    expect(layOut([], 1).rows).toBe(0);
  });

  test('every row knows its first piece, for drawing only what is seen', () => {
    const layout = layOut(make(Array.from({ length: 3000 }, (_, k) => 2 + (k % 7))), 4);
    for (let row = 0; row < layout.rows; row++) {
      const first = layout.firstOfRow[row] as number;
      expect(layout.pieces[first]?.row).toBe(row);
      expect(layout.pieces[first - 1]?.row ?? -1).toBe(row - 1);
    }
  });

  test('finds the stretch at an offset', () => {
    const { segments } = read();
    const [half] = segments as [Segment];
    expect(spanAt(half, 0)).toBe(0);
    expect(spanAt(half, 4 * MIB)).toBe(1);
    expect(spanAt(half, 20 * MIB - 1)).toBe(4);
  });
});

describe.each(['random_mix.c0', 'random_mix.c1'])('what Python wrote of %s', name => {
  const at = `../tests/data/view/segments-${name}`;

  test('is read to the byte', async () => {
    const document = await decode(new Uint8Array(readFileSync(`${at}.bin`)));
    const truth = JSON.parse(new TextDecoder().decode(readFileSync(`${at}.json`)));
    const { moments } = (document.header as unknown as { segments: SegmentMoments }).segments;
    const { segments } = readMap(document, 0, 0, moments[0] as SegmentMoment);
    const sum = (of: (segment: Segment) => number): number => segments.reduce((a, segment) => a + of(segment), 0);
    const spans = segments.flatMap(segment => segment.spans);
    const bytes = (keep: (span: Span) => boolean): number => spans.filter(keep).reduce((a, span) => a + span.size, 0);
    expect(segments.map(segment => segment.address)).toEqual(truth.addresses);
    expect(sum(segment => segment.extent)).toBe(truth.extent);
    expect(sum(segment => segment.free)).toBe(truth.free);
    expect(sum(segment => segment.waste)).toBe(truth.waste);
    expect(bytes(span => span.kind === 'used')).toBe(truth.used);
    expect(bytes(span => span.kind === 'unmapped')).toBe(truth.unmapped);
    expect(bytes(span => span.kind === 'free')).toBe(truth.free);
    for (const [group, size] of Object.entries(truth.groups)) {
      expect(bytes(span => span.group === Number(group))).toBe(size);
    }
  });
});
