/** The tab against a kernel that answers by hand. */

import { beforeEach, describe, expect, test, vi } from 'vitest';
import { encode, makeDevice, makeGroup, makeHeader, randomTruth, timelineArrays } from '../../testing/documents';
import type { Answer, AskChannel, Question } from '../ask';
import { parse } from '../decode';
import type { Device } from '../document';
import { Session } from '../session';
import type { WhatIf, WhatIfRow } from './document';
import { WhatIfTab } from './tab';

const GIB = 2 ** 30;

const row = (conf: string, more: Partial<WhatIfRow> = {}): WhatIfRow => ({
  conf,
  meaning: '',
  low: 4 * GIB,
  expected: 4 * GIB,
  high: 4 * GIB,
  change: 0,
  spread: '',
  verdict: 'fits',
  unanimous: true,
  outcome: 'fits',
  retries: 0,
  recorded: false,
  inert: null,
  diesBytes: null,
  diesAt: null,
  ...more
});

const ANSWER: WhatIf = {
  device: 'cuda:0',
  conf: '',
  reservedPeak: 4 * GIB,
  events: 1234,
  exact: true,
  confidence: 'the model repeats this recording exactly, all 1,234 events',
  livePeak: 2 * GIB,
  packedPeak: 2.5 * GIB,
  cap: null,
  rows: [
    row('', { recorded: true }),
    row('expandable_segments:True', {
      expected: 2.5 * GIB,
      low: 2.5 * GIB,
      high: 2.6 * GIB,
      change: -1.5 * GIB,
      spread: '2.50 GiB to 2.60 GiB'
    }),
    row('max_split_size_mb:512', { inert: 'not replayed: no block reaches that size' })
  ],
  best: 'expandable_segments:True',
  recordedDies: false,
  conclusion: '`expandable_segments:True` would have reserved 2.50 GiB <b>instead</b>',
  paste: [{ where: 'notebook', text: '%env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True' }],
  warnings: []
};

class Kernel implements AskChannel {
  readonly asked: Question[] = [];
  answers = true;
  #listeners = new Set<(answer: Answer, buffer: DataView | null) => void>();

  send(question: Question): boolean {
    this.asked.push(question);
    return this.answers;
  }

  onReply(listener: (answer: Answer, buffer: DataView | null) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  reply(fields: object, to = this.asked.at(-1) as Question): void {
    for (const listener of this.#listeners) listener({ kind: 'whatif', id: to.id, error: null, ...fields }, null);
  }
}

const session = (more: Partial<Device> = {}): Session => {
  const truth = randomTruth(3, 40);
  const device = makeDevice(truth, [makeGroup(0), makeGroup(1), makeGroup(2), makeGroup(3), makeGroup(4)], {
    mapped: true,
    notReplayed: null,
    ...more
  });
  return new Session(parse(encode(makeHeader([device]), timelineArrays(truth))));
};

const texts = (tab: WhatIfTab, selector: string): string[] =>
  [...tab.element.querySelectorAll(selector)].map(element => element.textContent ?? '');

describe('with a kernel', () => {
  let kernel: Kernel;
  let tab: WhatIfTab;

  beforeEach(() => {
    kernel = new Kernel();
    tab = new WhatIfTab(session(), kernel);
    tab.show();
  });

  test('asks once, however often it comes on screen', () => {
    tab.show();
    tab.show();
    expect(kernel.asked).toHaveLength(1);
    expect(kernel.asked[0]).toMatchObject({ kind: 'whatif', device: 0, confs: [], capBytes: null });
    expect(tab.element.textContent).toContain('asking the kernel');
  });

  test('rows appear as they come, then the whole answer', () => {
    kernel.reply({ state: 'running', done: 1, total: 7, row: row('', { recorded: true }) });
    expect(texts(tab, 'tbody tr')).toHaveLength(1);
    expect(tab.element.textContent).toContain('1 of 7 done');
    kernel.reply({ state: 'done', answer: ANSWER });
    expect(texts(tab, '.verdict')).toEqual(['expandable_segments:True would have reserved 2.50 GiB <b>instead</b>.']);
    expect(tab.element.querySelector('.verdict b')).toBe(null);
    expect(texts(tab, 'tbody td.conf')).toEqual([
      '(defaults)in force',
      'expandable_segments:Truebest',
      'max_split_size_mb:512'
    ]);
    expect(texts(tab, 'td.n.less')).toEqual(['−1.50 GiB']);
    expect(texts(tab, 'tr.inert td')).toContain('not replayed: no block reaches that size');
    expect(texts(tab, '.paste code')).toEqual(['%env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True']);
    expect(tab.element.querySelector('progress')).toBe(null);
    tab.show();
    expect(kernel.asked).toHaveLength(1);
  });

  test('a setting of one’s own and a limit are asked for; a wrong one comes back corrected', () => {
    kernel.reply({ state: 'done', answer: ANSWER });
    const [conf, cap] = [...tab.element.querySelectorAll('input')] as [HTMLInputElement, HTMLInputElement];
    conf.value = 'max_split_size_mb=64';
    cap.value = '3,5';
    tab.element.querySelector('form')?.dispatchEvent(new Event('submit', { cancelable: true }));
    expect(kernel.asked.at(-1)).toMatchObject({ confs: ['max_split_size_mb=64'], capBytes: 3.5 * GIB });
    kernel.reply({
      state: 'problem',
      message: "':' and not '='",
      fix: 'max_split_size_mb:64',
      conf: 'max_split_size_mb=64'
    });
    expect(texts(tab, '.wrong bdi')).toEqual(["':' and not '='"]);
    // What was known stays on screen.
    expect(texts(tab, 'tbody tr')).toHaveLength(3);
    (tab.element.querySelector('.wrong button') as HTMLElement).click();
    expect(kernel.asked.at(-1)).toMatchObject({ confs: ['max_split_size_mb:64'] });
    expect(conf.value).toBe('max_split_size_mb:64');
  });

  test('a limit that is no number is said at once', () => {
    const [, cap] = [...tab.element.querySelectorAll('input')] as [HTMLInputElement, HTMLInputElement];
    cap.value = 'ten';
    tab.element.querySelector('form')?.dispatchEvent(new Event('submit', { cancelable: true }));
    expect(kernel.asked).toHaveLength(1);
    expect(texts(tab, '.wrong bdi')).toEqual(['"ten" is no number of GiB']);
  });

  test('Stop stops it, and it can go on', () => {
    kernel.reply({ state: 'running', done: 0, total: 7 });
    (tab.element.querySelector('.working button') as HTMLElement).click();
    expect(kernel.asked.at(-1)).toMatchObject({ stop: true });
    kernel.reply({ state: 'stopped' }, kernel.asked[0]);
    expect(tab.element.textContent).toContain('Stopped.');
    tab.show();
    expect(kernel.asked).toHaveLength(2);
    (tab.element.querySelector('.working button') as HTMLElement).click();
    expect(kernel.asked).toHaveLength(3);
  });

  test('an answer to an older question is left alone', () => {
    const old = kernel.asked[0] as Question;
    tab.element.querySelector('form')?.dispatchEvent(new Event('submit', { cancelable: true }));
    kernel.reply({ state: 'done', answer: ANSWER }, old);
    expect(texts(tab, '.verdict')).toEqual([]);
  });

  test('copying gives the exact bytes', () => {
    kernel.reply({ state: 'done', answer: ANSWER });
    expect(tab.text().split('\n')[3]).toBe(
      ['expandable_segments:True', 2.5 * GIB, 2.5 * GIB, 2.6 * GIB, -1.5 * GIB, 'fits'].join('\t')
    );
  });
});

test('a kernel that went is named, one that is silent too', () => {
  vi.useFakeTimers();
  const gone = new Kernel();
  gone.answers = false;
  const first = new WhatIfTab(session(), gone);
  first.show();
  expect(first.element.textContent).toContain('no longer answers: run its cell again');
  const busy = new Kernel();
  const second = new WhatIfTab(session(), busy);
  second.show();
  vi.advanceTimersByTime(9000);
  expect(second.element.textContent).toContain('has not answered yet');
  busy.reply({ state: 'done', answer: ANSWER });
  expect(texts(second, 'tbody tr')).toHaveLength(3);
  expect(second.element.textContent).not.toContain('has not answered yet');
  vi.useRealTimers();
});

test('a file shows what it carries, or says how to get it', () => {
  const carried = new WhatIfTab(
    session({ whatIf: { ...ANSWER, best: null, recordedDies: true, paste: [], exact: false } }),
    null
  );
  carried.show();
  expect(texts(carried, 'tbody tr')).toHaveLength(3);
  expect(carried.element.querySelector('form')).toBe(null);
  expect(carried.element.querySelector('.verdict.bad')).not.toBe(null);
  expect(carried.element.querySelector('.sure.less')).not.toBe(null);
  const bare = new WhatIfTab(session(), null);
  bare.show();
  expect(bare.element.textContent).toContain('--whatif');
});

test('what fits with a doubt is compared like what fits, and says its doubt', () => {
  const doubted = row('max_split_size_mb:128', {
    verdict: 'fits_unless_emptied',
    expected: 3 * GIB,
    change: -GIB,
    outcome: 'fits, unless the program calls torch.cuda.empty_cache() where nothing was cached'
  });
  const tab = new WhatIfTab(
    session({ whatIf: { ...ANSWER, best: null, rows: [row('', { recorded: true }), doubted] } }),
    null
  );
  tab.show();
  const last = texts(tab, 'tbody tr').pop();
  expect(last).toContain('1.00 GiB');
  expect(last).toContain('where nothing was cached');
  expect(last).not.toContain('until then');
  expect(tab.element.querySelector('tbody .bad')).toBe(null);
});

test('why there is a range stands on the page; unseen calls are no doubt where all are known', () => {
  const shown = (more: Partial<WhatIf>): HTMLElement => {
    const tab = new WhatIfTab(session({ whatIf: { ...ANSWER, ...more } }), null);
    tab.show();
    return tab.element;
  };
  const ranged = shown({ ranges: ['several streams use the same blocks here'] });
  expect(ranged.querySelector('.why')?.textContent).toBe('Why a range: several streams use the same blocks here.');
  expect(ranged.querySelector('details')?.textContent).toContain('leaves no event');
  // A document from before has neither.
  expect(shown({}).querySelector('.why')).toBe(null);
  expect(shown({ callsKnown: true }).querySelector('details')).toBe(null);
  const warned = shown({ callsKnown: true, warnings: ['the recording begins with memory in use'] });
  expect(warned.querySelector('details')?.textContent).toContain('memory in use');
  expect(warned.querySelector('details')?.textContent).not.toContain('leaves no event');
});

test('there is no tab where nothing can be replayed', () => {
  expect(new WhatIfTab(session({ mapped: false, notReplayed: 'cpu' }), new Kernel()).available()).toBe(false);
  expect(new WhatIfTab(session(), new Kernel()).available()).toBe(true);
});
