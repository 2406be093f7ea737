/** The lines over the stack: what the document measured besides allocated bytes, and the limit. */

import type { ViewDocument } from '../decode';
import type { Line } from '../draw/lines';
import type { Recording } from './steps';

export function linesOf(document: ViewDocument, recording: Recording): Line[] {
  const { device, index } = recording;
  const lines: Line[] = device.lanes.map((lane, k): Line => {
    const times = document.array(`d${index}.lane${k}.t`, 'f8');
    const values = document.array(`d${index}.lane${k}.v`, 'f8');
    return { name: lane.name, shape: lane.shape, times, values, most: values.reduce((a, b) => Math.max(a, b), 0) };
  });
  const outside = outsideTorch(lines);
  if (outside !== null) lines.push(outside);
  if (device.limit !== null) {
    const one = Float64Array.of(device.limit);
    lines.push({ name: 'limit', shape: 'constant', times: Float64Array.of(0), values: one, most: device.limit });
  }
  return lines.filter(line => line.times.length > 0);
}

/** Memory of this process that torch did not reserve: context, libraries, NCCL. Known where both were measured. */
function outsideTorch(lines: readonly Line[]): Line | null {
  const process = lines.find(line => line.name === 'process used');
  const reserved = lines.find(line => line.name === 'reserved');
  if (process === undefined || reserved === undefined || process.times.length === 0) return null;
  let k = 0;
  const values = process.values.map((used, i) => {
    while (k + 1 < reserved.times.length && (reserved.times[k + 1] as number) <= (process.times[i] as number)) k += 1;
    return Math.max(0, used - (reserved.values[k] ?? 0));
  });
  return {
    name: 'outside torch',
    shape: 'sample',
    times: process.times,
    values,
    most: values.reduce((a, b) => Math.max(a, b), 0)
  };
}
