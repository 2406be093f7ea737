/** Mouse, pen and finger on the picture, turned into what they mean. Positions are px from the picture's corner. */

export interface PointerHandlers {
  hover(x: number, y: number): void;
  leave(): void;
  click(x: number, y: number): void;
  doubleClick(x: number, y: number): void;
  /** `share` of the width that the pointer moved since the last call. */
  pan(px: number): void;
  /** A range is being drawn, or was (`done`). */
  range(fromX: number, toX: number, done: boolean): void;
  zoom(factor: number, x: number): void;
  /** Whether a plain drag pans (zoomed in) or selects a range (everything in view). */
  dragPans(): boolean;
  /** Whether zooming out would change anything; if not, the page may scroll. */
  canZoomOut(): boolean;
}

/** A press that moves less than this is a click. */
const SLOP_PX = 4;
/** A scroll that began elsewhere goes on as a scroll while its events come closer together than this. */
const SCROLL_PAUSE_MS = 300;
/** One notch of a mouse wheel (100 px) zooms by a quarter. */
const WHEEL_RATE = Math.log(1.25) / 100;
const LINE_PX = 33;

export function attachPointer(target: HTMLElement, handlers: PointerHandlers): () => void {
  const at = (event: MouseEvent): [number, number] => {
    const box = target.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  let press: { x: number; y: number; lastX: number; moved: boolean; pans: boolean } | null = null;

  const onDown = (event: PointerEvent): void => {
    if (event.button > 1) return;
    const [x, y] = at(event);
    const pans = event.button === 1 || event.pointerType === 'touch' || (!event.shiftKey && handlers.dragPans());
    press = { x, y, lastX: x, moved: false, pans };
    target.setPointerCapture(event.pointerId);
    if (event.button === 1) event.preventDefault();
  };
  const onMove = (event: PointerEvent): void => {
    const [x, y] = at(event);
    if (press === null) {
      handlers.hover(x, y);
      return;
    }
    if (!press.moved && Math.abs(x - press.x) < SLOP_PX) return;
    press.moved = true;
    if (press.pans) handlers.pan(x - press.lastX);
    else handlers.range(press.x, x, false);
    press.lastX = x;
  };
  const onUp = (event: PointerEvent): void => {
    const done = press;
    press = null;
    if (done === null) return;
    const [x, y] = at(event);
    if (!done.moved) {
      if (event.button === 0) handlers.click(x, y);
    } else if (!done.pans) {
      handlers.range(done.x, x, true);
    }
    handlers.hover(x, y);
  };
  const onCancel = (): void => {
    press = null;
    handlers.leave();
  };
  const onLeave = (): void => {
    if (press === null) handlers.leave();
  };
  const onDouble = (event: MouseEvent): void => handlers.doubleClick(...at(event));

  let scrolledElsewhereAt = Number.NEGATIVE_INFINITY;
  const onWheelAnywhere = (event: WheelEvent): void => {
    const passing = event.timeStamp - scrolledElsewhereAt < SCROLL_PAUSE_MS;
    if (!event.composedPath().includes(target) || (passing && !event.ctrlKey)) scrolledElsewhereAt = event.timeStamp;
  };
  const onWheel = (event: WheelEvent): void => {
    const pinch = event.ctrlKey || event.metaKey;
    // The page is being scrolled past the picture: do not catch it.
    if (!pinch && event.timeStamp - scrolledElsewhereAt < SCROLL_PAUSE_MS) return;
    const unit = event.deltaMode === 1 ? LINE_PX : 1;
    const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      if (!handlers.dragPans()) return;
      event.preventDefault();
      handlers.pan(-sideways * unit);
      return;
    }
    if (event.deltaY > 0 && !handlers.canZoomOut() && !pinch) return;
    event.preventDefault();
    // Touchpads report a pinch as small deltas with Ctrl.
    handlers.zoom(
      Math.exp(-event.deltaY * unit * WHEEL_RATE * (pinch && Math.abs(event.deltaY) < 50 ? 4 : 1)),
      at(event)[0]
    );
  };

  target.addEventListener('pointerdown', onDown);
  target.addEventListener('pointermove', onMove);
  target.addEventListener('pointerup', onUp);
  target.addEventListener('pointercancel', onCancel);
  target.addEventListener('pointerleave', onLeave);
  target.addEventListener('dblclick', onDouble);
  target.addEventListener('wheel', onWheel, { passive: false });
  window.addEventListener('wheel', onWheelAnywhere, { capture: true, passive: true });
  return () => window.removeEventListener('wheel', onWheelAnywhere, { capture: true });
}
