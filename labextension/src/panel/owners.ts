/** Who a kernel is, for a person: the notebook's name and a colour that stays its own. */

import type { DeviceState, KernelState, ProcessState } from './protocol';
import { type Reports, withReports } from './reports';

/** Colours in the style sheet: --gpumem-owner-0 to 7. */
export const COLORS = 8;

/** Gives each kernel a colour for as long as the page lives, the first free one first. */
export class Palette {
  /** Index of a kernel's colour, 0 to COLORS − 1. */
  colorOf(kernelId: string): number {
    let color = this._colors.get(kernelId);
    if (color === undefined) {
      const taken = new Set(this._colors.values());
      color = Array.from({ length: COLORS }, (_, at) => at).find(at => !taken.has(at)) ?? this._colors.size % COLORS;
      this._colors.set(kernelId, color);
    }
    return color;
  }

  /** Give back the colours of kernels that are gone. */
  keep(kernelIds: readonly string[]): void {
    const alive = new Set(kernelIds);
    for (const id of [...this._colors.keys()]) {
      if (!alive.has(id)) {
        this._colors.delete(id);
      }
    }
    for (const id of kernelIds) {
      this.colorOf(id);
    }
  }

  private readonly _colors = new Map<string, number>();
}

function parts(path: string): string[] {
  return path.split('/').filter(part => part !== '');
}

/** The last parts of a path, `depth` of them. */
function tail(path: string, depth: number): string {
  return parts(path).slice(-depth).join('/');
}

/**
 * A short name for each kernel: its notebooks' file names, with as much of the folder as tells them apart.
 *
 * A kernel without a notebook is called by its kernel's name.
 */
export function kernelLabels(kernels: readonly KernelState[]): Map<string, string> {
  const paths = kernels.flatMap(kernel => kernel.notebooks.map(notebook => notebook.path));
  const short = (path: string): string => {
    for (let depth = 1; depth < parts(path).length; depth += 1) {
      const name = tail(path, depth);
      if (paths.every(other => other === path || tail(other, depth) !== name)) {
        return name;
      }
    }
    return path;
  };
  const labels = new Map<string, string>();
  for (const kernel of kernels) {
    const names = kernel.notebooks.map(notebook =>
      notebook.type === 'notebook' || notebook.name === '' ? short(notebook.path) : notebook.name
    );
    labels.set(kernel.id, [...new Set(names)].join(', ') || kernel.name);
  }
  return labels;
}

const NO_REPORTS: Reports = new Map();

/** All processes of a device: with MIG they are listed with the instances, and seldom with the device. */
export function processesOf(device: DeviceState, reports: Reports = NO_REPORTS): ProcessState[] {
  return device.processes.length > 0 || device.mig.length === 0
    ? withReports(device, reports)
    : device.mig.flatMap(instance => withReports(instance, reports));
}

/** What a kernel's processes hold on a device; null when none is there or no size is known. */
export function heldBy(kernelId: string, device: DeviceState, reports: Reports = NO_REPORTS): number | null {
  const sizes = processesOf(device, reports)
    .filter(process => process.kernelId === kernelId)
    .map(process => process.used)
    .filter(used => used !== null);
  return sizes.length > 0 ? sizes.reduce((sum, used) => sum + used, 0) : null;
}
