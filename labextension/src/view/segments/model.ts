/** Segments and what is in them, from a document's arrays: plain numbers, no page. */

import { DocumentError, type ViewDocument } from '../decode';
import { formatBytes, formatCount } from '../format';
import { NOBODY, type SegmentMoment, type SegmentNumbers, UNIT } from './document';

export type SpanKind = 'used' | 'pending' | 'unmapped' | 'free';
const KINDS = ['used', 'pending', 'unmapped'] as const;

export interface Span {
  offset: number;
  size: number;
  kind: SpanKind;
  /** Index into the device's groups; null where it is free, or nobody's. */
  group: number | null;
}

export interface Segment {
  /** Number in address order. */
  index: number;
  /** Hexadecimal. */
  address: string;
  extent: number;
  mapped: number;
  active: number;
  free: number;
  returnable: number;
  /** Free bytes that cannot go back, because something lives in the segment. */
  waste: number;
  requested: number;
  stream: number;
  small: boolean;
  expandable: boolean;
  private: boolean;
  /** All stretches, free ones too, without gaps. */
  spans: Span[];
}

export interface SegmentMap {
  moment: SegmentMoment;
  segments: Segment[];
}

/** Read moment `k` of device `i`. */
export function readMap(document: ViewDocument, device: number, k: number, moment: SegmentMoment): SegmentMap {
  const prefix = `d${device}.m${k}.`;
  const f8 = (name: string): Float64Array => document.array(prefix + name, 'f8');
  const u4 = (name: string): Uint32Array => document.array(prefix + name, 'u4');
  const [extent, mapped, returnable, requested] = [f8('extent'), f8('mapped'), f8('returnable'), f8('requested')];
  const [low, high, counts, gaps, sizes] = [u4('address'), u4('addressHigh'), u4('spans'), u4('gap'), u4('size')];
  const stream = document.array(`${prefix}stream`, 'u1');
  const flags = document.array(`${prefix}flags`, 'u1');
  const groups = document.array(`${prefix}group`, 'u2');
  const kinds = document.array(`${prefix}kind`, 'u1');
  const segments: Segment[] = [];
  let at = 0;
  for (let index = 0; index < extent.length; index++) {
    const spans: Span[] = [];
    let cursor = 0;
    let active = 0;
    const whole = extent[index] as number;
    const put = (size: number, kind: SpanKind, group: number | null): void => {
      if (size > 0) spans.push({ offset: cursor, size, kind, group });
      cursor += size;
    };
    for (const end = at + (counts[index] as number); at < end; at++) {
      if (at >= sizes.length)
        throw new DocumentError('The map of segments contradicts itself. Export the report again.');
      put((gaps[at] as number) * UNIT, 'free', null);
      const kind = KINDS[kinds[at] as number] ?? 'used';
      const size = (sizes[at] as number) * UNIT;
      if (kind !== 'unmapped') active += size;
      put(size, kind, groups[at] === NOBODY || kind === 'unmapped' ? null : (groups[at] as number));
    }
    put(whole - cursor, 'free', null);
    const bits = flags[index] as number;
    const free = (mapped[index] as number) - active;
    segments.push({
      index,
      address: `0x${((high[index] as number) * 2 ** 32 + (low[index] as number)).toString(16)}`,
      extent: whole,
      mapped: mapped[index] as number,
      active,
      free,
      returnable: returnable[index] as number,
      waste: free - (returnable[index] as number),
      requested: requested[index] as number,
      stream: moment.streams[stream[index] as number] ?? 0,
      small: (bits & 1) !== 0,
      expandable: (bits & 2) !== 0,
      private: (bits & 4) !== 0,
      spans
    });
  }
  return { moment, segments };
}

export type Order = 'waste' | 'size' | 'address';

/** Segments in the order asked for; the largest first, ties by address. */
export function inOrder(segments: readonly Segment[], order: Order): Segment[] {
  const by: Record<Order, (a: Segment, b: Segment) => number> = {
    waste: (a, b) => b.waste - a.waste || b.free - a.free || b.extent - a.extent,
    size: (a, b) => b.extent - a.extent,
    address: () => 0
  };
  return [...segments].sort((a, b) => by[order](a, b) || a.index - b.index);
}

export interface Pin {
  group: number | null;
  /** Its own bytes and blocks in these segments. */
  bytes: number;
  blocks: number;
  /** Free bytes that cannot go back while it lives there; several owners may pin the same. */
  pinned: number;
  segments: number;
}

/** Who lives in these segments, and what that keeps from going back; the most first. */
export function pinsOf(segments: readonly Segment[]): Pin[] {
  const pins = new Map<number | null, Pin>();
  for (const segment of segments) {
    const here = new Set<number | null>();
    for (const span of segment.spans) {
      if (span.kind !== 'used' && span.kind !== 'pending') continue;
      let pin = pins.get(span.group);
      if (pin === undefined) {
        pin = { group: span.group, bytes: 0, blocks: 0, pinned: 0, segments: 0 };
        pins.set(span.group, pin);
      }
      pin.bytes += span.size;
      pin.blocks += 1;
      if (!here.has(span.group)) {
        here.add(span.group);
        pin.pinned += segment.waste;
        pin.segments += 1;
      }
    }
  }
  return [...pins.values()].sort((a, b) => b.pinned - a.pinned || b.bytes - a.bytes);
}

export interface NumberEntry {
  name: string;
  value: string;
  exact: string;
  meaning: string;
}

/** The fragmentation numbers with what they mean. */
export function numbersOf(numbers: SegmentNumbers): NumberEntry[] {
  const bytes = (name: string, value: number, meaning: string): NumberEntry => ({
    name,
    value: formatBytes(value),
    exact: `${formatCount(value)} bytes`,
    meaning
  });
  return [
    bytes('reserved', numbers.reserved, 'what torch holds of the device: all segments'),
    bytes('in use', numbers.active, 'blocks of tensors, and blocks that wait until another stream is done with them'),
    bytes(
      'pinned free',
      numbers.pinned,
      'free, but in a segment (or page) in which something lives: empty_cache() cannot give it back'
    ),
    bytes(
      'returnable',
      numbers.returnable,
      'free segments, and whole free pages of expandable ones: empty_cache() would give it back'
    ),
    bytes(
      'largest free',
      numbers.largestFree,
      'the largest free block: a request above it needs new memory from the driver'
    ),
    {
      name: 'scattered',
      value: `${(numbers.scattered * 100).toFixed(0)} %`,
      exact: '1 − largest free block ÷ all free bytes',
      meaning:
        'the share of the free bytes that does not lie in the largest free block; 0 % when all that is free is one block'
    },
    bytes(
      'rounding',
      numbers.rounding,
      'handed out beyond what was asked for: rounding to 512 bytes, and remainders too small to split off'
    ),
    {
      name: 'segments',
      value: formatCount(numbers.segments),
      exact: `${formatCount(numbers.emptySegments)} of them hold nothing`,
      meaning: 'pieces of device memory that torch asked the driver for; an expandable segment grows instead'
    }
  ];
}

/** What a tired person should know of this moment. */
export function sentenceOf(map: SegmentMap, nameOf: (group: number | null) => string): string {
  const { numbers } = map.moment;
  if (numbers.segments === 0) return 'Nothing is reserved at this moment.';
  const parts = [`${formatBytes(numbers.reserved)} reserved for ${formatBytes(numbers.active)} in use`];
  if (numbers.returnable > 0) parts.push(`empty_cache() would give back ${formatBytes(numbers.returnable)}`);
  const wasteful = map.segments.filter(segment => segment.waste > 0);
  if (numbers.pinned >= Math.max(numbers.reserved / 100, 1 << 20) && wasteful.length > 0) {
    const [first] = pinsOf(wasteful);
    const who =
      first === undefined || first.pinned < numbers.pinned / 3 ? '' : `, most of it by ${nameOf(first.group)}`;
    const where = wasteful.length === 1 ? 'one segment' : `${formatCount(wasteful.length)} segments`;
    const more = numbers.returnable > 0 ? ' more' : '';
    parts.push(`${formatBytes(numbers.pinned)}${more} is free but pinned in ${where}${who}`);
  } else if (numbers.free < numbers.reserved / 50) parts.push('next to nothing is wasted');
  if (map.moment.name === 'out of memory') parts.push(`the largest free block is ${formatBytes(numbers.largestFree)}`);
  return `${parts.join('; ')}.`;
}
