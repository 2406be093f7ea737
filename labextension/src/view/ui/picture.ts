/** The picture as a part of the page: canvases, mouse and keys. */

import { Viewport } from '../axis/viewport';
import { goToCell } from '../cells/jump';
import { FREE_REGION_ROWS, REGION_ROW_PX } from '../draw/layout';
import { drawOverlay } from '../draw/overlay';
import type { Colours } from '../draw/palette';
import type { Pen } from '../draw/pen';
import { drawPicture, type Frame, type Scene } from '../draw/picture';
import type { Action } from '../input/keys';
import { attachPointer } from '../input/pointer';
import type { Session } from '../session';
import { makeSurface } from './canvas';
import { describePicture } from './describe';
import { h } from './dom';
import { Overview } from './overview';
import { pointAt, rangeOfRegion, regionAt } from './pointed';
import { Tooltip } from './tooltip';
import { goToPeak, peakU, stepNeighbour, uOfMoment } from './travel';

/** A range narrower than this is a slip of the hand. */
const LEAST_RANGE_PX = 3;
const KEY_ZOOM = 1.5;
const KEY_PAN = 0.2;

export class PictureView {
  readonly element: HTMLElement;
  readonly picture: HTMLElement;
  frame: Frame | null = null;
  readonly #session: Session;
  readonly #overlay: HTMLCanvasElement;
  readonly #surfaces;
  readonly #overview: Overview;
  readonly #tooltip: Tooltip;
  readonly #detach: () => void;
  #colours: Colours;
  #onPaper = false;
  #hover: { x: number; y: number } | null = null;
  #draft: { fromX: number; toX: number } | null = null;
  #pending = 0;
  #dirty = { base: true, overview: true };

  constructor(session: Session, colours: Colours) {
    this.#session = session;
    this.#colours = colours;
    const base = h('canvas', { 'aria-hidden': 'true' });
    this.#overlay = h('canvas', {
      class: 'overlay',
      tabindex: 0,
      role: 'application',
      'aria-roledescription': 'timeline',
      'aria-label': 'Memory over time. Press ? for keys; the tables below hold the same numbers.'
    });
    this.#overview = new Overview(session);
    this.#tooltip = new Tooltip(session);
    this.picture = h('div', { class: 'picture' }, base, this.#overlay, this.#tooltip.element);
    this.element = h('div', {}, this.#overview.element, this.picture);
    this.#surfaces = { base: makeSurface(base), overlay: makeSurface(this.#overlay) };
    this.makeRoom();
    const detachPointer = this.#attachPicture();
    const observer = typeof ResizeObserver === 'undefined' ? null : new ResizeObserver(() => this.#resized());
    observer?.observe(this.picture);
    this.#detach = () => {
      detachPointer();
      observer?.disconnect();
    };
  }

  dispose(): void {
    cancelAnimationFrame(this.#pending);
    this.#detach();
  }

  /** `onPaper`: what is about to be printed. */
  setColours(colours: Colours, onPaper = false): void {
    this.#colours = colours;
    this.#onPaper = onPaper;
    this.#dirty = { base: true, overview: true };
    // Not at the next frame: before printing there is none.
    this.draw();
  }

  /** Everything, at the next frame. */
  redraw(): void {
    this.makeRoom();
    this.#dirty = { base: true, overview: true };
    this.#schedule();
  }

  /** An observer reports at its beginning too, when everything has just been drawn. */
  #resized(): void {
    if (this.#surfaces.base.isCurrent() && this.#overview.isCurrent()) return;
    this.redraw();
  }

  /** Many rows of regions make the picture taller, not the plot lower. */
  makeRoom(): void {
    const extra = Math.max(0, this.#session.regionRows - FREE_REGION_ROWS) * REGION_ROW_PX;
    this.picture.style.setProperty('--gm-extra', `${extra}px`);
  }

  /** The picture, but not the overview. */
  redrawBase(): void {
    this.#dirty.base = true;
    this.#schedule();
  }

  redrawOverlay(): void {
    this.#schedule();
  }

  scene(density: number, floor = this.#session.floor()): Scene {
    const session = this.#session;
    const active = session.active();
    return {
      curves: active.curves,
      live: active.live,
      viewport: new Viewport(active.axis, session.viewport.fromU, session.viewport.toU),
      lines: session.lines.filter(line => !session.hiddenLines.has(line.name)),
      regions: session.regions,
      regionRows: session.regionRows,
      markers: active.recording.device.markers,
      peakU: session.unfiltered ? peakU(session) : null,
      startUs: session.source.recording.device.startUs,
      log: session.log,
      unfiltered: session.unfiltered,
      reach: session.reach,
      colours: this.#colours,
      emphasis: session.emphasisBands(active.curves),
      density,
      floor
    };
  }

  #schedule(): void {
    if (this.#pending !== 0) return;
    this.#pending = requestAnimationFrame(() => {
      this.#pending = 0;
      this.draw();
    });
  }

  /** Draw now what is out of date. */
  draw(): void {
    const began = performance.now();
    if (this.#dirty.base) this.#drawBase();
    if (this.#dirty.overview) this.#dirty.overview = !this.#overview.draw(this.frame, this.#colours, this.#onPaper);
    this.#overview.drawWindow(this.frame, this.#colours);
    this.#drawOverlay();
    // What a frame of ours costs, for whoever measures it; nobody listens otherwise.
    this.picture.dispatchEvent(
      new CustomEvent('gpumem-frame', { detail: performance.now() - began, bubbles: true, composed: true })
    );
  }

  #drawBase(): void {
    const surface = this.#surfaces.base;
    const pen = surface.begin();
    if (pen === null) return;
    this.#dirty.base = false;
    this.frame = drawPicture(pen, surface.width, surface.height, this.scene(surface.density));
    this.picture.classList.toggle('zoomed', !this.#session.viewport.isWhole);
    // A canvas over this one would be white on paper: Chromium prints the step that clears it.
    if (this.#onPaper) this.#paintOverlay(pen, this.frame);
    this.#overlay.setAttribute('aria-description', describePicture(this.#session, this.frame));
  }

  #drawOverlay(): void {
    const { frame } = this;
    const pen = this.#surfaces.overlay.begin();
    if (pen !== null && frame !== null) this.#paintOverlay(pen, frame);
  }

  #paintOverlay(pen: Pen, frame: Frame): void {
    const session = this.#session;
    const { here } = session;
    const pointed =
      this.#hover === null || this.#draft !== null ? null : pointAt(session, frame, this.#hover.x, this.#hover.y);
    drawOverlay(
      pen,
      frame,
      {
        hoverX: pointed?.x ?? null,
        hoverLifetime: pointed?.lifetime ?? null,
        hereU: here === null ? null : uOfMoment(session, here.moment, here.us),
        hereLifetime: here?.lifetime ?? null,
        hereLife: here === null || here.lifetime === null ? null : session.lifeOf(here.lifetime, here.source),
        range: this.#draftRange() ?? session.range
      },
      this.#colours
    );
    this.#tooltip.show(pointed, this.#surfaces.overlay, this.#colours);
  }

  #draftRange(): { fromU: number; toU: number } | null {
    const { frame } = this;
    if (this.#draft === null || frame === null) return null;
    const { plot } = frame.layout;
    const clamp = (x: number): number => Math.min(plot.width, Math.max(0, x - plot.x));
    const [a, b] = [clamp(this.#draft.fromX), clamp(this.#draft.toX)].sort((p, q) => p - q) as [number, number];
    return { fromU: frame.viewport.uOfPx(a, plot.width), toU: frame.viewport.uOfPx(b, plot.width) };
  }

  #attachPicture(): () => void {
    const session = this.#session;
    return attachPointer(this.#overlay, {
      hover: (x, y) => {
        this.#hover = { x, y };
        this.redrawOverlay();
      },
      leave: () => {
        this.#hover = null;
        this.picture.classList.remove('dragging');
        this.redrawOverlay();
      },
      click: (x, y) => {
        this.picture.classList.remove('dragging');
        if (this.frame === null) return;
        const region = regionAt(session, this.frame, x, y);
        if (region === null) this.#here(x, y);
        else session.setRange(rangeOfRegion(session, region));
      },
      doubleClick: (x, y) => {
        if (this.frame === null) return;
        const region = regionAt(session, this.frame, x, y);
        if (region !== null) {
          const { fromU, toU } = rangeOfRegion(session, region);
          if (region.cell === null || !goToCell(this.element, region.cell))
            session.setViewport(session.viewport.around(fromU, toU, 0));
          return;
        }
        const { range, viewport } = session;
        const { plot } = this.frame.layout;
        const u = viewport.uOfPx(x - plot.x, plot.width);
        if (range !== null && u >= range.fromU && u <= range.toU)
          session.setViewport(viewport.around(range.fromU, range.toU, 0));
        else session.setViewport(new Viewport(viewport.axis));
      },
      pan: px => {
        this.#hover = null;
        this.picture.classList.add('dragging');
        session.setViewport(session.viewport.pan(-px / (this.frame?.layout.plot.width ?? 1)));
      },
      range: (fromX, toX, done) => {
        this.#draft = { fromX, toX };
        if (!done) {
          this.redrawOverlay();
          return;
        }
        const range = this.#draftRange();
        this.#draft = null;
        if (range !== null && Math.abs(toX - fromX) >= LEAST_RANGE_PX) session.setRange(range);
      },
      zoom: (factor, x) => this.#zoom(factor, x),
      dragPans: () => !session.viewport.isWhole,
      canZoomOut: () => !session.viewport.isWhole
    });
  }

  #zoom(factor: number, x: number | null): void {
    const { viewport } = this.#session;
    const plot = this.frame?.layout.plot;
    const share = plot === undefined || x === null ? 0.5 : Math.min(1, Math.max(0, (x - plot.x) / plot.width));
    this.#session.setViewport(viewport.zoom(factor, share));
  }

  focus(): void {
    this.#overlay.focus({ preventScroll: true });
  }

  hasFocus(): boolean {
    return (this.#overlay.getRootNode() as ShadowRoot | Document).activeElement === this.#overlay;
  }

  /** Perform an action of the picture; false for one that is not the picture's. */
  perform(action: Action): boolean {
    const session = this.#session;
    const { viewport } = session;
    switch (action) {
      case 'zoomIn':
        this.#zoom(KEY_ZOOM, this.#hover?.x ?? null);
        return true;
      case 'zoomOut':
        this.#zoom(1 / KEY_ZOOM, this.#hover?.x ?? null);
        return true;
      case 'panLeft':
        session.setViewport(viewport.pan(-KEY_PAN));
        return true;
      case 'panRight':
        session.setViewport(viewport.pan(KEY_PAN));
        return true;
      case 'fit':
        session.setViewport(new Viewport(viewport.axis));
        return true;
      case 'toStart':
        session.setViewport(viewport.pan(-viewport.axis.length / viewport.spanU));
        return true;
      case 'toEnd':
        session.setViewport(viewport.pan(viewport.axis.length / viewport.spanU));
        return true;
      case 'here':
        this.#here();
        return true;
      case 'stretch':
        // Without a mouse the keys that zoom and pan choose the range.
        session.setRange({ fromU: viewport.fromU, toU: viewport.toU });
        return true;
      case 'peak':
        goToPeak(session);
        return true;
      case 'focusSelection':
        this.#zoomToSelection();
        return true;
      case 'next':
      case 'previous':
        stepNeighbour(session, action === 'next' ? 1 : -1);
        return true;
      default:
        return false;
    }
  }

  #zoomToSelection(): void {
    const { here, range, latest, viewport } = this.#session;
    const lifetime = latest === 'here' ? (here?.lifetime ?? null) : null;
    if (here !== null && lifetime !== null) this.#session.showLifetime(lifetime, true, here.source);
    else if (range !== null) this.#session.setViewport(viewport.around(range.fromU, range.toU, 0));
  }

  /** Ask who is alive at a point: the mouse's or, without one, the middle at the bottom. */
  #here(x = this.#hover?.x ?? this.#middle()?.x, y = this.#hover?.y ?? this.#middle()?.y): void {
    const pointed =
      this.frame === null || x === undefined || y === undefined ? null : pointAt(this.#session, this.frame, x, y);
    if (pointed === null) return;
    const { source, moment, us, lifetime } = pointed;
    this.#session.setHere({ source, moment, us, lifetime });
  }

  #middle(): { x: number; y: number } | null {
    const plot = this.frame?.layout.plot;
    return plot === undefined ? null : { x: plot.x + plot.width / 2, y: plot.y + plot.height - 1 };
  }
}
