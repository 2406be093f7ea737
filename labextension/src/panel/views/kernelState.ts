/** What a kernel does, for people. */

import { formatAge } from '../format';
import type { KernelState } from '../protocol';
import type { ViewContext } from './context';

/** From five minutes on it is worth saying for how long a kernel has held memory and done nothing. */
const LONG_IDLE_S = 300;

export function kernelState({ model, trans }: ViewContext, kernel: KernelState): string {
  const restS = ((model.state?.timeUs ?? 0) - (kernel.lastActivityUs ?? Number.POSITIVE_INFINITY)) / 1e6;
  switch (kernel.executionState) {
    case null:
      return trans.__('state unknown');
    case 'idle':
      return restS >= LONG_IDLE_S ? trans.__('idle for %1', formatAge(restS)) : trans.__('idle');
    case 'busy':
      return trans.__('busy');
    case 'starting':
      return trans.__('starting');
    case 'restarting':
      return trans.__('restarting');
    case 'dead':
      return trans.__('dead');
    default:
      return kernel.executionState;
  }
}
