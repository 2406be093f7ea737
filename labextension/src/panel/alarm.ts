/** Warns once when a device fills up, and again only after it was clearly emptier in between. */

import { deviceKey } from './model';
import type { DeviceState } from './protocol';
import { fullness } from './segments';

/** A device that hovers at the threshold must not warn every second: it has to fall this far below first. */
export const REARM_BELOW = 0.1;

export class Alarm {
  /** Devices that have just become fuller than the threshold (0 to 1; 0 switches the alarm off). */
  check(devices: readonly DeviceState[], threshold: number): DeviceState[] {
    const fresh: DeviceState[] = [];
    for (const device of devices) {
      const key = deviceKey(device);
      const full = fullness(device);
      if (full === null || threshold <= 0 || full < threshold - REARM_BELOW) {
        this._warned.delete(key);
      } else if (full >= threshold && !this._warned.has(key)) {
        this._warned.add(key);
        fresh.push(device);
      }
    }
    return fresh;
  }

  private readonly _warned = new Set<string>();
}
