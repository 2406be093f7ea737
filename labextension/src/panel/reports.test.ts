import { describe, expect, it } from 'vitest';
import { type KernelNumbers, parseKernelNumbers } from './kernelNumbers';
import { MonitorModel } from './model';
import { parseState } from './parse';
import type { ProcessState } from './protocol';
import { withReports } from './reports';
import { deviceBar } from './segments';

const GIB = 2 ** 30;

function process(pid: number, used: number | null, owner: ProcessState['owner'], kernelId: string | null = null) {
  return { pid, used, name: null, owner, kernelId, missing: {} };
}

/** A kernel that says that torch has reserved so much on torch's device of this UUID. */
function says(uuid: string, reserved: number, outside: number | null = null): KernelNumbers {
  const numbers = parseKernelNumbers({ protocol: 1, timeUs: 1, devices: [{ key: 'cuda:0', uuid, reserved, outside }] });
  if (!numbers) {
    throw new Error('not a message');
  }
  return numbers;
}

function told(processes: ProcessState[]): [string, string | null, number | null, boolean][] {
  return processes.map(one => [one.owner, one.kernelId, one.used && one.used / GIB, one.reported === true]);
}

describe('what kernels report', () => {
  const reports = new Map([['k', says('AA-1', 3 * GIB, GIB)]]);

  it('stands beside the host’s PIDs, and is counted once', () => {
    const processes = [process(4711, 10 * GIB, 'foreign'), process(4712, 2 * GIB, 'foreign')];
    const shown = withReports({ uuid: 'GPU-aa-1', processes }, reports);
    expect(told(shown)).toEqual([
      ['kernel', 'k', 4, true],
      ['foreign', null, 8, false]
    ]);
    const bar = deviceBar({ memoryTotal: 80 * GIB, memoryUsed: 12 * GIB }, shown, ['k']);
    expect(bar?.segments.map(part => [part.kind, part.bytes / GIB])).toEqual([
      ['kernel', 4],
      ['other', 8],
      ['free', 68]
    ]);
  });

  it('explains memory where the driver lists no process at all', () => {
    const shown = withReports({ uuid: 'GPU-aa-1', processes: [] }, reports);
    const bar = deviceBar({ memoryTotal: 80 * GIB, memoryUsed: 5 * GIB }, shown, ['k']);
    expect(bar?.segments.map(part => [part.kind, part.bytes / GIB])).toEqual([
      ['kernel', 4],
      ['unattributed', 1],
      ['free', 75]
    ]);
  });

  it('fills in sizes that the driver hides', () => {
    const processes = [process(7, null, 'kernel', 'k'), process(8, null, 'kernel', 'other')];
    expect(told(withReports({ uuid: 'GPU-aa-1', processes }, reports))).toEqual([
      ['kernel', 'k', 4, true],
      ['kernel', 'other', null, false]
    ]);
  });

  it('is not asked where the driver tells', () => {
    const processes = [process(7, 5 * GIB, 'kernel', 'k')];
    expect(withReports({ uuid: 'GPU-aa-1', processes }, reports)).toEqual(processes);
  });

  it('belongs to the device of its UUID, and to a MIG instance by its own', () => {
    expect(withReports({ uuid: 'GPU-bb-2', processes: [] }, reports)).toEqual([]);
    expect(withReports({ uuid: null, processes: [] }, reports)).toEqual([]);
    const slice = new Map([['k', says('MIG-cc-3', GIB)]]);
    expect(told(withReports({ uuid: 'MIG-cc-3', processes: [] }, slice))).toEqual([['kernel', 'k', 1, true]]);
  });

  it('of nothing is nothing, and leaves unknown sizes alone', () => {
    const idle = new Map([['k', says('aa-1', 0)]]);
    expect(withReports({ uuid: 'GPU-aa-1', processes: [] }, idle)).toEqual([]);
    const untold = [process(4711, null, 'foreign')];
    expect(told(withReports({ uuid: 'GPU-aa-1', processes: untold }, reports))).toEqual([
      ['kernel', 'k', 4, true],
      ['foreign', null, null, false]
    ]);
  });
});

describe('the model', () => {
  const kernels = [{ id: 'k', name: 'python3', notebooks: [] }];
  const state = (processes: object[]) => ({
    type: 'state' as const,
    state: parseState({ protocol: 1, devices: [{ index: 0, uuid: 'GPU-aa-1', processes }], kernels })
  });

  it('has the cards look again only where a report changes them', () => {
    const model = new MonitorModel();
    const changes: string[] = [];
    model.apply(state([{ pid: 7, used: GIB, owner: 'kernel', kernelId: 'k' }]));
    model.changed.connect((_, change) => changes.push(change));
    model.report('k', says('aa-1', GIB));
    expect(changes).toEqual([]);
    model.apply(state([]));
    model.report('k', says('aa-1', 2 * GIB));
    model.report('k', null);
    expect(changes).toEqual(['structure', 'structure', 'structure']);
    expect(model.reports.size).toBe(0);
  });

  it('forgets what kernels said that are gone', () => {
    const model = new MonitorModel();
    model.apply(state([]));
    model.report('k', says('aa-1', GIB));
    model.apply({ type: 'state', state: parseState({ protocol: 1, devices: [], kernels: [] }) });
    expect(model.reports.size).toBe(0);
  });
});
