/** The ledger in the panel: what is folded away, how names and leaks are put, and what an export shows of it. */

import { nullTranslator } from '@jupyterlab/translation';
import { afterEach, describe, expect, it } from 'vitest';
import { panelHtml } from '../export';
import { Folds } from '../folds';
import { parseKernelNumbers } from '../kernelNumbers';
import { MonitorModel } from '../model';
import { CellsView, joinNames, tellLeaksOnce } from './cells';
import { button, element, KeyedList, setSentence } from './dom';
import { Tip } from './tip';

const LEAK = 'each of the last 2 runs left 1 MiB of line 2 `losses_of_all.append(loss)`';

function shown(runs: number, rows: number): { node: HTMLElement; view: CellsView; tell: (runs: number) => void } {
  const node = document.body.appendChild(document.createElement('div'));
  const context = {
    model: new MonitorModel(),
    trans: nullTranslator.load('gpumem_magic'),
    actions: { open: () => {}, copy: () => {}, menu: () => {}, ranges: () => {} },
    tip: new Tip(node),
    folds: new Folds(null)
  };
  const view = new CellsView(context, () => {});
  node.append(view.node);
  const tell = (count: number): void =>
    view.update(
      parseKernelNumbers({
        protocol: 1,
        devices: [],
        cells: Array.from({ length: count }, (_, at) => ({ cellId: `c${count - at}`, title: `In [${count - at}]` })),
        alive: [{ key: 'cpu', rows: Array.from({ length: rows }, (_, at) => ({ title: `In [${at}]`, bytes: 1 })) }]
      })
    );
  tell(runs);
  return { node, view, tell };
}

function seen(node: Element, list: string): (string | null)[] {
  const rows = [...node.querySelectorAll<HTMLElement>(`${list} > li`)];
  return rows.filter(row => !row.hidden).map(row => row.querySelector('.gpumem-link')?.textContent ?? null);
}

afterEach(() => document.body.replaceChildren());

describe('the ledger', () => {
  it('shows the last five runs, and the rest at a click', () => {
    const { node, tell } = shown(8, 1);
    const newest = ['In [8]', 'In [7]', 'In [6]', 'In [5]', 'In [4]'];
    expect(seen(node, '.gpumem-runs')).toEqual(newest);
    const more = [...node.querySelectorAll<HTMLButtonElement>('.gpumem-all')].find(one => !one.hidden);
    expect(more?.textContent).toBe('Show 3 more runs');
    expect(more?.getAttribute('aria-expanded')).toBe('false');
    more?.click();
    expect(seen(node, '.gpumem-runs')).toHaveLength(8);
    expect(more?.textContent).toBe('Show fewer runs');
    // A run that comes in does not fold the list under the reader's eyes.
    tell(9);
    expect(seen(node, '.gpumem-runs')).toHaveLength(9);
    more?.click();
    expect(seen(node, '.gpumem-runs')).toEqual(['In [9]', ...newest.slice(0, 4)]);
  });

  it('folds nothing for a single row', () => {
    const { node } = shown(6, 6);
    expect(seen(node, '.gpumem-runs')).toHaveLength(6);
    expect(seen(node, '.gpumem-alive .gpumem-ledger')).toHaveLength(6);
    expect([...node.querySelectorAll<HTMLElement>('.gpumem-all')].every(one => one.hidden)).toBe(true);
  });

  it('is whole in an export', () => {
    const { node } = shown(12, 9);
    expect(seen(node, '.gpumem-alive .gpumem-ledger')).toHaveLength(5);
    const page = new DOMParser().parseFromString(panelHtml(node, 'GPU memory', 1e15), 'text/html');
    expect(seen(page.body, '.gpumem-runs')).toHaveLength(12);
    expect(seen(page.body, '.gpumem-alive .gpumem-ledger')).toHaveLength(9);
    expect(page.querySelector('.gpumem-all')).toBeNull();
  });

  it('keeps the focus when the order changes under it', () => {
    const node = document.body.appendChild(document.createElement('ul'));
    const list = new KeyedList<string>(
      node,
      name => name,
      name => ({
        node: element(
          'li',
          '',
          button('', name, null, () => {})
        ),
        update: () => {}
      })
    );
    list.sync(['a', 'b', 'c']);
    const last = node.querySelectorAll('button')[2];
    last?.focus();
    list.sync(['c', 'a', 'b']);
    expect(node.textContent).toBe('cab');
    expect(document.activeElement).toBe(last);
    list.sync(['a']);
    expect(document.activeElement).toBe(document.body);
  });

  it('names a thing once that several of its parts keep', () => {
    expect(joinNames(['losses[2]', 'losses[1]', 'losses[0]'])).toBe('losses[2], [1], [0]');
    expect(joinNames(['state["a"][0]', 'state["a"][1]', 'state["b"][0]'])).toBe('state["a"][0], [1], state["b"][0]');
    expect(joinNames(['model.layers', 'model.layers', 'x'])).toBe('model.layers, model.layers, x');
  });

  it('tells a leak at the last run of its cell only', () => {
    const cell = { peak: 1, stayed: 1, freed: null, seconds: 1, outcome: 'ok', line: null, run: 1, runs: 2 };
    const entries = [
      { ...cell, cellId: 'a', title: 'In [4]', leak: null },
      { ...cell, cellId: 'b', title: 'In [3]', leak: LEAK },
      { ...cell, cellId: 'a', title: 'In [2]', leak: LEAK },
      { ...cell, cellId: 'b', title: 'In [1]', leak: LEAK },
      { ...cell, cellId: null, title: 'old', leak: LEAK },
      { ...cell, cellId: null, title: 'older', leak: LEAK }
    ];
    const told = tellLeaksOnce(entries).filter(entry => entry.leak !== null);
    expect(told.map(entry => entry.title)).toEqual(['In [3]', 'In [2]', 'old', 'older']);
  });

  it('lets code break between words, not within one, and copies it as it is', () => {
    const node = document.createElement('span');
    setSentence(node, LEAK);
    expect(node.textContent).toBe(LEAK.replaceAll('`', ''));
    const pieces = (node.querySelector('bdi')?.innerHTML ?? '').split('<wbr>');
    expect(pieces).toEqual(['losses_', 'of_', 'all.', 'append(', 'loss)']);
    expect(node.querySelector('.gpumem-whole')).toBeNull();
    setSentence(node, 'Start it with `--gpus all`.');
    expect(node.querySelector('.gpumem-whole')?.textContent).toBe('--gpus all');
  });
});
