import { describe, expect, it } from 'vitest';
import { formatAge, formatBytes, formatPair, formatPercent } from './format';

const GIB = 2 ** 30;

describe('sizes', () => {
  it('follow the rule of digits by size, and stay in a fixed unit', () => {
    expect(formatBytes(6.21 * GIB)).toBe('6.21 GiB');
    expect(formatBytes(45.2 * GIB, 'MiB')).toBe('46,285 MiB');
    expect(formatBytes(512 * 2 ** 20, 'GiB')).toBe('0.50 GiB');
    expect(formatBytes(0, 'GiB')).toBe('0 GiB');
  });

  it('stand in the unit of the whole', () => {
    expect(formatPair(300 * 2 ** 20, 80 * GIB)).toEqual(['0.29', '80.0 GiB']);
    expect(formatPair(0, 80 * GIB)).toEqual(['0', '80.0 GiB']);
    expect(formatPair(307 * GIB, 2015 * GIB)).toEqual(['307', '2,015 GiB']);
    expect(formatPair(GIB, 2 * GIB, 'MiB')).toEqual(['1,024', '2,048 MiB']);
  });
});

describe('shares and ages', () => {
  it('never call something nothing, nor nearly all all', () => {
    expect([0, 0.001, 0.5, 0.997, 1].map(formatPercent)).toEqual(['0 %', '< 1 %', '50 %', '> 99 %', '100 %']);
  });

  it('read as people say them', () => {
    expect([-1, 40, 720, 7500, 21_600, 86_400, 273_600].map(formatAge)).toEqual([
      '0 s',
      '40 s',
      '12 min',
      '2 h 05 min',
      '6 h',
      '1 d',
      '3 d 4 h'
    ]);
  });
});
