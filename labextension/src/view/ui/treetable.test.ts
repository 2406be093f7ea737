import { beforeEach, expect, test } from 'vitest';
import { encode, makeDevice, makeGroup, makeHeader, randomTruth, timelineArrays } from '../../testing/documents';
import { parse } from '../decode';
import { LIGHT } from '../draw/palette';
import type { IcicleNode } from '../model/icicle';
import { Session } from '../session';
import { treeTable, treeText } from './treetable';

const node = (label: string, bytes: number, ...children: IcicleNode[]): IcicleNode => ({
  label,
  bytes,
  group: 0,
  children
});
const TREE = node(
  'allocated',
  100,
  node('In [1]', 70, node('line 2', 70, node('f.py:9 f', 70, node('g.py:1 g', 40), node('g.py:7 g', 10)))),
  node('In [3]', 30, node('line 5', 30))
);
let table: HTMLTableElement;

const rows = (): HTMLTableRowElement[] => [...table.querySelectorAll<HTMLTableRowElement>('tbody tr')];
const shown = (): string[] =>
  rows().map(row => `${row.getAttribute('aria-level')} ${row.querySelector('bdi')?.textContent}`);
const press = (key: string): void => {
  document.activeElement?.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
};

beforeEach(() => {
  const truth = randomTruth(1, 20, 1);
  const header = makeHeader([makeDevice(truth, [makeGroup(0)])]);
  table = treeTable(new Session(parse(encode(header, timelineArrays(truth))), 0), TREE, LIGHT);
  document.body.replaceChildren(table);
});

test('a row opens, through what is one part alone, into rows that add up to it', () => {
  expect(shown()).toEqual(['1 In [1]', '1 In [3]']);
  rows()[0]?.click();
  expect(shown()).toEqual([
    '1 In [1]',
    '2 line 2',
    '3 f.py:9 f',
    '4 g.py:1 g',
    '4 g.py:7 g',
    '4 no deeper stack',
    '1 In [3]'
  ]);
  const bytes = rows().map(row => Number.parseInt(row.querySelector('td')?.title ?? '', 10));
  expect((bytes[3] as number) + (bytes[4] as number) + (bytes[5] as number)).toBe(bytes[2]);
  expect(table.querySelector('tfoot td')?.getAttribute('title')).toBe('100 bytes');
});

test('arrows walk it as a tree', () => {
  rows()[0]?.focus();
  press('ArrowRight');
  expect(document.activeElement?.getAttribute('aria-expanded')).toBe('true');
  press('ArrowRight');
  expect(document.activeElement?.textContent).toContain('line 2');
  press('ArrowLeft');
  expect(shown()).toEqual(['1 In [1]', '2 line 2', '1 In [3]']);
  expect(document.activeElement?.getAttribute('aria-expanded')).toBe('false');
  press('ArrowLeft');
  expect(document.activeElement?.textContent).toContain('In [1]');
  press('End');
  expect(document.activeElement?.textContent).toContain('In [3]');
  expect(rows().filter(row => row.tabIndex === 0)).toEqual([document.activeElement]);
});

test('as text, with an indent for each level', () => {
  expect(treeText(TREE).split('\n').slice(0, 4)).toEqual([
    'bytes\twhere',
    '70\tIn [1]',
    '70\t  line 2',
    '70\t    f.py:9 f'
  ]);
  expect(treeText(TREE).endsWith('100\tin all')).toBe(true);
});
