// @vitest-environment jsdom
import { expect, test } from 'vitest';
import { encode, makeDevice, makeGroup, makeHeader, randomTruth, timelineArrays } from '../../testing/documents';
import { parse } from '../decode';
import type { Growth, Leak, Place } from '../document';
import { ALIVE } from '../model/steps';
import { Session } from '../session';
import { bareHeader } from '../ui/bare';
import { coloursOf } from '../ui/theme';
import { LeaksTab } from './tab';

const groups = [makeGroup(0), makeGroup(1), makeGroup(2)];
const place = (k: number): Place => {
  const { label, source, cell, line } = groups[k] as (typeof groups)[number];
  return { label, source, cell, line };
};
const leak = (sentence: string, more: Partial<Leak> = {}): Leak => ({
  kind: 'kept',
  sentence,
  bytes: 6 << 20,
  bytesPerIteration: 1 << 20,
  iterations: 24,
  grown: 6,
  every: 4,
  loop: place(0),
  lines: [{ ...place(1), bytesPerIteration: 1 << 20, bytes: 6 << 20, blocks: 6 }],
  keepers: [{ path: 'kept[0]', root: 'kept', kind: 'variable', bytes: 6 << 20, graphNodes: 0, line: place(2) }],
  left: [1 << 20, 0, 0, 0],
  leftPer: 1,
  ...more
});

function open(growth: Growth | null, sentence = 'Peak 1 GiB.') {
  const truth = randomTruth(3, 200, 3);
  const device = makeDevice(truth, groups, { growth });
  const document = parse(encode(makeHeader([device], { sentence }), timelineArrays(truth)));
  const session = new Session(document);
  const tab = new LeaksTab(session);
  if (tab.available()) tab.show(coloursOf(globalThis.document.body, false));
  return { session, tab, document };
}

const growth = (leaks: Leak[]): Growth => ({
  iterations: 24,
  leaks,
  small: [],
  once: [{ what: 'optimizer state', sentence: 'optimizer state: 2.00 MiB at line 3', bytes: 2 << 20, line: place(2) }]
});

test('there is no tab where nothing grew', () => {
  expect(open(null).tab.available()).toBe(false);
});

test('a verdict is a table of lines with the numbers that prove it', () => {
  const { tab } = open(growth([leak('line 2 keeps 1.00 MiB more')]));
  expect(tab.label).toBe('Leaks (1)');
  const cells = [...tab.element.querySelectorAll('tbody td')].map(cell => cell.textContent);
  expect(cells.slice(0, 4)).toEqual(['1.00 MiB', '6.00 MiB', '6', 'In [3] line 2']);
  const text = tab.element.textContent ?? '';
  expect(text).toContain('Seen in 6 of 24 iterations, every 4th of In [3] line 1');
  expect(text).toContain('6.00 MiB held by kept[0] (variable), put there at In [3] line 3');
  expect(text).toContain('optimizer state: 2.00 MiB at line 3');
  expect(tab.element.querySelector('.bars')?.getAttribute('aria-label')).toContain('1.00 MiB, 0 B, 0 B, 0 B');
  expect(tab.text()).toContain('1.00 MiB\t6.00 MiB\t6\tin 6 of 24 iterations, every 4th\tIn [3] line 2');
});

test('what the first sentence tells is not told again; another verdict is', () => {
  const { tab } = open(
    growth([leak('line 2 keeps it', { remedy: 'keep `loss.item()`' }), leak('line 3 as well')]),
    'Leak: line 2 keeps it (1 more below). Peak 1 GiB.'
  );
  expect([...tab.element.querySelectorAll('.verdict')].map(p => p.textContent)).toEqual([
    'Do: keep loss.item()',
    'line 3 as well'
  ]);
});

test('a line is stressed in the picture, and its last allocation that stayed selected', () => {
  const { tab, session } = open(growth([leak('it')]));
  const [highlight, last] = [...tab.element.querySelectorAll<HTMLButtonElement>('tbody button')];
  highlight?.click();
  expect([...(session.emphasis ?? [])]).toEqual([1]);
  last?.click();
  const { lifetimes } = session.source.recording;
  const found = session.here?.lifetime ?? -1;
  expect(lifetimes.group[found]).toBe(1);
  expect(lifetimes.end[found]).toBe(ALIVE);
  expect(Array.from(lifetimes.group).lastIndexOf(1)).toBeGreaterThanOrEqual(found);
});

test('a copy to share names neither variables nor code of a leak', () => {
  const sentence =
    'Leak: line 2 `kept.append(x)` keeps 1.00 MiB more, held by `kept` (1 more below). Peak 1 GiB at line 1 `y = f(x)`.';
  const { document } = open(growth([leak('line 2 `kept.append(x)` keeps 1.00 MiB more, held by `kept`')]), sentence);
  const bare = bareHeader(document.header);
  expect(bare.sentence).toBe('Peak 1 GiB at line 1.');
  expect(JSON.stringify(bare)).not.toContain('kept');
});
