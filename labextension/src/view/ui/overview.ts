/** The overview above the picture: everything at once, and the window that the picture shows, which the mouse moves. */

import { Viewport } from '../axis/viewport';
import { GUTTER_PX } from '../draw/layout';
import { drawOverview, drawWindow } from '../draw/minimap';
import type { Colours } from '../draw/palette';
import type { Rect } from '../draw/pen';
import type { Frame } from '../draw/picture';
import type { Session } from '../session';
import { makeSurface } from './canvas';
import { h } from './dom';

/** An end of the window is gripped so near to it. */
const GRIP_PX = 5;
/** A window narrower than this share of everything is a slip of the hand: it was a click. */
const LEAST_SHARE = 1 / 500;
/** `move` the window, `choose` another, or drag one of its ends. */
type Gesture = 'move' | 'choose' | 'from' | 'to';

export class Overview {
  readonly element: HTMLElement;
  readonly #session: Session;
  readonly #surfaces;
  #frame: Frame | null = null;
  #gesture: Gesture | null = null;
  #anchor = 0;

  constructor(session: Session) {
    this.#session = session;
    const whole = h('canvas', { 'aria-hidden': 'true' });
    const shown = h('canvas', { 'aria-hidden': 'true' });
    this.element = h('div', { class: 'minimap', 'aria-hidden': 'true' }, whole, shown);
    this.#surfaces = { whole: makeSurface(whole), shown: makeSurface(shown) };
    this.#attach();
  }

  /** Whether the canvas still has the size that it was drawn with. */
  isCurrent(): boolean {
    return this.#surfaces.whole.isCurrent();
  }

  /** Draw everything as it lies under a frame of the picture, on paper with the window; false without room for it. */
  draw(frame: Frame | null, colours: Colours, onPaper: boolean): boolean {
    this.#frame = frame;
    const surface = this.#surfaces.whole;
    const pen = surface.begin();
    if (pen === null) return false;
    const { curves } = this.#session.source;
    const { viewport } = this.#session;
    // The picture of everything has the same columns.
    const drawn = frame !== null && frame.curves === curves && frame.viewport.equals(new Viewport(viewport.axis));
    const area = this.#area(surface.width);
    drawOverview(pen, area, curves, viewport, colours, drawn ? frame.columns : null);
    if (onPaper) drawWindow(pen, area, viewport, colours);
    return true;
  }

  /** Draw the window alone. */
  drawWindow(frame: Frame | null, colours: Colours): void {
    this.#frame = frame;
    const surface = this.#surfaces.shown;
    const pen = surface.begin();
    if (pen !== null) drawWindow(pen, this.#area(surface.width), this.#session.viewport, colours);
  }

  #area(width: number): Rect {
    const plot = this.#frame?.layout.plot;
    const x = plot?.x ?? GUTTER_PX;
    return { x, y: 2, width: Math.max(1, plot?.width ?? width - x), height: 36 };
  }

  #uAt(event: PointerEvent): number {
    const area = this.#area(this.#surfaces.whole.width);
    const x = event.clientX - this.element.getBoundingClientRect().left;
    const { axis } = this.#session.viewport;
    return Math.min(axis.length, Math.max(0, ((x - area.x) / area.width) * axis.length));
  }

  #attach(): void {
    const session = this.#session;
    this.element.addEventListener('pointerdown', event => {
      this.#anchor = this.#uAt(event);
      this.#gesture = this.#gestureAt(this.#anchor);
      this.element.setPointerCapture(event.pointerId);
    });
    this.element.addEventListener('pointermove', event => this.#drag(this.#uAt(event)));
    this.element.addEventListener('pointerup', event => {
      const { viewport } = session;
      const isClick = Math.abs(this.#uAt(event) - this.#anchor) < viewport.axis.length * LEAST_SHARE;
      // A click beside the window brings the window there.
      if (this.#gesture === 'choose' && !viewport.isWhole && isClick) {
        const half = viewport.spanU / 2;
        session.setViewport(new Viewport(viewport.axis, this.#anchor - half, this.#anchor + half));
      }
      this.#gesture = null;
    });
    this.element.addEventListener('pointercancel', () => {
      this.#gesture = null;
    });
    this.element.addEventListener('dblclick', () => session.setViewport(new Viewport(session.viewport.axis)));
  }

  #gestureAt(u: number): Gesture {
    const { viewport } = this.#session;
    if (viewport.isWhole) return 'choose';
    const grip = (viewport.axis.length / this.#area(this.#surfaces.whole.width).width) * GRIP_PX;
    if (Math.abs(u - viewport.fromU) < grip) return 'from';
    if (Math.abs(u - viewport.toU) < grip) return 'to';
    return u > viewport.fromU && u < viewport.toU ? 'move' : 'choose';
  }

  #drag(u: number): void {
    const { viewport } = this.#session;
    const { axis } = viewport;
    if (this.#gesture === 'move') {
      this.#session.setViewport(viewport.pan((u - this.#anchor) / viewport.spanU));
      this.#anchor = u;
    } else if (this.#gesture === 'choose') {
      const [from, to] = u < this.#anchor ? [u, this.#anchor] : [this.#anchor, u];
      if (to - from > axis.length * LEAST_SHARE) this.#session.setViewport(new Viewport(axis, from, to));
    } else if (this.#gesture === 'from') {
      this.#session.setViewport(new Viewport(axis, Math.min(u, viewport.toU), viewport.toU));
    } else if (this.#gesture === 'to') {
      this.#session.setViewport(new Viewport(axis, viewport.fromU, Math.max(u, viewport.fromU)));
    }
  }
}
