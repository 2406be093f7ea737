/** The layer that follows the mouse: cursor, selected moment, range and allocation. Redrawn alone, it costs nothing. */

import type { Single } from '../model/singles';
import type { Colours } from './palette';
import type { Pen } from './pen';
import type { Frame } from './picture';
import { trace } from './singles';

export interface OverlayState {
  hoverX: number | null;
  hoverLifetime: number | null;
  hereU: number | null;
  hereLifetime: number | null;
  /** Life of the selected allocation along the axis, for when it is too small to have an outline. */
  hereLife: readonly [number, number] | null;
  range: { fromU: number; toU: number } | null;
}

export function drawOverlay(pen: Pen, frame: Frame, state: OverlayState, colours: Colours): void {
  const { plot, ruler } = frame.layout;
  pen.save();
  pen.beginPath();
  pen.rect(plot.x, plot.y, plot.width, plot.height + ruler.height);
  pen.clip();
  if (state.range !== null) drawRange(pen, frame, state.range, colours);
  const xOf = (u: number): number => plot.x + frame.viewport.pxOfU(u, plot.width);
  if (state.hereU !== null) {
    const x = Math.round(xOf(state.hereU)) + 0.5;
    upright(pen, x, plot.y, plot.height + 6, colours.accent, 1.5);
    pen.fillStyle = colours.accent;
    pen.beginPath();
    pen.moveTo(x - 5, plot.y + plot.height + 8);
    pen.lineTo(x + 5, plot.y + plot.height + 8);
    pen.lineTo(x, plot.y + plot.height);
    pen.closePath();
    pen.fill();
  }
  if (state.hoverX !== null)
    upright(pen, Math.round(state.hoverX) + 0.5, plot.y, plot.height, colours.foreground, 0.75);
  outline(pen, frame, state.hoverLifetime, colours.foreground, 1.25);
  if (!outline(pen, frame, state.hereLifetime, colours.accent, 2.5) && state.hereLife !== null) {
    const [from, to] = state.hereLife;
    pen.strokeStyle = colours.accent;
    pen.lineWidth = 4;
    pen.beginPath();
    pen.moveTo(xOf(from), plot.y + plot.height - 2);
    pen.lineTo(Math.max(xOf(to), xOf(from) + 2), plot.y + plot.height - 2);
    pen.stroke();
  }
  pen.restore();
}

function drawRange(pen: Pen, frame: Frame, range: { fromU: number; toU: number }, colours: Colours): void {
  const { plot } = frame.layout;
  const left = plot.x + frame.viewport.pxOfU(range.fromU, plot.width);
  const right = plot.x + frame.viewport.pxOfU(range.toU, plot.width);
  // The rest is dimmed, the range itself keeps its colours.
  pen.fillStyle = colours.background;
  pen.globalAlpha = 0.55;
  pen.fillRect(plot.x, plot.y, left - plot.x, plot.height);
  pen.fillRect(right, plot.y, plot.x + plot.width - right, plot.height);
  pen.globalAlpha = 1;
  upright(pen, left, plot.y, plot.height, colours.accent, 1.5);
  upright(pen, right, plot.y, plot.height, colours.accent, 1.5);
}

function upright(pen: Pen, x: number, y: number, height: number, colour: string, width: number): void {
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x, y + height);
  pen.stroke();
}

function outline(pen: Pen, frame: Frame, lifetime: number | null, colour: string, width: number): boolean {
  const single: Single | undefined = frame.singles?.find(candidate => candidate.lifetime === lifetime);
  if (lifetime === null || single === undefined) return false;
  const { plot } = frame.layout;
  const xOf = (moment: number): number =>
    moment === 0
      ? plot.x
      : Math.min(
          plot.x + plot.width,
          Math.max(plot.x, plot.x + frame.viewport.pxOfU(frame.viewport.axis.uOfStep(moment - 1), plot.width))
        );
  trace(pen, single, frame.scale, xOf, plot);
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.stroke();
  return true;
}
