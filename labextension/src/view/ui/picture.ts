/** The picture as a part of the page: canvases, overview, mouse and keys. */

import { Viewport } from '../axis/viewport';
import { goToCell } from '../cells/jump';
import type { PlacedRegion } from '../draw/frame';
import { FREE_REGION_ROWS, GUTTER_PX, REGION_ROW_PX } from '../draw/layout';
import { drawOverview, drawWindow } from '../draw/minimap';
import { drawOverlay } from '../draw/overlay';
import type { Colours } from '../draw/palette';
import type { Rect } from '../draw/pen';
import { drawPicture, type Frame, type Scene } from '../draw/picture';
import type { Action } from '../input/keys';
import { attachPointer } from '../input/pointer';
import { pick } from '../model/pick';
import { isTimed } from '../model/steps';
import type { Session, Source } from '../session';
import { makeSurface } from './canvas';
import { describePicture } from './describe';
import { h } from './dom';
import { type Pointed, Tooltip } from './tooltip';

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
  readonly #minimap: HTMLElement;
  readonly #tooltip: Tooltip;
  readonly #detach: () => void;
  #colours: Colours;
  #hover: { x: number; y: number } | null = null;
  #draft: { fromX: number; toX: number } | null = null;
  #pending = 0;
  #dirty = { base: true, overview: true };

  constructor(session: Session, colours: Colours) {
    this.#session = session;
    this.#colours = colours;
    const base = h('canvas', { 'aria-hidden': 'true' });
    const overview = h('canvas', { 'aria-hidden': 'true' });
    const window_ = h('canvas', { 'aria-hidden': 'true' });
    this.#overlay = h('canvas', {
      class: 'overlay',
      tabindex: 0,
      role: 'application',
      'aria-roledescription': 'timeline',
      'aria-label': 'Memory over time. Press ? for keys; the tables below hold the same numbers.'
    });
    this.#minimap = h('div', { class: 'minimap', 'aria-hidden': 'true' }, overview, window_);
    this.#tooltip = new Tooltip(session);
    this.picture = h('div', { class: 'picture' }, base, this.#overlay, this.#tooltip.element);
    this.element = h('div', {}, this.#minimap, this.picture);
    this.#surfaces = {
      base: makeSurface(base),
      overlay: makeSurface(this.#overlay),
      overview: makeSurface(overview),
      window: makeSurface(window_)
    };
    this.#makeRoom();
    const detachPointer = this.#attachPicture();
    this.#attachMinimap();
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

  setColours(colours: Colours): void {
    this.#colours = colours;
    this.#dirty = { base: true, overview: true };
    // Not at the next frame: before printing there is none.
    this.draw();
  }

  /** Everything, at the next frame. */
  redraw(): void {
    this.#makeRoom();
    this.#dirty = { base: true, overview: true };
    this.#schedule();
  }

  /** An observer reports at its beginning too, when everything has just been drawn. */
  #resized(): void {
    if (this.#surfaces.base.isCurrent() && this.#surfaces.overview.isCurrent()) return;
    this.redraw();
  }

  /** Many rows of regions make the picture taller, not the plot lower. */
  #makeRoom(): void {
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
    if (this.#dirty.overview) this.#drawOverview();
    this.#drawWindow();
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
    this.#overlay.setAttribute('aria-description', describePicture(this.#session, this.frame));
  }

  #area(width: number): Rect {
    const x = this.frame?.layout.plot.x ?? GUTTER_PX;
    return { x, y: 2, width: Math.max(1, this.frame?.layout.plot.width ?? width - x), height: 36 };
  }

  #drawOverview(): void {
    const pen = this.#surfaces.overview.begin();
    if (pen === null) return;
    this.#dirty.overview = false;
    const { curves } = this.#session.source;
    const { viewport } = this.#session;
    const { frame } = this;
    const drawn = frame !== null && frame.curves === curves && frame.viewport.equals(new Viewport(viewport.axis));
    const area = this.#area(this.#surfaces.overview.width);
    drawOverview(pen, area, curves, viewport, this.#colours, drawn ? frame.columns : null);
  }

  #drawWindow(): void {
    const pen = this.#surfaces.window.begin();
    if (pen !== null) drawWindow(pen, this.#area(this.#surfaces.window.width), this.#session.viewport, this.#colours);
  }

  #drawOverlay(): void {
    const { frame } = this;
    const pen = this.#surfaces.overlay.begin();
    if (pen === null || frame === null) return;
    const session = this.#session;
    const { here } = session;
    const pointed = this.#hover === null || this.#draft !== null ? null : this.#point(this.#hover.x, this.#hover.y);
    drawOverlay(
      pen,
      frame,
      {
        hoverX: pointed?.x ?? null,
        hoverLifetime: pointed?.lifetime ?? null,
        hereU: here === null ? null : uOfMoment(session, here.moment, here.us),
        hereLifetime: here?.lifetime ?? null,
        hereLife: here === null || here.lifetime === null ? null : session.lifeOf(here.lifetime, here.source),
        range: this.#draftRange() ?? session.range,
        peakU: session.unfiltered ? peakU(session) : null
      },
      this.#colours
    );
    this.#tooltip.show(pointed, this.#surfaces.overlay, this.#colours);
  }

  /** What lies under a point of the picture. */
  #point(x: number, y: number): Pointed | null {
    const { frame } = this;
    if (frame === null) return null;
    const { plot } = frame.layout;
    if (x < plot.x || x > plot.x + plot.width || y < 0 || y > plot.y + plot.height) return null;
    const { columns, viewport } = frame;
    const column = Math.min(columns.count - 1, Math.max(0, Math.floor(((x - plot.x) / plot.width) * columns.count)));
    const source = this.#session.active();
    const moment = columns.moment[column] as number;
    const level = y < plot.y ? Number.POSITIVE_INFINITY : frame.scale.bytesAt(y);
    const picked = pick(source.curves, source.live, moment, level);
    const us = momentUs(source, moment, viewport, x - plot.x, plot.width);
    const total = source.curves.total[moment] as number;
    return { x, y, us, moment, source, picked, lifetime: picked?.lifetime ?? null, total };
  }

  /** The region or cell whose bar lies under a point. */
  #regionAt(x: number, y: number): PlacedRegion | null {
    const area = this.frame?.layout.regions;
    if (area === undefined || this.frame === null || y < area.y || y >= area.y + area.height) return null;
    const row = Math.floor((y - area.y) / REGION_ROW_PX);
    const { viewport } = this.frame;
    const perPx = viewport.spanU / area.width;
    const u = viewport.uOfPx(x - area.x, area.width);
    const inRow = this.#session.regions.filter(region => region.row === row);
    // A bar of a pixel is hard to hit: the nearest within three.
    const distance = (region: PlacedRegion): number => {
      const { fromU, toU } = this.#rangeOf(region);
      return Math.max(fromU - u, u - toU, 0) / perPx;
    };
    const best = inRow.reduce<PlacedRegion | null>(
      (found, region) => (found === null || distance(region) < distance(found) ? region : found),
      null
    );
    return best !== null && distance(best) <= 3 ? best : null;
  }

  #rangeOf(region: PlacedRegion): { fromU: number; toU: number } {
    if (region.cell !== null) return this.#session.rangeOf(region.cell);
    const { axis } = this.#session.source;
    return { fromU: axis.uOfUs(region.fromUs), toU: axis.uOfUs(region.toUs) };
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
        const region = this.#regionAt(x, y);
        if (region !== null) {
          session.setRange(this.#rangeOf(region));
          return;
        }
        const pointed = this.#point(x, y);
        if (pointed === null) return;
        session.setHere({ source: pointed.source, moment: pointed.moment, us: pointed.us, lifetime: pointed.lifetime });
      },
      doubleClick: (x, y) => {
        const region = this.#regionAt(x, y);
        if (region !== null) {
          const { fromU, toU } = this.#rangeOf(region);
          if (region.cell === null || !goToCell(this.element, region.cell))
            session.setViewport(session.viewport.around(fromU, toU, 0));
          return;
        }
        const { range, viewport } = session;
        const u = this.frame === null ? 0 : viewport.uOfPx(x - this.frame.layout.plot.x, this.frame.layout.plot.width);
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

  #attachMinimap(): void {
    let mode: 'move' | 'choose' | 'from' | 'to' | null = null;
    let anchor = 0;
    const uAt = (event: PointerEvent): number => {
      const area = this.#area(this.#surfaces.overview.width);
      const x = event.clientX - this.#minimap.getBoundingClientRect().left;
      const { axis } = this.#session.viewport;
      return Math.min(axis.length, Math.max(0, ((x - area.x) / area.width) * axis.length));
    };
    this.#minimap.addEventListener('pointerdown', event => {
      const { viewport } = this.#session;
      const u = uAt(event);
      const grip = (viewport.axis.length / this.#area(this.#surfaces.overview.width).width) * 5;
      if (!viewport.isWhole && Math.abs(u - viewport.fromU) < grip) mode = 'from';
      else if (!viewport.isWhole && Math.abs(u - viewport.toU) < grip) mode = 'to';
      else mode = !viewport.isWhole && u > viewport.fromU && u < viewport.toU ? 'move' : 'choose';
      anchor = u;
      this.#minimap.setPointerCapture(event.pointerId);
    });
    this.#minimap.addEventListener('pointermove', event => {
      if (mode === null) return;
      const { viewport } = this.#session;
      const u = uAt(event);
      if (mode === 'move') {
        this.#session.setViewport(viewport.pan((u - anchor) / viewport.spanU));
        anchor = u;
      } else if (mode === 'choose') {
        const [from, to] = u < anchor ? [u, anchor] : [anchor, u];
        if (to - from > viewport.axis.length / 500) this.#session.setViewport(new Viewport(viewport.axis, from, to));
      } else {
        const from = mode === 'from' ? Math.min(u, viewport.toU) : viewport.fromU;
        this.#session.setViewport(new Viewport(viewport.axis, from, mode === 'to' ? Math.max(u, from) : viewport.toU));
      }
    });
    this.#minimap.addEventListener('pointerup', event => {
      const { viewport } = this.#session;
      // A click beside the window brings the window there.
      if (mode === 'choose' && !viewport.isWhole && Math.abs(uAt(event) - anchor) < viewport.axis.length / 500) {
        this.#session.setViewport(
          new Viewport(viewport.axis, anchor - viewport.spanU / 2, anchor + viewport.spanU / 2)
        );
      }
      mode = null;
    });
    this.#minimap.addEventListener('dblclick', () =>
      this.#session.setViewport(new Viewport(this.#session.viewport.axis))
    );
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
        if (session.here?.lifetime != null) session.showLifetime(session.here.lifetime, true, session.here.source);
        else if (session.range !== null)
          session.setViewport(viewport.around(session.range.fromU, session.range.toU, 0));
        return true;
      case 'next':
      case 'previous':
        stepNeighbour(session, action === 'next' ? 1 : -1);
        return true;
      default:
        return false;
    }
  }

  #here(): void {
    const plot = this.frame?.layout.plot;
    if (plot === undefined) return;
    const pointed = this.#point(this.#hover?.x ?? plot.x + plot.width / 2, this.#hover?.y ?? plot.y + plot.height - 1);
    if (pointed !== null) {
      this.#session.setHere({
        source: pointed.source,
        moment: pointed.moment,
        us: pointed.us,
        lifetime: pointed.lifetime
      });
    }
  }
}

/** The time of a drawn moment: the mouse's own where the moment holds there, else when the moment begins. */
function momentUs(source: Source, moment: number, viewport: Viewport, px: number, width: number): number {
  const mouse = viewport.axis.usOfU(viewport.uOfPx(px, width));
  const { time, count } = source.recording.steps;
  const from = moment === 0 ? 0 : (time[moment - 1] as number);
  const to = moment < count ? (time[moment] as number) : source.recording.spanUs;
  return Math.min(Math.max(mouse, from), to);
}

export function goToPeak(session: Session): void {
  const { source } = session;
  const moment = source.curves.extremes.greatest(0, source.curves.moments - 1);
  const us = moment === 0 ? 0 : (source.recording.steps.time[moment - 1] as number);
  session.setHere({ source, moment, us, lifetime: null });
  const u = uOfMoment(session, moment, us);
  const { viewport } = session;
  if (u < viewport.fromU || u > viewport.toU)
    session.setViewport(viewport.around(u - viewport.spanU / 2, u + viewport.spanU / 2, 0));
}

/** Where a moment lies along the axis: where it has no time, by its place in the order. */
function uOfMoment(session: Session, moment: number, us: number): number {
  const { axis } = session.viewport;
  return axis.kind === 'event' && !isTimed(session.source.recording.device) ? moment : axis.uOfUs(us);
}

function peakU(session: Session): number | null {
  const { curves, recording } = session.source;
  const { headline, startUs } = recording.device;
  if (headline.peakUs === null) return null;
  return uOfMoment(session, curves.extremes.greatest(0, curves.moments - 1), headline.peakUs - startUs);
}

/** Select the next or previous allocation of the selected one's line, in the order in which they were made. */
export function stepNeighbour(session: Session, direction: 1 | -1): void {
  const { here } = session;
  const source = here?.source ?? session.source;
  const { lifetimes } = source.recording;
  if (here === null || here.lifetime === null) return;
  const group = lifetimes.group[here.lifetime];
  for (let i = here.lifetime + direction; i >= 0 && i < lifetimes.count; i += direction) {
    if (lifetimes.group[i] !== group) continue;
    session.select(i, source);
    session.showLifetime(i, false, source);
    return;
  }
}
