/** Numbers of the panel: the view's rule of digits, and fixed units for whoever compares at a glance. */

import { formatBytes as formatAuto } from '../view/format';

export type Unit = 'auto' | 'MiB' | 'GiB';

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'] as const;

function inUnit(bytes: number, unit: string): string {
  const value = bytes / 1024 ** Math.max(0, UNITS.indexOf(unit as (typeof UNITS)[number]));
  const size = Math.abs(value);
  if (unit === 'B' || size >= 99.95) {
    return Math.round(value).toLocaleString('en-US');
  }
  return size === 0 ? '0' : value.toFixed(size < 9.995 ? 2 : 1);
}

/** "512 B", "1.50 KiB", "21.7 MiB", "6.21 GiB"; with a fixed unit "46,285 MiB". */
export function formatBytes(bytes: number, unit: Unit = 'auto'): string {
  return unit === 'auto' ? formatAuto(bytes) : `${inUnit(bytes, unit)} ${unit}`;
}

/**
 * Two sizes in the unit of the larger: `["45.2", "80.0 GiB"]`, to be joined by a translated "of". GiB is the largest
 * unit here: "307 of 2,015 GiB" says more than "0.30 of 1.97 TiB".
 */
export function formatPair(part: number, whole: number, unit: Unit = 'auto'): [string, string] {
  const text = formatBytes(whole, unit === 'auto' && whole >= 2 ** 40 ? 'GiB' : unit);
  return [inUnit(part, text.slice(text.indexOf(' ') + 1)), text];
}

/** Whole percent; what is not nothing never reads "0 %", what is not all never reads "100 %". */
export function formatPercent(fraction: number): string {
  const percent = Math.round(fraction * 100);
  if (percent === 0 && fraction > 0) {
    return '< 1 %';
  }
  return percent === 100 && fraction < 1 ? '> 99 %' : `${percent} %`;
}

/** "40 s", "12 min", "2 h 05 min", "6 h", "3 d 4 h". */
export function formatAge(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) {
    return `${whole} s`;
  }
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) {
    return `${minutes} min`;
  }
  const hours = Math.floor(minutes / 60);
  if (hours < 24) {
    return minutes % 60 === 0 ? `${hours} h` : `${hours} h ${String(minutes % 60).padStart(2, '0')} min`;
  }
  return hours % 24 === 0 ? `${hours / 24} d` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** Local wall-clock time, "14:03:22". */
export function formatClock(timeUs: number): string {
  return new Date(timeUs / 1000).toLocaleTimeString(undefined, { hour12: false });
}
