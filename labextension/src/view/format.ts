/** Numbers as people read them: binary units, always with the unit. The same rules as `gpumem_magic/_format.py`. */

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'] as const;

/** Three significant digits with a binary unit: "512 B", "21.7 MiB", "6.21 GiB". */
export function formatBytes(count: number, signed = false): string {
  const sign = count < 0 ? '−' : signed && count > 0 ? '+' : '';
  let value = Math.abs(count);
  let unit = 0;
  // 999.5 and up would print as four digits, so it moves to the next unit.
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return `${sign}${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** An integer with thousands separators; the separator does not depend on the reader's locale. */
export function formatCount(count: number): string {
  return Math.round(count)
    .toString()
    .replace(/\B(?=(\d{3})+$)/g, ',');
}

/** "47 %", "3.2 %", "<0.1 %": a share of the whole. */
export function formatShare(part: number, whole: number): string {
  if (!(whole > 0)) return '';
  const percent = (100 * part) / whole;
  if (percent === 0) return '0 %';
  if (percent > 0 && percent < 0.1) return '<0.1 %';
  return `${percent.toFixed(Math.abs(percent) < 10 ? 1 : 0)} %`;
}

/** A duration given in microseconds: "512 µs", "4.2 ms", "12.4 s", "3 min 05 s". */
export function formatDuration(us: number): string {
  const sign = us < 0 ? '−' : '';
  const value = Math.abs(us);
  if (value < 1e3) return `${sign}${value.toFixed(0)} µs`;
  if (value < 1e6) {
    const milliseconds = value / 1e3;
    return `${sign}${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`;
  }
  if (value < 60e6) return `${sign}${(value / 1e6).toFixed(value < 10e6 ? 2 : 1)} s`;
  const seconds = Math.round(value / 1e6);
  const minutes = Math.floor(seconds / 60);
  const two = (n: number): string => n.toString().padStart(2, '0');
  return minutes < 60
    ? `${sign}${minutes} min ${two(seconds % 60)} s`
    : `${sign}${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
}

/**
 * A moment on the axis, relative to the recording's start, with as many digits as the distance between two ticks
 * (`resolutionUs`) needs to tell them apart.
 */
export function formatMoment(us: number, resolutionUs: number): string {
  if (resolutionUs >= 60e6) return formatDuration(us);
  const [scale, unit] =
    us >= 1e6 || resolutionUs >= 1e5 ? [1e6, 's'] : us >= 1e3 || resolutionUs >= 100 ? [1e3, 'ms'] : [1, 'µs'];
  const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(resolutionUs / scale) - 1e-9)));
  return `${(us / scale).toFixed(digits)} ${unit}`;
}
