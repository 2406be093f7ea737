/** Names within the plot: each takes the first of its places where no other name or sign stands. */

import type { Colours } from './palette';
import { FONT, type Pen, type Rect } from './pen';

/** A row of names. */
export const LABEL_PX = 16;

export class Labels {
  readonly #plot: Rect;
  readonly #taken: Rect[] = [];

  constructor(plot: Rect) {
    this.#plot = plot;
  }

  take(...rects: Rect[]): void {
    this.#taken.push(...rects);
  }

  /** Whether a rectangle lies inside the plot, and on nothing that was taken. */
  fits(rect: Rect): boolean {
    const { x, y, width, height } = this.#plot;
    if (rect.x < x || rect.x + rect.width > x + width || rect.y < y || rect.y + rect.height > y + height) return false;
    return !this.#taken.some(
      taken =>
        rect.x < taken.x + taken.width &&
        taken.x < rect.x + rect.width &&
        rect.y < taken.y + taken.height &&
        taken.y < rect.y + rect.height
    );
  }

  /** Take the first of some places that fits; null when none does. */
  place(places: readonly Rect[]): Rect | null {
    const found = places.find(rect => this.fits(rect)) ?? null;
    if (found !== null) this.take(found);
    return found;
  }
}

/** A name on a plate of background, so that it reads over any colour. */
export function plate(pen: Pen, text: string, at: Rect, colour: string, colours: Colours): void {
  pen.font = FONT;
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  pen.fillStyle = colours.background;
  pen.globalAlpha = 0.88;
  pen.fillRect(at.x, at.y, at.width, at.height);
  pen.globalAlpha = 1;
  pen.fillStyle = colour;
  pen.fillText(text, at.x + at.width / 2, at.y + at.height / 2);
}

/** The room that a name's plate takes, its left edge and middle given. */
export function plateOf(pen: Pen, text: string, x: number, middleY: number): Rect {
  pen.font = FONT;
  return { x, y: middleY - LABEL_PX / 2, width: pen.measureText(text).width + 8, height: LABEL_PX };
}
