/** The report as a page, without pixels: jsdom has no canvas, everything else is real. */

import { readFileSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  bruteTotals,
  encode,
  makeDevice,
  makeGroup,
  makeHeader,
  randomDocument,
  randomTruth,
  timelineArrays
} from '../testing/documents';
import { View } from './view';

let host: HTMLElement;
let view: View;

beforeEach(() => {
  vi.spyOn(HTMLCanvasElement.prototype, 'getContext').mockReturnValue(null);
  host = document.createElement('div');
  document.body.append(host);
  view = new View(host);
});

afterEach(() => {
  view.dispose();
  host.remove();
});

const root = (): ShadowRoot => host.shadowRoot as ShadowRoot;
const all = (selector: string): HTMLElement[] => [...root().querySelectorAll<HTMLElement>(selector)];
const one = (selector: string): HTMLElement => {
  const found = root().querySelector<HTMLElement>(selector);
  if (found === null) throw new Error(`nothing matches ${selector}`);
  return found;
};
const numbers = (): Record<string, string> =>
  Object.fromEntries(all('.numbers > div').map(div => [div.children[0]?.textContent, div.children[1]?.textContent]));
const fixture = (name: string): Uint8Array => new Uint8Array(readFileSync(`../tests/data/view/${name}.bin`));
const press = (target: Element, key: string, more: KeyboardEventInit = {}): void => {
  target.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, composed: true, cancelable: true, ...more }));
};

describe('a complete document', () => {
  beforeEach(async () => {
    expect(await view.show(fixture('complete'))).toBe(true);
  });

  test('says the sentence first, with code as code, then the numbers', () => {
    expect(one('.sentence').textContent).toContain('Out of memory at line 5 損失の逆伝播(loss)');
    expect(one('.sentence code').textContent).toBe('損失の逆伝播(loss)');
    expect(numbers()).toMatchObject({ peak: '4.43 GiB', stayed: '800 MiB', 'to the limit': '74.0 GiB' });
    expect(one('header').classList.contains('bad')).toBe(true);
  });

  test('the table at the peak adds up to the peak', () => {
    const rows = all('tbody tr');
    expect(rows.length).toBeGreaterThan(3);
    const bytes = rows.map(row => Number(row.querySelector<HTMLElement>('td')?.title.replace(/\D/g, '')));
    expect(bytes.reduce((a, b) => a + b)).toBe(4760537600);
    expect(one('tfoot td').textContent).toBe('4.43 GiB');
  });

  test('every tab has its table', () => {
    one('[role=tab][aria-selected=false]:not(.devices *)').click();
    expect(one('.panel tfoot').textContent).toContain('alive at the end');
    expect(one('.panel tfoot td').title).toBe('1,782,580,736 bytes');
  });

  test('a device tab shows that device', () => {
    const tabs = all('.devices [role=tab]');
    expect(tabs.map(tab => tab.textContent)).toEqual(['cuda:0  4.43 GiB', 'cuda:1  32.0 MiB']);
    (tabs[1] as HTMLElement).click();
    expect(numbers().peak).toBe('32.0 MiB');
  });

  test('rows are reached by keys and stay stressed on Enter', () => {
    const rows = all('tbody tr');
    (rows[0] as HTMLElement).focus();
    press(rows[0] as HTMLElement, 'ArrowDown');
    expect(root().activeElement).toBe(rows[1]);
    press(rows[1] as HTMLElement, 'Enter');
    expect(rows[1]?.getAttribute('aria-selected')).toBe('true');
    press(rows[1] as HTMLElement, 'End');
    expect(root().activeElement).toBe(rows.at(-1));
  });

  test('? opens the sheet of keys, Escape closes it', () => {
    const row = one('tbody tr');
    press(row, '?');
    expect(one('[role=dialog]').textContent).toContain('zoom in about the mouse');
    press(one('[role=dialog]'), 'Escape');
    expect(all('[role=dialog]')).toEqual([]);
  });

  test('search counts matches and walks through them', async () => {
    const input = one('input[type=search]') as HTMLInputElement;
    input.value = 'модель';
    press(input, 'Enter');
    expect(one('.search output').textContent).toMatch(/^1 of \d+, .* at most$/);
    expect(all('.tabs [role=tab]').some(tab => /^Here/.test(tab.textContent ?? ''))).toBe(true);
    expect(one('.card').textContent).toContain('alive');
    input.value = '/(/';
    press(input, 'Enter');
    expect(one('.search output').className).toBe('error');
    input.value = 'forward|модель';
    press(input, 'Enter');
    expect(one('.search output').textContent).toBe('no such text; try /forward|модель/');
    input.value = '/forward|модель/';
    press(input, 'Enter');
    expect(one('.search output').textContent).toMatch(/^1 of \d+, /);
  });

  test('who works by keys stays where the keys were', () => {
    const overlay = one('.overlay');
    overlay.focus();
    press(overlay, 'p');
    const tree = all('.tabs button').find(tab => tab.textContent === 'tree') as HTMLElement;
    tree.focus();
    tree.click();
    const { activeElement } = root();
    expect(activeElement?.textContent).toBe('tree');
    expect(activeElement).not.toBe(tree);
    const bar = all('.icicle button')[1] as HTMLElement;
    bar.focus();
    bar.click();
    expect(root().activeElement?.textContent).toBe(bar.textContent);
    overlay.focus();
    press(overlay, 'r', { code: 'KeyR' });
    const button = all('.panel button').find(each => each.textContent === 'Clear (Esc)') as HTMLElement;
    button.focus();
    button.click();
    expect(root().activeElement).toBe(overlay);
  });

  test('letters typed into the search are no commands', () => {
    const input = one('input[type=search]') as HTMLInputElement;
    const outside = vi.fn();
    document.addEventListener('keydown', outside);
    press(input, '?');
    document.removeEventListener('keydown', outside);
    expect(outside).not.toHaveBeenCalled();
    expect(all('[role=dialog]')).toEqual([]);
  });

  test('hiding a band and colouring anew keep the tables', () => {
    const before = one('tfoot').textContent;
    const select = one('select') as HTMLSelectElement;
    select.value = 'size';
    select.dispatchEvent(new Event('change'));
    expect(one('tfoot').textContent).toBe(before);
    expect(all('.legend button').some(item => item.textContent?.includes('100 MiB to 1.00 GiB'))).toBe(true);
  });

  test('another document replaces this one', async () => {
    await view.show(fixture('gap'));
    expect(numbers().peak).toBe('4.00 MiB');
    expect(all('header')).toHaveLength(1);
  });
});

test('nothing that came from a cell is parsed as HTML', async () => {
  const evil = '<img src=x onerror="globalThis.hacked=1"></script><b>';
  const truth = randomTruth(3, 30, 1);
  const device = makeDevice(truth, [makeGroup(0, { label: evil, source: evil, cell: evil, file: evil })], {
    key: evil,
    name: evil,
    missing: { headroom: evil },
    peak: [{ group: 0, bytes: 5, blocks: 1 }],
    markers: [{ timeUs: 1_700_000_000_000_001, kind: 'oom', text: evil }],
    regions: [{ name: evil, startUs: null, endUs: null }]
  });
  const header = makeHeader([device], {
    sentence: evil,
    title: evil,
    error: evil,
    notes: [{ level: 'warning', text: evil }],
    discloses: evil
  });
  await view.show(encode(header, timelineArrays(truth)));
  expect(all('img, b, script')).toEqual([]);
  expect(one('.sentence').textContent).toBe(evil);
  expect((globalThis as { hacked?: number }).hacked).toBeUndefined();
});

test('who is alive here adds up to what is allocated', async () => {
  const { bytes, truth } = randomDocument(8, 400);
  await view.show(bytes);
  const overlay = one('.overlay');
  overlay.focus();
  press(overlay, 'p');
  const rows = all('.panel tbody tr').map(row => Number(row.querySelector('td')?.title.replace(/\D/g, '')));
  expect(rows.length).toBeGreaterThan(1);
  const total = Number(one('.panel tfoot td').title.replace(/\D/g, ''));
  expect(rows.reduce((a, b) => a + b)).toBe(total);
  expect(total).toBe(Math.max(...bruteTotals(truth)));
  all('.tabs button')
    .find(button => button.textContent === 'tree')
    ?.click();
  expect(all('.icicle button').length).toBeGreaterThan(3);
});

test('a stretch is chosen by keys alone', async () => {
  const { bytes } = randomDocument(8, 400);
  await view.show(bytes);
  const overlay = one('.overlay');
  overlay.focus();
  for (const key of ['w', 'w', 'd', 'r']) press(overlay, key, { code: `Key${key.toUpperCase()}` });
  expect(one('.tabs [aria-selected=true]').textContent).toMatch(/^This stretch/);
  const cell = (row: Element, column: number): number =>
    Number(row.querySelectorAll<HTMLElement>('td')[column]?.title.replace(/\D/g, ''));
  for (const column of [0, 1, 2, 3]) {
    const rows = all('.panel tbody tr').map(row => cell(row, column));
    expect(rows.reduce((a, b) => a + b)).toBe(cell(one('.panel tfoot tr'), column));
  }
  // The stretch was chosen after a moment and before another: each is what F and Escape mean while it is the latest.
  press(overlay, 'p');
  press(overlay, 'Escape');
  expect(all('.tabs [role=tab]').some(tab => tab.textContent?.startsWith('Here'))).toBe(false);
  press(overlay, 'Escape');
  expect(all('.tabs [role=tab]').some(tab => tab.textContent?.startsWith('This stretch'))).toBe(false);
});

test.each([
  ['empty', 'Nothing was allocated or freed on a GPU'],
  ['counters', 'by counters only']
])('%s draws what is known', async (name, text) => {
  expect(await view.show(fixture(name))).toBe(true);
  expect(one('.sentence').textContent).toContain(text);
});

test.each([0, 1])('a recording of %i changes is drawn', async changes => {
  const { bytes } = randomDocument(1, changes);
  expect(await view.show(bytes)).toBe(true);
});

test('a recording without times is drawn by its order, and took nobody knows how long', async () => {
  const truth = randomTruth(3, 200);
  truth.times.fill(0);
  const device = makeDevice(
    truth,
    [0, 1, 2, 3, 4].map(k => makeGroup(k)),
    { startUs: 0, endUs: 0 }
  );
  await view.show(encode(makeHeader([device]), timelineArrays(truth)));
  expect(one('select[aria-label=Axis]')).toHaveProperty('value', 'event');
  expect(numbers().took).toBe('?');
  const overlay = one('.overlay');
  overlay.focus();
  press(overlay, 'p');
  expect(one('.panel tfoot td').title).toBe(`${Math.max(...bruteTotals(truth)).toLocaleString('en')} bytes`);
  await view.show(randomDocument(3, 200).bytes);
  expect(one('select[aria-label=Axis]')).toHaveProperty('value', 'time');
  expect(numbers().took).not.toBe('?');
});

test('sums of small allocations are said to be sums', async () => {
  await view.show(fixture('aggregated'));
  expect(one('.foot').textContent).toMatch(
    /The [\d,]+ smallest of [\d,]+ allocations .* totals and the peak are exact/
  );
});

test('a broken document gives one sentence, and the next one is drawn', async () => {
  expect(await view.show(new Uint8Array([1, 2, 3, 4, 5]))).toBe(false);
  expect(one('[role=alert]').textContent).toContain('not a gpumem report');
  expect(await view.show(fixture('gap'))).toBe(true);
  expect(all('[role=alert]')).toEqual([]);
});

test('the first of two overlapping loads does not win', async () => {
  const first = view.show(fixture('complete'));
  const second = view.show(fixture('gap'));
  await Promise.all([first, second]);
  expect(numbers().peak).toBe('4.00 MiB');
});
