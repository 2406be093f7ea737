/** What drawing needs of a canvas. `SvgPen` gives the same, so that a saved SVG is drawn by the same code. */

export type Pen = Pick<
  CanvasRenderingContext2D,
  | 'beginPath'
  | 'moveTo'
  | 'lineTo'
  | 'closePath'
  | 'fill'
  | 'stroke'
  | 'fillRect'
  | 'strokeRect'
  | 'fillText'
  | 'measureText'
  | 'setLineDash'
  | 'save'
  | 'restore'
  | 'rect'
  | 'clip'
  | 'fillStyle'
  | 'strokeStyle'
  | 'lineWidth'
  | 'globalAlpha'
  | 'font'
  | 'textAlign'
  | 'textBaseline'
> & {
  /** Paints pixels and puts them into a rectangle; absent where only shapes can be drawn (SVG). */
  blit?: (width: number, height: number, place: Rect, paint: (pixels: Uint32Array) => void) => void;
};

export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** No text in the picture is smaller. */
export const FONT_PX = 11;
export const FONT = `${FONT_PX}px system-ui, -apple-system, "Segoe UI", sans-serif`;
