import { readFileSync } from 'node:fs';
import { nullTranslator } from '@jupyterlab/translation';
import { beforeEach, describe, expect, it } from 'vitest';
import { Alarm } from './alarm';
import { historyCsv } from './export';
import { Folds } from './folds';
import { compareVersions, driverMessage, kernelMessage, serverMessage } from './messages';
import { type Change, MonitorModel } from './model';
import { COLORS, heldBy, kernelLabels, Palette } from './owners';
import { ProtocolError, parseHistory, parseMessage, parseState } from './parse';
import type { KernelState, State } from './protocol';
import { contextsBelow, ownerRows } from './rows';
import { DEFAULTS, isHidden, readSettings } from './settings';
import { VERSION } from './version';

const S = 1e6;
const GIB = 2 ** 30;

function kernel(id: string, ...paths: string[]): KernelState {
  const notebooks = paths.map(path => ({ path, name: path.split('/').pop() ?? '', type: 'notebook' }));
  return { id, name: 'python3', pid: 7, executionState: 'idle', hostMemory: null, notebooks, missing: {} };
}

/** What a server sends, as plain data. */
function wire(timeUs: number, devices: object[], kernels: KernelState[] = []): unknown {
  const host = { name: 'node', memoryTotal: 64 * GIB, memoryUsed: 8 * GIB, missing: {} };
  return {
    protocol: 1,
    package: VERSION,
    timeUs,
    intervalMs: 1000,
    driver: '580',
    problem: null,
    host,
    devices,
    kernels
  };
}

function device(index: number, fields: object = {}): object {
  return { index, uuid: `GPU-${index}`, name: 'H200', memoryTotal: 100, memoryUsed: 10, utilization: 5, ...fields };
}

function delta(timeUs: number, index: number, memoryUsed: number | null): string {
  const values = {
    index,
    memoryUsed,
    memoryReserved: 1,
    memoryFree: null,
    utilization: 50,
    temperatureC: 40,
    powerW: 9
  };
  return JSON.stringify({ type: 'delta', timeUs, devices: [values], host: { memoryUsed: 1 } });
}

describe('parsing', () => {
  it('makes what is missing or of the wrong type unknown', () => {
    const state = parseState(
      wire(1, [{ index: 0, memoryUsed: '12', utilization: Number.NaN, processes: [{ pid: 3 }] }])
    );
    const [only] = state.devices;
    expect([only?.memoryUsed, only?.utilization, only?.throttle, only?.unified]).toEqual([null, null, [], false]);
    expect(only?.processes[0]).toMatchObject({ pid: 3, used: null, owner: 'other', kernelId: null, missing: {} });
  });

  it('refuses another protocol and names the server’s version', () => {
    const refused = (): State => parseState({ protocol: 2, package: '3.1.0' });
    expect(refused).toThrow(ProtocolError);
    try {
      refused();
    } catch (error) {
      expect((error as ProtocolError).package_).toBe('3.1.0');
    }
  });

  it('passes over messages that it does not know', () => {
    expect(parseMessage('{"type": "weather"}')).toBeNull();
    expect(parseMessage('[]')).toBeNull();
    expect(() => parseMessage('not json')).toThrow(SyntaxError);
  });

  it('tells "not looked up" from "not installed"', () => {
    const [absent, none, some] = parseState(
      wire(1, [], [{ ...kernel('a') }, { ...kernel('b'), package: null }, { ...kernel('c'), package: '1.0' }])
    ).kernels;
    expect([absent?.package, none?.package, some?.package]).toEqual([undefined, null, '1.0']);
  });
});

describe('the model', () => {
  let model: MonitorModel;
  let changes: Change[];

  beforeEach(() => {
    model = new MonitorModel();
    changes = [];
    model.changed.connect((_, change) => changes.push(change));
  });

  function send(text: string): void {
    const message = parseMessage(text);
    if (message) {
      model.apply(message);
    }
  }

  it('ignores a delta before the first state, and follows it after', () => {
    send(delta(S, 0, 60));
    expect(model.state).toBeNull();
    model.apply({ type: 'state', state: parseState(wire(2 * S, [device(0), device(1)])) });
    send(delta(3 * S, 0, 60));
    expect(model.devices.map(one => one.memoryUsed)).toEqual([60, 10]);
    expect(changes).toEqual(['structure', 'tick']);
  });

  it('keeps the history of a device under its UUID when its index changes', () => {
    model.apply({ type: 'state', state: parseState(wire(S, [device(0, { uuid: 'GPU-x', memoryUsed: 11 })])) });
    model.apply({ type: 'state', state: parseState(wire(2 * S, [device(3, { uuid: 'GPU-x', memoryUsed: 12 })])) });
    const { memory } = model.historyOf({ uuid: 'GPU-x', index: 3 });
    expect([...memory.entries()].map(entry => entry.value)).toEqual([11, 12]);
  });

  it('records a lost device as a gap', () => {
    model.apply({ type: 'state', state: parseState(wire(S, [device(0)])) });
    send(delta(2 * S, 0, null));
    send(delta(3 * S, 0, 20));
    const { memory } = model.historyOf({ uuid: 'GPU-0', index: 0 });
    expect(memory.runs(0, S, 'max').map(run => run.map(point => point.value))).toEqual([[10], [20]]);
  });

  it('takes over the server’s history', () => {
    model.apply({ type: 'state', state: parseState(wire(9 * S, [device(0)])) });
    model.applyHistory(
      parseHistory({
        timeUs: [7 * S, 8 * S],
        devices: [{ uuid: 'GPU-0', index: 0, memoryUsed: [1, null], utilization: [3, 4] }],
        host: { memoryUsed: [5, 6] }
      })
    );
    expect([...model.historyOf({ uuid: 'GPU-0', index: 0 }).memory.entries()].map(entry => entry.value)).toEqual([
      1,
      null,
      10
    ]);
    expect(changes).toEqual(['structure', 'history']);
  });

  it('hides devices by index, UUID or name', () => {
    model.settings = { ...DEFAULTS, hiddenDevices: ['1', 'GPU-2', 'Old card'] };
    const devices = [device(0), device(1), device(2), device(3, { name: 'Old card' })];
    model.apply({ type: 'state', state: parseState(wire(S, devices)) });
    expect(model.devices.map(one => one.index)).toEqual([0]);
    expect(model.devices.some(one => isHidden(one, model.settings.hiddenDevices))).toBe(false);
  });

  it('writes its history as CSV that no spreadsheet runs', () => {
    model.apply({ type: 'state', state: parseState(wire(S, [device(0, { name: '=cmd, "x"' })])) });
    expect(historyCsv(model)).toBe(
      [
        'time_utc,index,uuid,name,used_bytes,total_bytes,utilization_percent',
        `1970-01-01T00:00:01.000Z,0,GPU-0,"'=cmd, ""x""",10,100,5`,
        '1970-01-01T00:00:01.000Z,,host,node,8589934592,68719476736,',
        ''
      ].join('\n')
    );
  });
});

describe('owners', () => {
  it('are called by as much of the path as tells them apart', () => {
    const labels = kernelLabels([
      kernel('1', 'a/train.ipynb'),
      kernel('2', 'b/train.ipynb'),
      kernel('3', 'x/y/eval.ipynb', 'notes.ipynb'),
      kernel('4')
    ]);
    expect([...labels.values()]).toEqual(['a/train.ipynb', 'b/train.ipynb', 'eval.ipynb, notes.ipynb', 'python3']);
  });

  it('keep their colour, and give it back when they go', () => {
    const palette = new Palette();
    palette.keep(['a', 'b', 'c']);
    palette.keep(['a', 'c']);
    palette.keep(['a', 'c', 'd']);
    expect(['a', 'c', 'd'].map(id => palette.colorOf(id))).toEqual([0, 2, 1]);
    const many = Array.from({ length: COLORS + 2 }, (_, at) => `k${at}`);
    palette.keep(many);
    expect(many.every(id => palette.colorOf(id) < COLORS)).toBe(true);
  });

  it('are listed largest first, with a kernel’s children in one row', () => {
    const processes = [
      { pid: 1, used: 5, owner: 'other' },
      { pid: 2, used: 1, owner: 'kernel', kernelId: 'k' },
      { pid: 3, used: 3, owner: 'kernel', kernelId: 'k' },
      { pid: 4, used: null, owner: 'foreign', missing: { used: 'not told' } },
      { pid: 5, used: 9, owner: 'orphan' }
    ];
    const [only] = parseState(wire(1, [device(0, { processes })])).devices;
    const rows = ownerRows(only?.processes ?? []);
    expect(rows.map(row => [row.key, row.bytes])).toEqual([
      ['kernel k', 4],
      ['pid 5', 9],
      ['pid 1', 5],
      ['pid 4', null]
    ]);
    expect(rows[3]?.reason).toBe('not told');
  });

  it('count the processes below a kernel that have a context and hardly anything in it', () => {
    const mib = 2 ** 20;
    const below = (...held: (number | null)[]): unknown[] =>
      held.map((used, at) => ({ pid: 20 + at, used, owner: 'kernel', kernelId: 'k' }));
    const counted = (processes: unknown[], kernelPid: number | null = 7): unknown => {
      const [only] = parseState(wire(1, [device(0, { processes })])).devices;
      return contextsBelow(only?.processes ?? [], kernelPid);
    };
    const own = { pid: 7, used: 520 * mib, owner: 'kernel', kernelId: 'k' };
    expect(counted([own, ...below(500 * mib, 540 * mib, 9 * GIB, null, 0)])).toEqual({ count: 2, each: 520 * mib });
    expect(counted([own])).toBeNull();
    expect(counted([own, ...below(9 * GIB)])).toBeNull();
    // Which of them is the kernel is not known.
    expect(counted([own, ...below(500 * mib)], null)).toBeNull();
  });

  it('hold what their instances list when MIG is on', () => {
    const mig = [{ index: 0, processes: [{ pid: 1, used: 7, owner: 'kernel', kernelId: 'k' }] }];
    const [only] = parseState(wire(1, [device(0, { mig })])).devices;
    expect(only && heldBy('k', only)).toBe(7);
    expect(only && heldBy('other', only)).toBeNull();
  });
});

describe('the alarm', () => {
  it('warns once, and again only after the device was clearly emptier', () => {
    const alarm = new Alarm();
    const at = (used: number): number => {
      const state = parseState(wire(1, [device(0, { memoryUsed: used })]));
      return alarm.check(state.devices, 0.9).length;
    };
    expect([80, 91, 99, 89, 92, 79, 95].map(at)).toEqual([0, 1, 0, 0, 0, 0, 1]);
  });

  it('is silent when it is switched off', () => {
    const state = parseState(wire(1, [device(0, { memoryUsed: 100 })]));
    expect(new Alarm().check(state.devices, 0)).toEqual([]);
  });
});

describe('messages', () => {
  const trans = nullTranslator.load('gpumem_magic');
  const state = parseState(wire(1, []));

  it('compare versions by number', () => {
    expect(compareVersions('0.9.0', '0.10.0')).toBeLessThan(0);
    expect(compareVersions('1.0.0rc1', '1.0.0')).toBe(0);
  });

  it('say what to install where', () => {
    expect(serverMessage(trans, { kind: 'absent' }, null)?.command).toBe(`pip install gpumem-magic==${VERSION}`);
    expect(serverMessage(trans, { kind: 'live', transport: 'socket' }, state)).toBeNull();
    const older = serverMessage(trans, { kind: 'live', transport: 'rest' }, { ...state, package: '0.0.9' });
    expect(older?.text).toContain('Restart Jupyter');
    const newer = serverMessage(trans, { kind: 'protocol', package: '9.0.0' }, null);
    expect(newer).toMatchObject({ level: 'error', command: 'jupyter labextension list' });
    expect(serverMessage(trans, { kind: 'live', transport: 'rest' }, { ...state, package: '0+unknown' })).toBeNull();
  });

  it('look at the kernel’s own environment', () => {
    const python = '/opt/env/bin/python';
    const missing = kernelMessage(trans, { ...kernel('k'), package: null, python }, state);
    expect(missing?.command).toBe(`${python} -m pip install gpumem-magic==${VERSION}`);
    const spaced = kernelMessage(trans, { ...kernel('k'), package: null, python: '/my envs/a/bin/python' }, state);
    expect(spaced?.command).toMatch(/^"\/my envs\/a\/bin\/python" -m pip install /);
    expect(kernelMessage(trans, kernel('k'), state)).toBeNull();
    expect(kernelMessage(trans, { ...kernel('k'), package: '0.0.1', python }, state)?.text).toContain('0.0.1');
    expect(kernelMessage(trans, { ...kernel('k'), package: VERSION }, state)).toBeNull();
  });

  it('pass on why there is no device', () => {
    expect(driverMessage(trans, { ...state, problem: 'No driver.' }, new Map())?.text).toBe('No driver.');
    expect(driverMessage(trans, state, new Map())).toBeNull();
  });

  it('name the kernels that have a device open where PIDs cannot be matched', () => {
    const processes = [{ pid: 9, used: 1, owner: 'foreign', missing: { name: 'host PIDs' } }];
    const kernels = [
      { ...kernel('a', 'a.ipynb'), opensDevice: true },
      { ...kernel('b', 'b.ipynb'), opensDevice: false }
    ];
    const inside = parseState(wire(1, [device(0, { processes })], kernels));
    expect(driverMessage(trans, inside, kernelLabels(inside.kernels))?.text).toBe(
      'Processes cannot be matched to notebooks: host PIDs. Kernels that have a device open: a.ipynb.'
    );
  });
});

describe('settings', () => {
  const schema = JSON.parse(readFileSync('schema/panel.json', 'utf-8')) as {
    properties: Record<string, { default: unknown }>;
  };

  it('have one set of defaults', () => {
    const defaults = Object.fromEntries(
      Object.entries(schema.properties).map(([name, value]) => [name, value.default])
    );
    expect(readSettings(defaults)).toEqual(DEFAULTS);
    expect(readSettings({})).toEqual(DEFAULTS);
  });

  it('stay within bounds whatever is written in the file', () => {
    const wild = readSettings({ interval: 0, historyMinutes: 1e9, units: 'furlong', warnAtPercent: 'x' });
    expect(wild).toMatchObject({ intervalMs: 500, historySeconds: 86_400, units: 'auto', warnAt: 0.95 });
  });
});

describe('folds', () => {
  it('outlive the page, and survive what others left in the storage', () => {
    const kept = new Map<string, string>();
    const storage = {
      getItem: (key: string) => kept.get(key) ?? null,
      setItem: (key: string, value: string) => void kept.set(key, value)
    };
    new Folds(storage).set('GPU-0', false);
    expect(new Folds(storage).get('GPU-0')).toBe(false);
    expect(new Folds(storage).get('GPU-1')).toBeUndefined();
    for (const left of ['not json', '[1]', '{"GPU-0": "no"}', 'null']) {
      kept.set('gpumem-magic:folds', left);
      expect(new Folds(storage).get('GPU-0')).toBeUndefined();
    }
    const none = new Folds(null);
    none.set('GPU-0', true);
    expect(none.get('GPU-0')).toBe(true);
  });
});

describe('the version', () => {
  it('is the package’s', () => {
    expect((JSON.parse(readFileSync('package.json', 'utf-8')) as { version: string }).version).toBe(VERSION);
  });
});
