/** Going to the peak, and from one allocation of a line to the next. */

import { isTimed } from '../model/steps';
import type { Session } from '../session';

/** Ask who is alive at the peak, and bring it into view. */
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
export function uOfMoment(session: Session, moment: number, us: number): number {
  const { axis } = session.viewport;
  return axis.kind === 'event' && !isTimed(session.source.recording.device) ? moment : axis.uOfUs(us);
}

/** Where the peak lies along the axis; null where its moment is not known. */
export function peakU(session: Session): number | null {
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
