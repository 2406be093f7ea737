/** The map as an element: draws what is scrolled into view, and turns mouse and keys into a selected segment. */

import type { Colours } from '../draw/palette';
import { formatBytes } from '../format';
import { bdi, h, replace } from '../ui/dom';
import { drawMap, drawPiece, hatcher, isReturnable, outline, type Paint, ROW_PX } from './draw';
import { type Layout, layOut, type Piece, pieceAt, spanAt } from './layout';
import type { Segment } from './model';

const MOST_PX = 400;
/** Room that a drawn selection needs at the edges. */
const MARGIN_PX = 2;

export interface MapOwner {
  ofGroup: (group: number | null) => string;
  nameOf: (group: number | null) => string;
  emphasis: () => ReadonlySet<number> | null;
  onSelect: (segment: Segment | null) => void;
}

export class MapCanvas {
  readonly element = h('div', { class: 'frame' });
  readonly #owner: MapOwner;
  readonly #canvas = h('canvas', {
    tabindex: 0,
    role: 'application',
    'aria-roledescription': 'map of segments',
    'aria-label': 'Map of segments. Arrow keys go from one to the next, Escape lets go.'
  });
  readonly #spacer = h('div', { class: 'spacer' });
  readonly #box: HTMLElement;
  readonly #tip = h('div', { class: 'tip', role: 'tooltip', hidden: true });
  readonly #spoken = h('div', { class: 'sr', 'aria-live': 'polite' });
  readonly #pen: CanvasRenderingContext2D | null;
  readonly #hatch: Paint['hatch'];
  readonly #observer: ResizeObserver | null;
  #segments: readonly Segment[] = [];
  #layout: Layout = { pieces: [], rows: 0, perRow: 1, firstOfRow: [] };
  #zoom = 1;
  #selected: Segment | null = null;
  #colours: Colours | null = null;
  #frame = 0;
  /** The map without the selection. */
  readonly #base = document.createElement('canvas');
  #stale = true;

  constructor(owner: MapOwner) {
    this.#owner = owner;
    this.#box = h('div', { class: 'map' }, this.#canvas, this.#spacer);
    this.element.append(this.#box, this.#tip, this.#spoken);
    this.#pen = this.#canvas.getContext('2d');
    this.#hatch = this.#pen === null ? colour => colour : hatcher(this.#pen);
    this.#box.addEventListener('scroll', () => this.redraw());
    this.#canvas.addEventListener('pointermove', event => this.#hover(event));
    this.#canvas.addEventListener('pointerleave', () => {
      this.#tip.hidden = true;
    });
    this.#canvas.addEventListener('click', event => this.select(this.#pointed(event)?.piece.segment ?? null));
    this.#canvas.addEventListener('keydown', event => this.#key(event));
    this.#observer = typeof ResizeObserver === 'undefined' ? null : new ResizeObserver(() => this.redraw());
    this.#observer?.observe(this.#box);
  }

  dispose(): void {
    this.#observer?.disconnect();
    cancelAnimationFrame(this.#frame);
  }

  get zoom(): number {
    return this.#zoom;
  }

  set zoom(zoom: number) {
    this.#zoom = zoom;
    this.#place();
  }

  get selected(): Segment | null {
    return this.#selected;
  }

  /** Segments in the order of the map. */
  show(segments: readonly Segment[], colours: Colours): void {
    this.#segments = segments;
    this.#colours = colours;
    const address = this.#selected?.address;
    // The same segment at another moment stays selected.
    this.#selected = segments.find(segment => segment.address === address) ?? null;
    this.#place();
  }

  select(segment: Segment | null): void {
    this.#selected = segment;
    this.#schedule();
    this.#owner.onSelect(segment);
  }

  placeOf(segment: Segment): number {
    return this.#segments.indexOf(segment) + 1;
  }

  redraw(): void {
    this.#stale = true;
    this.#schedule();
  }

  #schedule(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.draw());
  }

  draw(): void {
    const pen = this.#pen;
    const colours = this.#colours;
    const width = this.#box.clientWidth;
    if (pen === null || colours === null || width === 0) return;
    const height = Math.min(MOST_PX, this.#layout.rows * ROW_PX + MARGIN_PX);
    const density = Math.min(2, window.devicePixelRatio || 1);
    const view = { width: width - 2 * MARGIN_PX, height, top: this.#box.scrollTop };
    const prepare = (canvas: HTMLCanvasElement, into: CanvasRenderingContext2D): void => {
      canvas.width = Math.round(width * density);
      canvas.height = Math.round(height * density);
      into.setTransform(density, 0, 0, density, 0, 0);
      into.translate(MARGIN_PX, MARGIN_PX);
    };
    const base = this.#base.getContext('2d');
    // Moving the selection through thousands of segments repaints none of them.
    if (base !== null && this.#stale) {
      prepare(this.#base, base);
      drawMap(base, this.#layout, view, this.#paint(colours));
      this.#stale = false;
    }
    prepare(this.#canvas, pen);
    this.#canvas.style.height = `${height}px`;
    if (this.#base.width > 0) pen.drawImage(this.#base, -MARGIN_PX, -MARGIN_PX, width, height);
    if (this.#selected !== null) outline(pen, this.#layout, this.#selected, view, colours.accent);
  }

  /** One segment alone, over the whole width of another canvas. */
  drawLens(canvas: HTMLCanvasElement, segment: Segment): void {
    const pen = canvas.getContext('2d');
    const colours = this.#colours;
    const width = canvas.clientWidth;
    if (pen === null || colours === null || width === 0) return;
    const density = Math.min(2, window.devicePixelRatio || 1);
    canvas.width = Math.round(width * density);
    canvas.height = Math.round(26 * density);
    pen.setTransform(density, 0, 0, density, 0, 0);
    const whole: Piece = { place: 0, segment, row: 0, x: 0, from: 0, bytes: segment.extent };
    drawPiece(pen, whole, 1, 1, width - 2, this.#paint(colours), 24);
  }

  #paint(colours: Colours): Paint {
    return {
      colours,
      ofGroup: this.#owner.ofGroup,
      emphasis: this.#owner.emphasis(),
      hatch: this.#hatch
    };
  }

  #place(): void {
    this.#layout = layOut(this.#segments, this.#zoom);
    const height = this.#layout.rows * ROW_PX + MARGIN_PX;
    this.#box.style.maxHeight = `${MOST_PX + 4}px`;
    this.#spacer.style.height = `${Math.max(0, height - Math.min(MOST_PX, height))}px`;
    this.redraw();
  }

  #pointed(event: MouseEvent): { piece: Piece; offset: number } | null {
    const box = this.#canvas.getBoundingClientRect();
    const y = event.clientY - box.top - MARGIN_PX + this.#box.scrollTop;
    const share = (event.clientX - box.left - MARGIN_PX) / Math.max(1, box.width - 2 * MARGIN_PX);
    const x = share * this.#layout.perRow;
    const piece = pieceAt(this.#layout, Math.floor(y / ROW_PX), x);
    return piece === null ? null : { piece, offset: piece.from + x - piece.x };
  }

  #hover(event: PointerEvent): void {
    const pointed = this.#pointed(event);
    this.#tip.hidden = pointed === null;
    if (pointed === null) return;
    const { segment } = pointed.piece;
    // A pixel may hold many blocks: the smallest ones are drawn wider than they are, and are meant.
    const span = segment.spans[Math.min(spanAt(segment, pointed.offset), segment.spans.length - 1)];
    const kind =
      span === undefined
        ? ''
        : span.kind === 'free'
          ? isReturnable(span, segment)
            ? 'free, empty_cache() would give it back'
            : 'free, but pinned'
          : span.kind === 'unmapped'
            ? 'addresses without memory behind them'
            : span.kind === 'pending'
              ? 'waits for another stream'
              : 'in use';
    const name = span === undefined || span.group === null ? null : this.#owner.nameOf(span.group);
    replace(
      this.#tip,
      h(
        'div',
        {},
        h('b', {}, span === undefined ? '' : formatBytes(span.size)),
        ` ${kind}`,
        name === null ? null : ': ',
        name === null ? null : bdi(name)
      ),
      h('div', { class: 'muted' }, this.describe(segment))
    );
    const frame = this.element.getBoundingClientRect();
    const { offsetWidth, offsetHeight } = this.#tip;
    const left = event.clientX - frame.left + 14;
    const top = event.clientY - frame.top + 14;
    this.#tip.style.left = `${Math.max(0, left + offsetWidth > frame.width ? left - 28 - offsetWidth : left)}px`;
    this.#tip.style.top = `${top + offsetHeight > frame.height + 40 ? top - 28 - offsetHeight : top}px`;
  }

  describe(segment: Segment): string {
    const what = [
      segment.small ? 'small blocks' : 'large blocks',
      segment.expandable ? 'expandable' : null,
      segment.private ? 'private pool' : null,
      segment.stream === 0 ? null : `stream ${segment.stream}`
    ].filter(part => part !== null);
    return `segment of ${formatBytes(segment.mapped)} (${what.join(', ')}): ${formatBytes(segment.active)} in use, ${formatBytes(segment.waste)} pinned free`;
  }

  #key(event: KeyboardEvent): void {
    const count = this.#segments.length;
    if (count === 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.#selected === null ? -1 : this.#segments.indexOf(this.#selected);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (event.key === 'Escape' && this.#selected !== null) this.select(null);
    else if (event.key === 'Home') this.#go(0);
    else if (event.key === 'End') this.#go(count - 1);
    else if (step !== undefined) this.#go(at < 0 ? 0 : Math.min(count - 1, Math.max(0, at + step)));
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #go(place: number): void {
    const segment = this.#segments[place] as Segment;
    const row = this.#layout.pieces.find(piece => piece.segment === segment)?.row ?? 0;
    const top = row * ROW_PX;
    if (top < this.#box.scrollTop) this.#box.scrollTop = top;
    else if (top + ROW_PX > this.#box.scrollTop + MOST_PX) this.#box.scrollTop = top + ROW_PX - MOST_PX;
    this.select(segment);
    this.#spoken.textContent = `${place + 1} of ${this.#segments.length}: ${this.describe(segment)}`;
  }
}
