/** What every view is given. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { Folds } from '../folds';
import { formatBytes, formatPair } from '../format';
import type { MonitorModel } from '../model';
import type { Tip } from './tip';

/** What a click may do; the plugin knows how. */
export interface Actions {
  /** Open a kernel's notebook (or console); false when it has none. */
  open(kernelId: string): void;
  /** Menu of what can be done with a kernel and its processes; focus goes back to `anchor`. */
  menu(anchor: HTMLElement, subject: { kernelId: string | null; pids: number[] }): void;
  copy(text: string): void;
  /** Menu of how far back the graphs reach; focus goes back to `anchor`. */
  ranges(anchor: HTMLElement): void;
}

export interface ViewContext {
  readonly trans: TranslationBundle;
  readonly model: MonitorModel;
  readonly actions: Actions;
  readonly tip: Tip;
  readonly folds: Folds;
}

export function bytesText(context: ViewContext, bytes: number): string {
  return formatBytes(bytes, context.model.settings.units);
}

/** "45.2 of 80.0 GiB" */
export function pairText(context: ViewContext, part: number, whole: number): string {
  const [first, second] = formatPair(part, whole, context.model.settings.units);
  return context.trans.__('%1 of %2', first, second);
}
