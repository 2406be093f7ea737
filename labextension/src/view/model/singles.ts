/**
 * The outlines of single allocations in a stretch short enough to show them: each as runs of (moment, bottom, height)
 * inside its band. Small ones keep their place but get no outline.
 */

import { HIDDEN } from './bands';
import type { Curves } from './curves';
import type { LiveIndex } from './live';

export interface Single {
  lifetime: number;
  band: number;
  bytes: number;
  /** From `moments[k]` on it lies `bottoms[k]` bytes above zero, until the next entry or `until`. */
  moments: number[];
  bottoms: number[];
  until: number;
  /** Alive past the last moment of the stretch. */
  open: boolean;
}

interface Member {
  single: Single;
  /** Bytes of older allocations of the same band. */
  below: number;
}

/** A stretch with more steps, or more outlines, than this is drawn as bands only. */
export const MOST_STEPS = 600;
const MOST_CORNERS = 6_000;

/**
 * Outlines of allocations of at least `smallest` bytes between two moments (both included), or null when there would
 * be too many to draw and too many to see.
 */
export function findSingles(
  curves: Curves,
  live: LiveIndex,
  from: number,
  to: number,
  smallest: number
): Single[] | null {
  if (to - from > MOST_STEPS) return null;
  const { steps, lifetimes } = curves.recording;
  const { ofLifetime, ofRest, bands } = curves.banding;
  const members: Member[][] = bands.map(() => []);
  const totals = new Float64Array(bands.length);
  const found: Single[] = [];
  const add = (lifetime: number, band: number): void => {
    const bytes = lifetimes.bytes[lifetime] as number;
    if (bytes >= smallest) {
      const single: Single = { lifetime, band, bytes, moments: [], bottoms: [], until: to, open: true };
      found.push(single);
      (members[band] as Member[]).push({ single, below: totals[band] as number });
    }
    totals[band] = (totals[band] as number) + bytes;
  };
  live.each(from, i => {
    const band = ofLifetime[i] as number;
    if (band !== HIDDEN) add(i, band);
  });
  // `totals` counts single allocations; sums of small ones lie on top of their band and lift the bands above.
  const heights = Float64Array.from(curves.composition(from));
  let corners = place(members, heights, from);
  for (let i = from; i < to; i++) {
    const who = steps.owner[i] as number;
    const band = (who >= 0 ? ofLifetime[who] : ofRest[-1 - who]) as number;
    if (band === HIDDEN) continue;
    const delta = steps.delta[i] as number;
    heights[band] = (heights[band] as number) + delta;
    if (who >= 0 && delta >= 0 && lifetimes.start[who] === i) add(who, band);
    else if (who >= 0) remove(members[band] as Member[], who, delta, totals, band, i + 1);
    corners += place(members, heights, i + 1);
    if (corners > MOST_CORNERS) return null;
  }
  return found;
}

function remove(list: Member[], who: number, delta: number, totals: Float64Array, band: number, moment: number): void {
  totals[band] = (totals[band] as number) + delta;
  for (let k = list.length - 1; k >= 0; k--) {
    const member = list[k] as Member;
    if (member.single.lifetime > who) {
      member.below += delta;
    } else {
      if (member.single.lifetime === who) {
        member.single.until = moment;
        member.single.open = false;
        list.splice(k, 1);
      }
      return;
    }
  }
}

/** Note where each outline lies now; says how many moved. */
function place(members: Member[][], heights: Float64Array, moment: number): number {
  let base = 0;
  let corners = 0;
  for (let band = 0; band < members.length; band++) {
    for (const { single, below } of members[band] as Member[]) {
      const bottom = base + below;
      if (single.bottoms.at(-1) === bottom) continue;
      single.moments.push(moment);
      single.bottoms.push(bottom);
      corners += 1;
    }
    base += heights[band] as number;
  }
  return corners;
}
