/** What the panel says when something is in the way: one sentence, and the command that helps. Pure. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { Connection } from './model';
import { processesOf } from './owners';
import type { KernelState, State } from './protocol';
import { VERSION } from './version';

export interface Message {
  level: 'info' | 'warning' | 'error';
  text: string;
  /** A command to copy. */
  command: string | null;
}

const PACKAGE = 'gpumem-magic';

function numbersOf(version: string): number[] {
  return version
    .split(/[^0-9]+/)
    .filter(part => part !== '')
    .slice(0, 3)
    .map(Number);
}

/** Negative when `a` is the older release. */
export function compareVersions(a: string, b: string): number {
  const [left, right] = [numbersOf(a), numbersOf(b)];
  for (let at = 0; at < 3; at += 1) {
    const difference = (left[at] ?? 0) - (right[at] ?? 0);
    if (difference !== 0) {
      return difference;
    }
  }
  return 0;
}

function absent(trans: TranslationBundle): Message {
  return {
    level: 'error',
    text: trans.__(
      'The server part of gpumem_magic does not answer. Restart Jupyter; if that does not help, install the package in the environment that runs Jupyter, then restart it:'
    ),
    command: `pip install ${PACKAGE}==${VERSION}`
  };
}

/** The page and the server's package are of different versions. */
function mismatch(trans: TranslationBundle, server: string, breaks: boolean): Message {
  const level = breaks ? 'error' : 'warning';
  if (compareVersions(server, VERSION) < 0) {
    return {
      level,
      text: trans.__(
        'The server runs gpumem_magic %1, this page %2. Restart Jupyter; if the versions still differ, install the newer one in the environment that runs Jupyter:',
        server,
        VERSION
      ),
      command: `pip install --upgrade ${PACKAGE}`
    };
  }
  return {
    level,
    text: trans.__(
      'The server runs gpumem_magic %1, this page %2. Reload the page; if the versions still differ, an old copy of the extension is installed beside the new one:',
      server,
      VERSION
    ),
    command: 'jupyter labextension list'
  };
}

/** A source tree that is not installed calls itself "0+unknown": it cannot be compared, and needs no advice. */
function isRelease(version: string): boolean {
  return /^\d+\.\d/.test(version);
}

/** What is to be said about server and driver; null when all is well. */
export function serverMessage(trans: TranslationBundle, connection: Connection, state: State | null): Message | null {
  switch (connection.kind) {
    case 'absent':
      return absent(trans);
    case 'protocol':
      return mismatch(trans, connection.package ?? '?', true);
    case 'forbidden':
      return {
        level: 'error',
        text: trans.__(
          'The server does not let this user read the monitor. Log in again, or ask whoever runs it for access to the resource “gpumem”.'
        ),
        command: null
      };
    case 'unreachable':
      return {
        level: 'warning',
        text: trans.__(
          'The server does not answer. The numbers below are the last that it sent; trying again by itself.'
        ),
        command: null
      };
    default:
      return state && isRelease(state.package) && state.package !== VERSION
        ? mismatch(trans, state.package, false)
        : null;
  }
}

/** Why there is no device to see, or why its processes are nobody's, with the next step. */
export function driverMessage(
  trans: TranslationBundle,
  state: State | null,
  labels: ReadonlyMap<string, string>
): Message | null {
  if (state?.problem) {
    return { level: 'info', text: state.problem, command: null };
  }
  const foreign = state?.devices.flatMap(device => processesOf(device)).find(process => process.owner === 'foreign');
  if (!state || !foreign) {
    return null;
  }
  const open = state.kernels.filter(kernel => kernel.opensDevice).map(kernel => labels.get(kernel.id) ?? kernel.name);
  const reason = foreign.missing.name ?? trans.__('the driver gives PIDs that mean nothing inside this container');
  return {
    level: 'info',
    text:
      open.length > 0
        ? trans.__(
            'Processes cannot be matched to notebooks: %1. Kernels that have a device open: %2.',
            reason,
            open.join(', ')
          )
        : trans.__(
            'Processes cannot be matched to notebooks: %1. None of this server’s kernels has a device open.',
            reason
          ),
    command: null
  };
}

/** What is to be installed in a kernel's own environment; null when nothing, or when nobody looked. */
export function kernelMessage(trans: TranslationBundle, kernel: KernelState, state: State | null): Message | null {
  const path = kernel.python ?? 'python';
  const python = /\s/.test(path) ? `"${path}"` : path;
  if (kernel.package === null) {
    return {
      level: 'info',
      text: trans.__(
        'This notebook’s kernel has no gpumem_magic, so its cells cannot be measured. Install it in the kernel’s environment:'
      ),
      command: `${python} -m pip install ${PACKAGE}==${VERSION}`
    };
  }
  if (kernel.package && state && isRelease(state.package) && kernel.package !== state.package) {
    return {
      level: 'info',
      text: trans.__(
        'This notebook’s kernel has gpumem_magic %1, the server %2. Bring both to one version:',
        kernel.package,
        state.package
      ),
      command: `${python} -m pip install ${PACKAGE}==${state.package}`
    };
  }
  return null;
}
