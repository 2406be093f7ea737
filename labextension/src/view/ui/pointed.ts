/** What lies under a point of the picture. */

import type { Viewport } from '../axis/viewport';
import type { PlacedRegion } from '../draw/frame';
import { REGION_ROW_PX } from '../draw/layout';
import type { Frame } from '../draw/picture';
import { type Picked, pick } from '../model/pick';
import type { Range, Session, Source } from '../session';

export interface Pointed {
  x: number;
  y: number;
  us: number;
  moment: number;
  source: Source;
  picked: Picked | null;
  lifetime: number | null;
  total: number;
}

/** A bar of a pixel is hard to hit: the nearest within so many. */
const REACH_PX = 3;

/** The moment under a point, and what is alive there; null beside the plot. */
export function pointAt(session: Session, frame: Frame, x: number, y: number): Pointed | null {
  const { plot } = frame.layout;
  if (x < plot.x || x > plot.x + plot.width || y < 0 || y > plot.y + plot.height) return null;
  const { columns, viewport } = frame;
  const column = Math.min(columns.count - 1, Math.max(0, Math.floor(((x - plot.x) / plot.width) * columns.count)));
  const source = session.active();
  const moment = columns.moment[column] as number;
  const level = y < plot.y ? Number.POSITIVE_INFINITY : frame.scale.bytesAt(y);
  const picked = pick(source.curves, source.live, moment, level);
  const us = momentUs(source, moment, viewport, x - plot.x, plot.width);
  const total = source.curves.total[moment] as number;
  return { x, y, us, moment, source, picked, lifetime: picked?.lifetime ?? null, total };
}

/** The time of a drawn moment: the mouse's own where the moment holds there, else when the moment begins. */
function momentUs(source: Source, moment: number, viewport: Viewport, px: number, width: number): number {
  const mouse = viewport.axis.usOfU(viewport.uOfPx(px, width));
  const { time, count } = source.recording.steps;
  const from = moment === 0 ? 0 : (time[moment - 1] as number);
  const to = moment < count ? (time[moment] as number) : source.recording.spanUs;
  return Math.min(Math.max(mouse, from), to);
}

/** The region or cell whose bar lies under a point. */
export function regionAt(session: Session, frame: Frame, x: number, y: number): PlacedRegion | null {
  const area = frame.layout.regions;
  if (y < area.y || y >= area.y + area.height) return null;
  const row = Math.floor((y - area.y) / REGION_ROW_PX);
  const { viewport } = frame;
  const perPx = viewport.spanU / area.width;
  const u = viewport.uOfPx(x - area.x, area.width);
  const distance = (region: PlacedRegion): number => {
    const { fromU, toU } = rangeOfRegion(session, region);
    return Math.max(fromU - u, u - toU, 0) / perPx;
  };
  const best = session.regions
    .filter(region => region.row === row)
    .reduce<PlacedRegion | null>(
      (found, region) => (found === null || distance(region) < distance(found) ? region : found),
      null
    );
  return best !== null && distance(best) <= REACH_PX ? best : null;
}

export function rangeOfRegion(session: Session, region: PlacedRegion): Range {
  if (region.cell !== null) return session.rangeOf(region.cell);
  const { axis } = session.source;
  return { fromU: axis.uOfUs(region.fromUs), toU: axis.uOfUs(region.toUs) };
}
