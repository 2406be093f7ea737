/** What lies under a point of the picture: the band, and in it the single allocation. */

import type { Curves } from './curves';
import type { LiveIndex } from './live';

export interface Picked {
  band: number;
  /** null where the band is a sum of small allocations. */
  lifetime: number | null;
  /** Bytes below the band, and of the band itself. */
  base: number;
  bytes: number;
}

/** `level` counts bytes from the bottom of the stack; null above its top. */
export function pick(curves: Curves, live: LiveIndex, moment: number, level: number): Picked | null {
  const composition = curves.composition(moment);
  let base = 0;
  let band = 0;
  while (band < composition.length && base + (composition[band] as number) <= level) {
    base += composition[band] as number;
    band += 1;
  }
  if (band >= composition.length || level < 0) return null;
  const bytes = composition[band] as number;
  let lifetime: number | null = null;
  let reached = base;
  const { ofLifetime } = curves.banding;
  const sizes = curves.recording.lifetimes.bytes;
  // Inside a band the oldest lies at the bottom, the sums of small ones on top.
  live.each(moment, i => {
    if (lifetime !== null || ofLifetime[i] !== band) return;
    reached += sizes[i] as number;
    if (reached > level) lifetime = i;
  });
  return { band, lifetime, base, bytes };
}
