import { expect, test } from 'vitest';
import { widestPiece } from './singles';

test('a label goes where no fold lies over it', () => {
  const folds = [
    { from: 100, to: 120 },
    { from: 300, to: 320 }
  ];
  expect(widestPiece({ from: 0, to: 90 }, folds)).toEqual({ from: 0, to: 90 });
  expect(widestPiece({ from: 60, to: 400 }, folds)).toEqual({ from: 120, to: 300 });
  expect(widestPiece({ from: 60, to: 900 }, folds)).toEqual({ from: 320, to: 900 });
  expect(widestPiece({ from: 110, to: 400 }, folds)).toEqual({ from: 120, to: 300 });
  expect(widestPiece({ from: 104, to: 116 }, folds)).toEqual({ from: 104, to: 104 });
  expect(widestPiece({ from: 5, to: 50 }, [])).toEqual({ from: 5, to: 50 });
});
