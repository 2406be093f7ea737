import { describe, expect, it } from 'vitest';
import { Series } from './series';
import { areaPath, linePath } from './views/graph';

const S = 1e6;

function filled(values: (number | null)[], span = 1000 * S): Series {
  const series = new Series(span);
  values.forEach((value, at) => {
    series.push((at + 1) * S, value);
  });
  return series;
}

describe('a series', () => {
  it('draws a null as a gap', () => {
    const runs = filled([1, 2, null, 4, 5]).runs(0, S, 'max');
    expect(runs.map(run => run.map(point => point.value))).toEqual([
      [1, 2],
      [4, 5]
    ]);
  });

  it('draws a pause as a gap', () => {
    const series = filled([1, 2]);
    series.push(9 * S, 3, 3 * S);
    series.push(11 * S, 4, 3 * S);
    expect(series.runs(0, S, 'max').map(run => run.map(point => point.value))).toEqual([
      [1, 2],
      [3, 4]
    ]);
  });

  it('keeps peaks of a column for memory and the mean for utilisation', () => {
    const series = filled([1, 9, 2, 4]);
    expect(series.runs(0, 100 * S, 'max')).toEqual([[{ timeUs: 4 * S, value: 9 }]]);
    expect(series.runs(0, 100 * S, 'mean')[0]?.[0]?.value).toBe(4);
  });

  it('never changes a complete column while time goes on', () => {
    const values = Array.from({ length: 50 }, (_, at) => (at * 7) % 13);
    const before = filled(values)
      .runs(0, 10 * S, 'max')[0]
      ?.slice(0, 4);
    const after = filled([...values, 99, 98, 97])
      .runs(0, 10 * S, 'max')[0]
      ?.slice(0, 4);
    expect(after).toEqual(before);
  });

  it('forgets what is older than its span and holds no more than that', () => {
    const series = new Series(60 * S);
    for (let at = 0; at < 10_000; at += 1) {
      series.push(at * S, at);
    }
    expect(series.length).toBe(61);
    expect([...series.entries()][0]).toEqual({ timeUs: 9939 * S, value: 9939 });
  });

  it('takes over the server’s history and keeps what came since', () => {
    const series = filled([null, null, null, null, 50]);
    series.replace([1 * S, 2 * S, 3 * S, 4 * S], [1, null, 3, 4]);
    expect([...series.entries()].map(entry => entry.value)).toEqual([1, null, 3, 4, 50]);
  });

  it('drops a value that is not newer', () => {
    const series = filled([1, 2]);
    series.push(2 * S, 9);
    expect(series.last).toEqual({ timeUs: 2 * S, value: 2 });
  });

  it('is unknown in a gap', () => {
    const series = filled([1, null, 3]);
    expect([0.5, 1.5, 2.5, 3.5].map(at => series.at(at * S)?.value ?? null)).toEqual([null, 1, null, 3]);
  });
});

describe('a graph', () => {
  const runs = filled([0, 50, null, 100]).runs(0, S, 'max');

  it('has one line a run and a dot for a lone sample', () => {
    expect(linePath(runs, 0, 4 * S, 100)).toBe('M60.0 48.0L120.0 24.0M240.0 0.0h0.1');
  });

  it('closes each area at its own ends', () => {
    expect(areaPath(runs.slice(0, 1), 0, 4 * S, 100)).toBe('M60.0 48.0L60.0 48.0L120.0 24.0L120.0 48.0Z');
  });
});
