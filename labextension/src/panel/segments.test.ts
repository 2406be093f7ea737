import { describe, expect, it } from 'vitest';
import type { ProcessState } from './protocol';
import { asHost, deviceBar, fullness, restOf } from './segments';

const GIB = 2 ** 30;

function process(owner: ProcessState['owner'], used: number | null, kernelId: string | null = null): ProcessState {
  return { pid: 1, used, name: 'python', owner, kernelId, missing: {} };
}

function kinds(bar: ReturnType<typeof deviceBar>): [string, number][] {
  return (bar?.segments ?? []).map(part => [part.kernelId ?? part.kind, part.bytes / GIB]);
}

describe('a bar', () => {
  const memory = { memoryTotal: 80 * GIB, memoryUsed: 50 * GIB, memoryReserved: GIB };
  const processes = [
    process('other', 5 * GIB),
    process('kernel', 20 * GIB, 'b'),
    process('kernel', 10 * GIB, 'a'),
    process('kernel', 4 * GIB, 'b'),
    process('orphan', 2 * GIB),
    process('terminal', 3 * GIB),
    process('server', GIB),
    process('foreign', null)
  ];

  it('has a part for each kernel and each kind, in the kernels’ order, and adds up', () => {
    const bar = deviceBar(memory, processes, ['a', 'b']);
    expect(kinds(bar)).toEqual([
      ['a', 10],
      ['b', 24],
      ['terminal', 4],
      ['orphan', 2],
      ['other', 5],
      ['untold', 5],
      ['driver', 1],
      ['free', 29]
    ]);
    expect(bar?.whole).toBe(80 * GIB);
    expect(restOf(bar).map(part => part.kind)).toEqual(['untold', 'driver', 'free']);
    const told = processes.filter(one => one.used !== null);
    expect(restOf(deviceBar(memory, told)).map(part => part.kind)).toEqual(['unattributed', 'driver', 'free']);
  });

  it('calls the rest of a host other programs', () => {
    const told = asHost(deviceBar(memory, [process('kernel', 10 * GIB, 'a'), process('other', 10 * GIB)]));
    expect(kinds(told)).toEqual([
      ['a', 10],
      ['other', 10],
      ['host', 30],
      ['driver', 1],
      ['free', 29]
    ]);
    expect(asHost(null)).toBeNull();
  });

  it('believes the processes when they hold more than the device said a moment ago', () => {
    const bar = deviceBar({ ...memory, memoryUsed: 8 * GIB }, [process('kernel', 10 * GIB, 'a')]);
    expect(kinds(bar)).toEqual([
      ['a', 10],
      ['driver', 1],
      ['free', 69]
    ]);
  });

  it('grows beyond the device rather than showing a negative part', () => {
    const bar = deviceBar({ memoryTotal: 8 * GIB, memoryUsed: 8 * GIB, memoryReserved: GIB }, []);
    expect(bar?.whole).toBe(9 * GIB);
    expect(bar?.segments.every(part => part.bytes > 0)).toBe(true);
  });

  it('is unknown when size or use is', () => {
    expect(deviceBar({ memoryTotal: null, memoryUsed: 1 }, [])).toBeNull();
    expect(deviceBar({ memoryTotal: 1, memoryUsed: null }, [])).toBeNull();
  });
});

describe('fullness', () => {
  it('counts the driver’s part', () => {
    expect(fullness({ memoryTotal: 10, memoryUsed: 8, memoryReserved: 1 })).toBe(0.9);
    expect(fullness({ memoryTotal: 10, memoryUsed: 8, memoryReserved: null })).toBe(0.8);
    expect(fullness({ memoryTotal: null, memoryUsed: 8 })).toBeNull();
  });
});
