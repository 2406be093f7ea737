/** Reserved, device used, the limit: lines over the stack, each with its own dash so that colour is not needed. */

import type { Viewport } from '../axis/viewport';
import { type Colours, DASHES, type LineName } from './palette';
import type { Pen, Rect } from './pen';
import type { Scale } from './scale';

export interface Line {
  name: LineName;
  /** 'step' holds its value until the next point; 'sample' was measured at points in time; a limit has one value. */
  shape: 'step' | 'sample' | 'constant';
  times: Float64Array;
  values: Float64Array;
  most: number;
}

/** First index with time > us. */
function after(times: Float64Array, us: number): number {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((times[middle] as number) <= us) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The line's value at a time; null before its first point. */
export function lineAt(line: Line, us: number): number | null {
  if (line.shape === 'constant') return line.values[0] as number;
  const k = after(line.times, us) - 1;
  return k < 0 ? null : (line.values[k] as number);
}

/** The greatest value that the viewport shows. */
export function mostInView(line: Line, viewport: Viewport): number {
  if (line.shape === 'constant') return line.most;
  const first = Math.max(0, after(line.times, viewport.axis.usOfU(viewport.fromU)) - 1);
  const stop = after(line.times, viewport.axis.usOfU(viewport.toU));
  let most = 0;
  for (let k = first; k < stop; k++) most = Math.max(most, line.values[k] as number);
  return most;
}

export function drawLine(pen: Pen, plot: Rect, scale: Scale, viewport: Viewport, line: Line, colours: Colours): void {
  pen.save();
  pen.strokeStyle = colours.lines[line.name];
  pen.lineWidth = 1.5;
  pen.setLineDash([...DASHES[line.name]]);
  pen.beginPath();
  if (line.shape === 'constant') {
    const y = scale.y(line.most);
    pen.moveTo(plot.x, y);
    pen.lineTo(plot.x + plot.width, y);
  } else {
    traceValues(pen, plot, scale, viewport, line);
  }
  pen.stroke();
  pen.restore();
}

/** Points that share a pixel are drawn as one upright stroke from the least to the greatest of them. */
function traceValues(pen: Pen, plot: Rect, scale: Scale, viewport: Viewport, line: Line): void {
  const { times, values } = line;
  const { axis } = viewport;
  const first = Math.max(0, after(times, axis.usOfU(viewport.fromU)) - 1);
  const stop = Math.min(times.length, after(times, axis.usOfU(viewport.toU)) + (line.shape === 'sample' ? 1 : 0));
  const xOf = (k: number): number => {
    const x = plot.x + viewport.pxOfU(axis.uOfUs(times[k] as number), plot.width);
    return line.shape === 'step' ? Math.min(plot.x + plot.width, Math.max(plot.x, x)) : x;
  };
  let y = 0;
  for (let k = first; k < stop; ) {
    const x = xOf(k);
    let next = k + 1;
    let least = values[k] as number;
    let most = least;
    while (next < stop && xOf(next) - x < 0.75) {
      least = Math.min(least, values[next] as number);
      most = Math.max(most, values[next] as number);
      next += 1;
    }
    const start = scale.y(values[k] as number);
    if (k === first) pen.moveTo(x, start);
    else {
      if (line.shape === 'step') pen.lineTo(x, y);
      pen.lineTo(x, start);
    }
    if (next > k + 1) {
      pen.lineTo(x, scale.y(most));
      pen.lineTo(x, scale.y(least));
    }
    y = scale.y(values[next - 1] as number);
    pen.lineTo(x, y);
    k = next;
  }
  if (line.shape === 'step') pen.lineTo(plot.x + plot.width, y);
}
