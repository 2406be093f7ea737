/** Who works by keys stays where the keys were. */

import { beforeEach, expect, test } from 'vitest';
import { bdi, button, FOCUS_LOST, h, replace } from './dom';

let host: HTMLElement;
let lost = 0;

beforeEach(() => {
  lost = 0;
  host = h('div');
  host.addEventListener(FOCUS_LOST, () => {
    lost += 1;
  });
  document.body.replaceChildren(host);
});

const buttons = (...names: string[]): HTMLElement[] => names.map(name => button(name, () => undefined));
const focused = (): string => document.activeElement?.textContent ?? '';

test('the focus stays on what has the same name', () => {
  replace(host, ...buttons('a', '▸ 18 unchanged', 'c'));
  host.querySelectorAll('button')[1]?.focus();
  replace(host, ...buttons('new', 'a', '▾ 18 unchanged', 'c'));
  expect(focused()).toBe('▾ 18 unchanged');
  expect(lost).toBe(0);
});

test('of several of one name on the one in the same place', () => {
  replace(host, ...buttons('copy', 'copy', 'copy'));
  host.querySelectorAll('button')[2]?.focus();
  replace(host, ...buttons('x', 'copy', 'copy', 'copy'));
  expect(document.activeElement).toBe(host.querySelectorAll('button')[3]);
  replace(host, ...buttons('copy', 'copy'));
  expect(document.activeElement).toBe(host.querySelectorAll('button')[1]);
});

test('on what is for the same, when its numbers have changed', () => {
  const tab = (text: string): HTMLElement => button(text, () => undefined, { role: 'tab', title: 'Who is alive here' });
  replace(host, tab('Here (1.20 s)'), ...buttons('Here (1.30 s)'));
  host.querySelector('button')?.focus();
  replace(host, ...buttons('Here (1.20 s)'), tab('Here (1.30 s)'));
  expect(document.activeElement?.getAttribute('role')).toBe('tab');
});

test('on the row in its place, and beside a button that is off now', () => {
  const rows = (...texts: string[]): HTMLElement =>
    h('table', {}, h('tbody', {}, ...texts.map(text => h('tr', { tabindex: 0 }, h('td', {}, text)))));
  replace(host, rows('1', '2', '3'));
  host.querySelectorAll('tr')[1]?.focus();
  replace(host, rows('4', '5', '6'));
  expect(focused()).toBe('5');
  replace(host, ...buttons('−', '+'));
  host.querySelectorAll('button')[1]?.focus();
  replace(
    host,
    ...buttons('−'),
    button('+', () => undefined, { disabled: true })
  );
  expect(focused()).toBe('−');
});

test('and is reported where nothing of it is left', () => {
  replace(host, ...buttons('Clear'));
  host.querySelector('button')?.focus();
  replace(host, ...buttons('Copy'));
  expect(lost).toBe(1);
  // Nobody had it: nothing is taken, nothing is told.
  replace(host, ...buttons('Clear'));
  expect(document.activeElement).toBe(document.body);
  expect(lost).toBe(1);
});

test.each([
  ['مدل.py:22 آموزش', 'ltr'],
  ['模型.py:9', 'ltr'],
  ['loss = مدل(x)', 'auto'],
  ['خط ۲', 'auto'],
  ['line 2', 'auto']
])('%s runs %s', (text, dir) => {
  expect(bdi(text).dir).toBe(dir);
});

test('code runs from left to right, as where it was typed', () => {
  expect(bdi('مدل = ساخت()', 'code').dir).toBe('ltr');
});
