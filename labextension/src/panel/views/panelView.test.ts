/** The panel under every fault of the driver, drawn from the states that tests/server/test_fault_matrix.py records. */

import { readFileSync } from 'node:fs';
import { nullTranslator, type TranslationBundle } from '@jupyterlab/translation';
import { afterEach, describe, expect, it } from 'vitest';
import { Folds } from '../folds';
import { parseKernelNumbers } from '../kernelNumbers';
import { MonitorModel } from '../model';
import { parseState } from '../parse';
import type { FeedMessage, State } from '../protocol';
import type { Actions } from './context';
import { spoken } from './dom';
import { PanelView } from './panelView';
import { Tip } from './tip';

const GIB = 2 ** 30;
const FAULTS = JSON.parse(readFileSync('../tests/server/faults.json', 'utf-8')) as Record<string, object>;
const NO_ACTIONS: Actions = { open: () => {}, copy: () => {}, menu: () => {}, ranges: () => {} };

interface Shown {
  model: MonitorModel;
  view: PanelView;
  node: HTMLElement;
}

let shown: Shown | null = null;

function show(trans: TranslationBundle = nullTranslator.load('gpumem_magic')): Shown {
  const model = new MonitorModel();
  const node = document.body.appendChild(document.createElement('div'));
  const context = { model, trans, actions: NO_ACTIONS, tip: new Tip(node), folds: new Folds(null) };
  const view = new PanelView(node, context, () => {});
  view.visible = true;
  shown = { model, view, node };
  return shown;
}

afterEach(() => {
  shown?.view.dispose();
  document.body.replaceChildren();
  shown = null;
});

/** What can be seen of a node, one line a text. */
function lines(node: Element): string[] {
  const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  const found: string[] = [];
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent?.trim() ?? '';
    if (text !== '' && !walker.currentNode.parentElement?.closest('[hidden]')) {
      found.push(text);
    }
  }
  return found;
}

function tickOf(state: State): FeedMessage {
  const devices = state.devices.map(device => ({ ...device, utilization: device.utilization === null ? null : 42 }));
  return { type: 'delta', timeUs: state.timeUs + 1e6, devices, host: state.host };
}

function unfold(node: HTMLElement): void {
  for (const toggle of node.querySelectorAll<HTMLElement>('.gpumem-toggle[aria-expanded=false]')) {
    toggle.click();
  }
}

function cards(node: HTMLElement): HTMLElement[] {
  return [...node.querySelectorAll<HTMLElement>('.gpumem-device')];
}

describe.each(Object.entries(FAULTS))('%s', (_name, wire) => {
  it('leaves the panel right for the rest, with a reason for all that is missing', () => {
    const { model, node } = show();
    const state = parseState(wire);
    model.apply({ type: 'state', state });
    unfold(node);
    const before = lines(node);
    model.apply(tickOf(state));
    expect(cards(node)).toHaveLength(state.devices.length);
    for (const text of [...before, ...lines(node)]) {
      expect(text).not.toMatch(/NaN|undefined|null|\[object|Infinity|`/);
    }
    const banner = node.querySelector('.gpumem-banner:not([hidden])');
    const foreign = state.devices.some(device => device.processes.some(process => process.owner === 'foreign'));
    expect(banner === null).toBe(state.problem === null && !foreign);
    if (state.problem !== null) {
      expect(banner?.textContent).toContain(spoken(state.problem));
      const quoted = [...(banner?.querySelectorAll('code.gpumem-quoted') ?? [])].map(code => code.textContent);
      expect(quoted).toEqual([...state.problem.matchAll(/`([^`]+)`/g)].map(match => match[1]));
    }
    for (const [at, card] of cards(node).entries()) {
      const device = state.devices[at];
      const dead = device?.memoryUsed === null && device.temperatureC === null;
      expect(card.classList.contains('gpumem-silent')).toBe(dead);
      if (dead) {
        expect(lines(card).join(' ')).toContain(device.missing.memoryUsed);
      } else if (device?.utilization !== null) {
        expect(lines(card)).toContain('42 %');
      }
    }
    for (const missing of node.querySelectorAll('.gpumem-missing')) {
      expect(missing.textContent).toMatch(/^n\/a: .{10,}/);
      expect(missing.textContent).not.toContain('gave no reason');
      expect(missing.getAttribute('tabindex')).toBe('0');
    }
    // The host goes on whatever the driver does.
    expect(lines(node)).toContain('Host memory');
  });

  it('has a name for everything that a screen reader stops at', () => {
    const { model, node } = show();
    model.apply({ type: 'state', state: parseState(wire) });
    unfold(node);
    for (const stop of node.querySelectorAll('button, [role=img], section, ol, [tabindex="0"]')) {
      if (stop.closest('[hidden]')) {
        continue;
      }
      const by = stop.getAttribute('aria-labelledby');
      const named = by === null ? null : document.getElementById(by)?.textContent;
      expect(named || stop.getAttribute('aria-label') || stop.textContent?.trim(), stop.outerHTML).toBeTruthy();
    }
    const ids = [...node.querySelectorAll('[id]')].map(one => one.id);
    expect(new Set(ids).size).toBe(ids.length);
  });
});

describe('the panel', () => {
  const kernels = [
    {
      id: 'k',
      name: 'python3',
      pid: 7,
      executionState: 'idle',
      lastActivityUs: 1,
      hostMemory: 5 * GIB,
      notebooks: [{ path: 'data/train.ipynb', name: 'train.ipynb', type: 'notebook' }],
      missing: {}
    }
  ];
  const processes = [
    { pid: 7, used: 20 * GIB, name: 'prog', owner: 'kernel', kernelId: 'k' },
    { pid: 8, used: 2 * GIB, name: 'prog', owner: 'orphan', notebooks: ['old.ipynb'], startedUs: 1, command: 'a b' },
    { pid: 9, used: 1 * GIB, name: 'prog', owner: 'terminal', terminal: '1' },
    { pid: 10, used: null, name: null, owner: 'other', missing: { used: 'data', name: 'data' } },
    { pid: 11, used: 1 * GIB, name: null, owner: 'foreign', missing: { name: 'data' } }
  ];
  const device = {
    index: 0,
    uuid: 'GPU-1',
    name: 'H200',
    memoryTotal: 80 * GIB,
    memoryUsed: 30 * GIB,
    memoryReserved: GIB,
    utilization: 5,
    temperatureC: 40,
    powerW: 100,
    powerLimitW: 700,
    processes,
    numaNode: 1,
    throttle: ['data'],
    health: ['data']
  };
  const state = (): State =>
    parseState({
      protocol: 1,
      package: '0+unknown',
      timeUs: 7200e6,
      intervalMs: 1000,
      driver: '580',
      host: { name: 'node', memoryTotal: 64 * GIB, memoryUsed: 8 * GIB },
      devices: [device, { ...device, index: 1, uuid: 'GPU-2', unified: true }],
      kernels
    });
  const numbers = parseKernelNumbers({
    protocol: 1,
    timeUs: 1,
    devices: [
      { key: 'cuda:0', uuid: '1', allocated: 5 * GIB, reserved: 6 * GIB, peak: 7 * GIB, limit: 10 * GIB, outside: GIB }
    ],
    cells: [
      { cellId: 'c2', title: 'In [9]', peak: 2 * GIB, stayed: 0, run: 2, runs: 2, outcome: 'interrupted', seconds: 3 },
      { cellId: 'c1', title: 'In [8]', peak: 7 * GIB, stayed: GIB, freed: GIB, leak: 'data', line: 'data' }
    ],
    alive: [
      {
        key: 'cuda:0',
        total: 5 * GIB,
        unsure: GIB,
        rows: [
          {
            cellId: 'c1',
            title: 'In [8]',
            line: 'data',
            bytes: 4 * GIB,
            blocks: 2,
            names: ['data'],
            lastUsed: 'In [9]'
          },
          { cellId: null, title: null, bytes: GIB, blocks: 1, names: [] }
        ]
      }
    ]
  });

  function open(jumped: string[] = [], trans?: TranslationBundle): Shown {
    const all = show(trans);
    all.view.active = { name: 'train.ipynb', kernelId: 'k', numbers, jump: cellId => jumped.push(cellId) };
    all.model.apply({ type: 'state', state: state() });
    all.view.drawAll();
    return all;
  }

  it('shows what is alive by the cell that made it, and jumps to it', () => {
    const jumped: string[] = [];
    const { node } = open(jumped);
    const [alive] = node.querySelectorAll('.gpumem-alive');
    expect(alive && lines(alive)).toEqual([
      'Alive on cuda:0, by the cell that made it',
      '5.00 GiB',
      'In [8]',
      'data',
      '4.00 GiB',
      '2 blocks · data · last used in In [9]',
      'Before, or by cells that were not measured',
      '1.00 GiB',
      '1 block',
      'and up to 1.00 GiB that may be gone'
    ]);
    const [first, second] = alive?.querySelectorAll('button') ?? [];
    first?.click();
    second?.click();
    expect(jumped).toEqual(['c1']);
  });

  it('sorts the measured runs by time or by peak', () => {
    const { node } = open();
    const titles = (): (string | null)[] =>
      [...node.querySelectorAll('.gpumem-runs .gpumem-link')].map(link => link.textContent);
    expect(titles()).toEqual(['In [9], run 2 of 2', 'In [8]']);
    expect(lines(node).join('\n')).toContain('peak 7.00 GiB · stayed 1.00 GiB · freed 1.00 GiB');
    expect(lines(node)).toContain('interrupted');
    const order = [...node.querySelectorAll('button')].find(one => one.textContent === 'newest first');
    order?.click();
    expect(titles()).toEqual(['In [8]', 'In [9], run 2 of 2']);
    expect(order?.getAttribute('aria-label')).toBe('highest first. Sort by time, newest first');
  });

  it('draws torch’s numbers up to the limit', () => {
    const { node } = open();
    const widths = [...node.querySelectorAll<HTMLElement>('.gpumem-torch-bar .gpumem-part')].map(
      one => one.style.width
    );
    expect(widths).toEqual(['50%', '10%', '10%']);
    expect(node.querySelector('.gpumem-torch-bar')?.getAttribute('aria-label')).toBe('60 % of the limit is reserved');
  });

  it('labels memory that is the host’s', () => {
    const { node } = open();
    const badges = [...node.querySelectorAll('.gpumem-badge')].map(one => one.textContent);
    expect(badges).toEqual(['also the host’s NUMA node 1', 'shares the host’s memory']);
  });

  it('says since when a kernel that holds memory is idle', () => {
    const { node } = open();
    expect(lines(node).join('\n')).toContain('PID 7 prog · idle for 2 h');
  });

  it('says which processes of a notebook have little more than a CUDA context', () => {
    const all = open();
    const below = [1, 2, 3, 4].map(n => ({
      pid: 20 + n,
      used: 520 * 2 ** 20,
      name: 'w',
      owner: 'kernel',
      kernelId: 'k'
    }));
    const crowded = parseState({ ...state(), devices: [{ ...device, processes: [...processes, ...below] }] });
    all.model.apply({ type: 'state', state: crowded });
    all.view.drawAll();
    expect(lines(all.node).join('\n')).toContain(
      '4 of 5 processes have little more than a CUDA context (about 520 MiB each) · PID 7 prog 20.0 GiB'
    );
  });

  it('says nothing that cannot be translated', () => {
    const plain = nullTranslator.load('gpumem_magic');
    const marked = {
      __: (text: string, ...words: string[]) => `⟦${plain.__(text, ...words)}⟧`,
      _n: (one: string, many: string, count: number, ...words: unknown[]) =>
        `⟦${plain._n(one, many, count, ...(words as string[]))}⟧`
    } as unknown as TranslationBundle;
    const { node } = open([], marked);
    // What is left without the marked texts: numbers with their units, and what the driver and the user named.
    const given =
      /^(?:[\d.,−]+|GiB|MiB|B|%|°C|W|s|min|h|of|⋯|·|cuda:0|In|\[\d\]|H200|node|train\.ipynb|prog|data|[a-b:])*$/;
    for (const text of lines(node)) {
      let rest = text;
      while (/⟦[^⟦⟧]*⟧/.test(rest)) {
        rest = rest.replace(/⟦[^⟦⟧]*⟧/g, '');
      }
      expect(rest.replace(/\s+/g, ''), text).toMatch(given);
    }
    for (const label of node.querySelectorAll('[aria-label]')) {
      expect(label.getAttribute('aria-label')).toContain('⟦');
    }
  });

  it('does nothing while it is hidden, and makes up for it', () => {
    const { model, node, view } = open();
    view.visible = false;
    const before = node.innerHTML;
    model.apply(tickOf(state()));
    expect(node.innerHTML).toBe(before);
    view.visible = true;
    expect(lines(node)).toContain('42 %');
  });
});
