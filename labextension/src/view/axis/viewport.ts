/** The interval of the axis that the picture shows, and its gestures. Immutable: each gesture gives a new one. */

import type { Axis } from './axis';

/** The closest zoom shows half a step or half a µs: beyond it there is nothing left to see. */
const CLOSEST = 0.5;

export class Viewport {
  readonly axis: Axis;
  readonly fromU: number;
  readonly toU: number;

  constructor(axis: Axis, fromU = 0, toU = axis.length) {
    const span = Math.min(axis.length, Math.max(toU - fromU, Math.min(CLOSEST, axis.length)));
    const from = Math.min(Math.max(0, fromU), axis.length - span);
    this.axis = axis;
    this.fromU = from;
    this.toU = from + span;
  }

  get spanU(): number {
    return this.toU - this.fromU;
  }

  get isWhole(): boolean {
    return this.spanU >= this.axis.length * (1 - 1e-9);
  }

  /** Zoom by `factor` (over 1: closer) so that the point at `share` of the width stays where it is. */
  zoom(factor: number, share: number): Viewport {
    const span = Math.min(this.axis.length, Math.max(this.spanU / factor, Math.min(CLOSEST, this.axis.length)));
    const fixed = this.fromU + share * this.spanU;
    return new Viewport(this.axis, fixed - share * span, fixed + (1 - share) * span);
  }

  /** Move by a share of the width; positive shows what comes later. */
  pan(share: number): Viewport {
    const from = this.fromU + share * this.spanU;
    return new Viewport(this.axis, from, from + this.spanU);
  }

  /** Show an interval with some room around it. */
  around(fromU: number, toU: number, room = 0.15): Viewport {
    const margin = Math.max(toU - fromU, CLOSEST) * room;
    return new Viewport(this.axis, fromU - margin, toU + margin);
  }

  uOfPx(px: number, widthPx: number): number {
    return this.fromU + (px / widthPx) * this.spanU;
  }

  pxOfU(u: number, widthPx: number): number {
    return ((u - this.fromU) / this.spanU) * widthPx;
  }

  equals(other: Viewport): boolean {
    return this.axis === other.axis && this.fromU === other.fromU && this.toU === other.toU;
  }
}
