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
