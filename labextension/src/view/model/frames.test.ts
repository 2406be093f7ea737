import { expect, test } from 'vitest';
import type { Header } from '../document';
import { foldLabel, foldStack, frameLabel, framesOf } from './frames';

const strings = [
  '/tmp/ipykernel_7/2419.py',
  '/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py',
  '/usr/lib/python3.12/site-packages/torch/nn/modules/module.py',
  'C:\\Users\\Ада\\обучение.py',
  '??',
  'forward',
  '<module>',
  'шаг'
];
const header = {
  strings,
  frames: [
    [4, 0, 5],
    [1, 134, 5],
    [2, 1790, 5],
    [3, 12, 7],
    [0, 3, 6]
  ],
  stacks: [[], [0, 1, 2, 3, 4], [1, 4]]
} as unknown as Header;

test('runs of library frames fold, the reader’s own stay, the cell’s is marked', () => {
  const parts = foldStack(framesOf(header, 1));
  expect(
    parts.map(part =>
      part.kind === 'folded' ? foldLabel(part.frames) : `${frameLabel(part.frame)}${part.cell ? ' *' : ''}`
    )
  ).toEqual(['3 frames in torch', 'обучение.py:12 шаг', '/tmp/ipykernel_7/2419.py:3 <module> *']);
});

test('a lone library frame is shown, no stack gives none', () => {
  expect(foldStack(framesOf(header, 2)).map(part => part.kind)).toEqual(['frame', 'frame']);
  expect(foldStack(framesOf(header, 0))).toEqual([]);
});
