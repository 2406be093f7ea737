/** The user's settings as the panel uses them; defaults equal schema/panel.json's, and a test says so. */

import type { Unit } from './format';
import type { DeviceState } from './protocol';

export interface PanelSettings {
  intervalMs: number;
  historySeconds: number;
  units: Unit;
  /** Index, UUID or name of devices that are not shown. */
  hiddenDevices: string[];
  /** 0 to 1; 0 never warns. */
  warnAt: number;
  recordInBackground: boolean;
  showStatusItem: boolean;
}

export const DEFAULTS: PanelSettings = {
  intervalMs: 1000,
  historySeconds: 600,
  units: 'auto',
  hiddenDevices: [],
  warnAt: 0.95,
  recordInBackground: false,
  showStatusItem: true
};

function within(value: unknown, low: number, high: number, otherwise: number): number {
  return typeof value === 'number' && Number.isFinite(value) ? Math.min(high, Math.max(low, value)) : otherwise;
}

/** Settings from what the registry holds (names and units of the schema). */
export function readSettings(raw: Readonly<Record<string, unknown>>): PanelSettings {
  const hidden = raw.hiddenDevices;
  return {
    intervalMs: within(raw.interval, 0.5, 60, DEFAULTS.intervalMs / 1000) * 1000,
    historySeconds: within(raw.historyMinutes, 1, 1440, DEFAULTS.historySeconds / 60) * 60,
    units: raw.units === 'MiB' || raw.units === 'GiB' ? raw.units : DEFAULTS.units,
    hiddenDevices: Array.isArray(hidden) ? hidden.map(String) : DEFAULTS.hiddenDevices,
    warnAt: within(raw.warnAtPercent, 0, 100, DEFAULTS.warnAt * 100) / 100,
    recordInBackground: raw.recordInBackground === true,
    showStatusItem: raw.showStatusItem !== false
  };
}

export function isHidden(device: DeviceState, hidden: readonly string[]): boolean {
  return [String(device.index), device.uuid, device.name].some(name => name !== null && hidden.includes(name));
}
