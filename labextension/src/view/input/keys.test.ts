import { expect, test } from 'vitest';
import { actionOf, BINDINGS } from './keys';

const press = (key: string, code = '', more: Partial<KeyboardEvent> = {}) => ({
  key,
  code,
  ctrlKey: false,
  metaKey: false,
  altKey: false,
  ...more
});

test.each([
  ['w', 'KeyW', 'zoomIn'],
  ['ц', 'KeyW', 'zoomIn'],
  ['z', 'KeyW', 'zoomIn'],
  ['a', 'KeyA', 'panLeft'],
  ['ArrowRight', 'ArrowRight', 'panRight'],
  ['+', 'Equal', 'zoomIn'],
  ['-', 'Minus', 'zoomOut'],
  ['0', 'Digit0', 'fit'],
  ['f', 'KeyF', 'focusSelection'],
  ['r', 'KeyR', 'stretch'],
  ['.', 'Period', 'next'],
  [',', 'Comma', 'previous'],
  ['?', 'Slash', 'help'],
  ['/', 'Slash', 'search'],
  ['Escape', 'Escape', 'escape']
])('%s (%s) means %s in the picture', (key, code, action) => {
  expect(actionOf(press(key, code), true)).toBe(action);
});

test('outside the picture only help, search and Escape are ours', () => {
  const everywhere = BINDINGS.filter(binding => binding.everywhere).map(binding => binding.action);
  expect(everywhere).toEqual(['search', 'help', 'escape']);
  expect(actionOf(press('w', 'KeyW'), false)).toBeNull();
  expect(actionOf(press('ArrowDown'), false)).toBeNull();
});

test('the page keeps its own shortcuts', () => {
  expect(actionOf(press('s', 'KeyS', { ctrlKey: true }), true)).toBeNull();
  expect(actionOf(press('w', 'KeyW', { metaKey: true }), true)).toBeNull();
  expect(actionOf(press('ArrowLeft', 'ArrowLeft', { altKey: true }), true)).toBeNull();
});
