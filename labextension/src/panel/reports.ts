/**
 * What kernels say of themselves, where the driver's process list does not name them.
 *
 * In a container the driver gives the host's PIDs, or none at all; in WSL it hides every process's memory. A kernel that
 * has the extension and runs in a notebook of this page still tells what torch has reserved. Pure.
 */

import type { KernelNumbers } from './kernelNumbers';
import type { ProcessState } from './protocol';

/** Kernel → its last message. */
export type Reports = ReadonlyMap<string, KernelNumbers>;

interface Holder {
  uuid: string | null;
  processes: ProcessState[];
}

/** NVML's UUIDs have a prefix, which torch leaves out. */
function bare(uuid: string): string {
  return uuid.toLowerCase().replace(/^(gpu|mig)-/, '');
}

/** What a kernel reports to hold on a device or MIG instance, at least; null when it reports nothing. */
function reportedBytes(numbers: KernelNumbers, uuid: string): number | null {
  const mine = numbers.devices.filter(device => device.uuid !== null && bare(device.uuid) === bare(uuid));
  const sum = mine.reduce((total, device) => total + (device.reserved ?? 0) + (device.outside ?? 0), 0);
  return sum > 0 ? sum : null;
}

/** The process list of a device, with what only the kernels themselves can tell put in its place. */
export function withReports({ uuid, processes }: Holder, reports: Reports): ProcessState[] {
  if (uuid === null || reports.size === 0) {
    return processes;
  }
  const added: ProcessState[] = [];
  const filled = new Map<ProcessState, number>();
  for (const [kernelId, numbers] of reports) {
    const held = reportedBytes(numbers, uuid);
    const listed = processes.filter(process => process.kernelId === kernelId);
    const [first] = listed;
    if (held === null || listed.some(process => process.used !== null)) {
      continue;
    }
    if (first) {
      filled.set(first, held);
    } else {
      added.push({ pid: 0, used: held, name: null, owner: 'kernel', kernelId, missing: {}, reported: true });
    }
  }
  const own = processes.map(process => {
    const held = filled.get(process);
    return held === undefined ? process : { ...process, used: held, reported: true };
  });
  return added.length === 0 ? own : [...added, ...lessenForeign(own, added)];
}

/** What kernels report is part of what the host's PIDs hold: count it once. */
function lessenForeign(processes: ProcessState[], added: ProcessState[]): ProcessState[] {
  const foreign = processes.filter(process => process.owner === 'foreign');
  const [first] = foreign;
  if (!first) {
    return processes;
  }
  const others = processes.filter(process => process.owner !== 'foreign');
  if (foreign.some(process => process.used === null)) {
    return processes;
  }
  const held = foreign.reduce((sum, process) => sum + (process.used ?? 0), 0);
  const rest = held - added.reduce((sum, process) => sum + (process.used ?? 0), 0);
  return rest > 0 ? [...others, { ...first, pid: foreign.length === 1 ? first.pid : 0, used: rest }] : others;
}
