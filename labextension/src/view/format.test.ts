import { expect, test } from 'vitest';
import { formatBytes, formatCount, formatDuration, formatMoment, formatShare } from './format';

test.each([
  [0, '0 B'],
  [512, '512 B'],
  [999, '999 B'],
  [1000, '0.98 KiB'],
  [1536, '1.50 KiB'],
  [22_754_099, '21.7 MiB'],
  [6.21 * 2 ** 30, '6.21 GiB'],
  [999.6 * 2 ** 20, '0.98 GiB'],
  [80 * 2 ** 30, '80.0 GiB'],
  [140 * 2 ** 40, '140 TiB'],
  [-2048, '−2.00 KiB']
])('%d bytes are %s', (bytes, text) => expect(formatBytes(bytes)).toBe(text));

test('a difference carries its sign', () => {
  expect(formatBytes(1024, true)).toBe('+1.00 KiB');
  expect(formatBytes(0, true)).toBe('0 B');
});

test.each([
  [850, '850 µs'],
  [4200, '4.2 ms'],
  [42_000, '42 ms'],
  [1_234_000, '1.23 s'],
  [12_400_000, '12.4 s'],
  [185_000_000, '3 min 05 s'],
  [3_725_000_000, '1 h 02 min']
])('%d µs are %s', (us, text) => expect(formatDuration(us)).toBe(text));

test('moments have the digits that their distance needs', () => {
  expect(formatMoment(7_865_454, 100)).toBe('7.8655 s');
  expect(formatMoment(7_865_454, 1)).toBe('7.865454 s');
  expect(formatMoment(0, 1000)).toBe('0 ms');
  expect(formatMoment(20_500, 500)).toBe('20.5 ms');
});

test('counts and shares', () => {
  expect(formatCount(1_234_567)).toBe('1,234,567');
  expect([formatShare(47, 100), formatShare(1, 3000), formatShare(0, 5), formatShare(1, 0)]).toEqual([
    '47 %',
    '<0.1 %',
    '0 %',
    ''
  ]);
});
