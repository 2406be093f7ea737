/** A canvas that keeps up with its box and the screen's density, and a pen for it in CSS pixels. */

import type { Pen } from '../draw/pen';

export interface Surface {
  element: HTMLCanvasElement;
  width: number;
  height: number;
  density: number;
  /** Clears the canvas; null where there is no 2D context. */
  begin(): Pen | null;
}

/** More than this costs time and shows nothing. */
const MOST_DENSITY = 2;

export function makeSurface(element: HTMLCanvasElement): Surface {
  const context = element.getContext('2d');
  const hatches = new Map<string, CanvasPattern | null>();
  const surface: Surface = {
    element,
    width: 0,
    height: 0,
    density: 1,
    begin() {
      const box = element.parentElement;
      const density = Math.min(MOST_DENSITY, window.devicePixelRatio || 1);
      const width = box?.clientWidth ?? 0;
      const height = box?.clientHeight ?? 0;
      if (context === null || width === 0 || height === 0) return null;
      const resized = element.width !== Math.round(width * density) || element.height !== Math.round(height * density);
      if (resized) {
        element.width = Math.round(width * density);
        element.height = Math.round(height * density);
      }
      Object.assign(surface, { width, height, density });
      context.setTransform(density, 0, 0, density, 0, 0);
      context.clearRect(0, 0, width, height);
      return Object.assign(context, {
        createHatch: (colour: string, line: string) => hatch(context, hatches, colour, line)
      });
    }
  };
  return surface;
}

/** Slanted lines: memory that was there before the cell differs from every other band without colour, too. */
function hatch(
  context: CanvasRenderingContext2D,
  made: Map<string, CanvasPattern | null>,
  colour: string,
  line: string
): CanvasPattern | null {
  const key = `${colour}${line}`;
  const known = made.get(key);
  if (known !== undefined) return known;
  const size = 8;
  const tile = document.createElement('canvas');
  tile.width = size;
  tile.height = size;
  const pen = tile.getContext('2d');
  if (pen === null) return null;
  pen.fillStyle = colour;
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = line;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const shift of [-size, 0, size]) {
    pen.moveTo(shift, size);
    pen.lineTo(shift + size, 0);
  }
  pen.stroke();
  const pattern = context.createPattern(tile, 'repeat');
  made.set(key, pattern);
  return pattern;
}
