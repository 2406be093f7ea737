/** A canvas that keeps up with its box and the screen's density, and a pen for it in CSS pixels. */

import type { Pen } from '../draw/pen';

export interface Surface {
  element: HTMLCanvasElement;
  width: number;
  height: number;
  density: number;
  /** It was begun, and its box is still as large. */
  isCurrent(): boolean;
  /** Clears the canvas; null where there is no 2D context. */
  begin(): Pen | null;
}

/** More than this costs time and shows nothing. */
const MOST_DENSITY = 2;

export function makeSurface(element: HTMLCanvasElement): Surface {
  const context = element.getContext('2d');
  const blit = context === null ? undefined : makeBlit(context);
  const boxed = (): { width: number; height: number; density: number } => ({
    width: element.parentElement?.clientWidth ?? 0,
    height: element.parentElement?.clientHeight ?? 0,
    density: Math.min(MOST_DENSITY, window.devicePixelRatio || 1)
  });
  const surface: Surface = {
    element,
    width: 0,
    height: 0,
    density: 1,
    isCurrent() {
      const { width, height, density } = boxed();
      return surface.width === width && surface.height === height && surface.density === density;
    },
    begin() {
      const { width, height, density } = boxed();
      if (context === null || width === 0 || height === 0) return null;
      const resized = element.width !== Math.round(width * density) || element.height !== Math.round(height * density);
      if (resized) {
        element.width = Math.round(width * density);
        element.height = Math.round(height * density);
      }
      Object.assign(surface, { width, height, density });
      context.setTransform(density, 0, 0, density, 0, 0);
      context.clearRect(0, 0, width, height);
      return Object.assign(context, blit === undefined ? {} : { blit });
    }
  };
  return surface;
}

/** Pixels go through a canvas of their own, since `putImageData` knows neither clipping nor scale. */
function makeBlit(context: CanvasRenderingContext2D): NonNullable<Pen['blit']> {
  const canvas = document.createElement('canvas');
  const scratch = canvas.getContext('2d');
  let image: ImageData | null = null;
  return (width, height, place, paint) => {
    if (scratch === null || width === 0 || height === 0) return;
    if (image === null || image.width !== width || image.height !== height) {
      canvas.width = width;
      canvas.height = height;
      image = scratch.createImageData(width, height);
    }
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(0);
    paint(pixels);
    scratch.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(canvas, place.x, place.y, place.width, place.height);
  };
}
