/** How a memory bar is divided: parts in bytes that add up to the whole. */

import type { ProcessState } from './protocol';

/**
 * What is left is 'unattributed' where every process's size is known and 'untold' where one is not; where the memory is
 * the host's own it is 'host': nobody's secret, just all other programs.
 */
export type SegmentKind =
  | 'kernel'
  | 'terminal'
  | 'orphan'
  | 'other'
  | 'driver'
  | 'unattributed'
  | 'untold'
  | 'host'
  | 'free';

export interface Segment {
  kind: SegmentKind;
  /** Only for 'kernel'. */
  kernelId: string | null;
  bytes: number;
}

export interface Bar {
  /** The device's size, or the sum of the parts where that is larger (readings of different moments). */
  whole: number;
  segments: Segment[];
}

export interface Memory {
  memoryTotal: number | null;
  memoryUsed: number | null;
  memoryReserved?: number | null;
}

const ORDER: readonly SegmentKind[] = [
  'kernel',
  'terminal',
  'orphan',
  'other',
  'unattributed',
  'untold',
  'driver',
  'free'
];

/** Which part of the bar a process belongs to. */
export function kindOf(process: Pick<ProcessState, 'owner'>): SegmentKind {
  switch (process.owner) {
    case 'kernel':
      return 'kernel';
    case 'terminal':
    case 'server':
      return 'terminal';
    case 'orphan':
      return 'orphan';
    default:
      return 'other';
  }
}

/** What is held by processes of one kernel, or by processes of one kind; a process of unknown size adds nothing. */
export function segmentsOf(processes: readonly ProcessState[], order: readonly string[] = []): Segment[] {
  const parts = new Map<string, Segment>();
  for (const process of processes) {
    const kind = kindOf(process);
    const kernelId = kind === 'kernel' ? process.kernelId : null;
    const key = `${kind} ${kernelId ?? ''}`;
    const part = parts.get(key) ?? { kind, kernelId, bytes: 0 };
    part.bytes += process.used ?? 0;
    parts.set(key, part);
  }
  const place = (part: Segment): number => ORDER.indexOf(part.kind) * 1e6 + order.indexOf(part.kernelId ?? '');
  return [...parts.values()].filter(part => part.bytes > 0).sort((a, b) => place(a) - place(b));
}

/**
 * The bar of a device, or null when its size or use is unknown.
 *
 * `memoryUsed` does not include `memoryReserved`. What processes hold is read a moment before or after `memoryUsed`;
 * when it is more, it counts, and nothing is left unattributed.
 *
 * @param order Kernel ids in the order in which their parts stand.
 */
export function deviceBar(
  memory: Memory,
  processes: readonly ProcessState[],
  order: readonly string[] = []
): Bar | null {
  if (memory.memoryTotal === null || memory.memoryUsed === null) {
    return null;
  }
  const segments = segmentsOf(processes, order);
  const held = segments.reduce((sum, part) => sum + part.bytes, 0);
  const rest = memory.memoryUsed - held;
  const reserved = memory.memoryReserved ?? 0;
  const free = memory.memoryTotal - reserved - Math.max(memory.memoryUsed, held);
  const unknown = processes.some(process => process.used === null);
  const fixed: [SegmentKind, number][] = [
    [unknown ? 'untold' : 'unattributed', rest],
    ['driver', reserved],
    ['free', free]
  ];
  for (const [kind, bytes] of fixed) {
    if (bytes > 0) {
      segments.push({ kind, kernelId: null, bytes });
    }
  }
  return { whole: segments.reduce((sum, part) => sum + part.bytes, 0), segments };
}

/** The same bar for memory that is the host's: what is left belongs to other programs. */
export function asHost(bar: Bar | null): Bar | null {
  const renamed = (part: Segment): Segment =>
    part.kind === 'unattributed' || part.kind === 'untold' ? { ...part, kind: 'host' } : part;
  return bar && { ...bar, segments: bar.segments.map(renamed) };
}

/** Parts that no process of a list stands for. */
export function restOf(bar: Bar | null): Segment[] {
  return (bar?.segments ?? []).filter(part => ['unattributed', 'untold', 'host', 'driver', 'free'].includes(part.kind));
}

/** How full a device is, 0 to 1, the driver's part included; null when unknown. */
export function fullness(memory: Memory): number | null {
  if (memory.memoryTotal === null || memory.memoryUsed === null || memory.memoryTotal <= 0) {
    return null;
  }
  return Math.min(1, (memory.memoryUsed + (memory.memoryReserved ?? 0)) / memory.memoryTotal);
}
