/** Who holds memory, as lines of a list: kernels first, then this server's other processes, others, and the rest. */

import type { ProcessState } from './protocol';
import { kindOf, type SegmentKind } from './segments';

export interface OwnerRow {
  key: string;
  kind: SegmentKind;
  kernelId: string | null;
  /** Null: no process of it tells its size; `reason` says why. */
  bytes: number | null;
  reason: string | undefined;
  processes: ProcessState[];
}

/** Sum of what is known; null when nothing is. */
function total(processes: readonly ProcessState[]): number | null {
  const known = processes.map(process => process.used).filter(used => used !== null);
  return known.length > 0 ? known.reduce((sum, used) => sum + used, 0) : null;
}

function row(key: string, processes: ProcessState[]): OwnerRow {
  const first = processes[0];
  const kind = first ? kindOf(first) : 'other';
  return {
    key,
    kind,
    kernelId: kind === 'kernel' ? (first?.kernelId ?? null) : null,
    bytes: total(processes),
    reason: processes.find(process => process.missing.used)?.missing.used,
    processes
  };
}

const RANK: Record<SegmentKind, number> = {
  kernel: 0,
  terminal: 1,
  orphan: 2,
  other: 3,
  unattributed: 4,
  untold: 5,
  host: 6,
  driver: 7,
  free: 8
};

/** A context with its kernels and libraries takes 0.3 to 0.9 GiB; what holds more computes, too. */
const MOST_OF_A_CONTEXT = 2 ** 30;

/** Processes below a kernel that hold little more than a CUDA context: `count` of them, about `each` bytes. */
export interface Contexts {
  count: number;
  each: number;
}

/**
 * Count the processes that a kernel started and that have a CUDA context and hardly anything in it: data loaders and
 * helpers that touched the GPU by accident, as a rule.
 */
export function contextsBelow(processes: readonly ProcessState[], kernelPid: number | null): Contexts | null {
  const held = processes
    .filter(process => process.pid > 0 && process.pid !== kernelPid && !process.reported)
    .map(process => process.used ?? 0)
    .filter(used => used > 0 && used <= MOST_OF_A_CONTEXT);
  if (kernelPid === null || held.length === 0) {
    return null;
  }
  return { count: held.length, each: held.reduce((sum, used) => sum + used, 0) / held.length };
}

/** One row a kernel (with its children), one a process of anybody else; the largest first within each kind. */
export function ownerRows(processes: readonly ProcessState[]): OwnerRow[] {
  const kernels = new Map<string, ProcessState[]>();
  const rows: OwnerRow[] = [];
  for (const process of processes) {
    if (process.owner === 'kernel' && process.kernelId !== null) {
      const group = kernels.get(process.kernelId) ?? [];
      group.push(process);
      kernels.set(process.kernelId, group);
    } else {
      rows.push(row(`pid ${process.pid}`, [process]));
    }
  }
  for (const [kernelId, group] of kernels) {
    group.sort((a, b) => (b.used ?? 0) - (a.used ?? 0));
    rows.push(row(`kernel ${kernelId}`, group));
  }
  return rows.sort((a, b) => RANK[a.kind] - RANK[b.kind] || (b.bytes ?? 0) - (a.bytes ?? 0));
}
