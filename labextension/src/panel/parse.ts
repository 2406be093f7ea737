/**
 * What comes over the wire, checked: a field that is missing or of the wrong type becomes unknown, never a wrong number.
 *
 * A state that speaks another protocol is refused as a whole (`ProtocolError`), because its names may mean other things.
 */

import type { DeviceState, FeedMessage, History, Host, KernelState, MigState, ProcessState, State } from './protocol';

export class ProtocolError extends Error {
  /** @param package_ The server's version, as far as it tells it. */
  constructor(readonly package_: string | null) {
    super('The server speaks another version of the protocol.');
  }
}

type Fields = Record<string, unknown>;

function fields(value: unknown): Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Fields) : {};
}

function list<T>(value: unknown, each: (item: Fields) => T): T[] {
  return Array.isArray(value) ? value.map(item => each(fields(item))) : [];
}

function number(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

function text(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}

function texts(value: unknown): string[] {
  return Array.isArray(value) ? value.filter(item => typeof item === 'string') : [];
}

function numbers(value: unknown): (number | null)[] {
  return Array.isArray(value) ? value.map(number) : [];
}

function reasons(value: unknown): Record<string, string> {
  return Object.fromEntries(
    Object.entries(fields(value)).filter((entry): entry is [string, string] => typeof entry[1] === 'string')
  );
}

const OWNERS: readonly ProcessState['owner'][] = ['kernel', 'terminal', 'server', 'orphan', 'other', 'foreign'];

function process(value: Fields): ProcessState {
  return {
    pid: number(value.pid) ?? 0,
    used: number(value.used),
    name: text(value.name),
    owner: OWNERS.find(owner => owner === value.owner) ?? 'other',
    kernelId: text(value.kernelId),
    missing: reasons(value.missing),
    command: text(value.command),
    startedUs: number(value.startedUs),
    notebooks: texts(value.notebooks),
    terminal: text(value.terminal)
  };
}

function mig(value: Fields): MigState {
  return {
    index: number(value.index) ?? 0,
    uuid: text(value.uuid),
    name: text(value.name),
    memoryTotal: number(value.memoryTotal),
    memoryUsed: number(value.memoryUsed),
    processes: list(value.processes, process),
    missing: reasons(value.missing)
  };
}

function device(value: Fields): DeviceState {
  return {
    index: number(value.index) ?? 0,
    uuid: text(value.uuid),
    name: text(value.name),
    memoryTotal: number(value.memoryTotal),
    memoryUsed: number(value.memoryUsed),
    memoryReserved: number(value.memoryReserved),
    memoryFree: number(value.memoryFree),
    utilization: number(value.utilization),
    temperatureC: number(value.temperatureC),
    powerW: number(value.powerW),
    powerLimitW: number(value.powerLimitW),
    throttle: texts(value.throttle),
    unified: value.unified === true,
    numaNode: number(value.numaNode),
    processes: list(value.processes, process),
    unattributed: number(value.unattributed),
    mig: list(value.mig, mig),
    missing: reasons(value.missing),
    health: texts(value.health)
  };
}

function kernel(value: Fields): KernelState {
  const state: KernelState = {
    id: text(value.id) ?? '',
    name: text(value.name) ?? '',
    pid: number(value.pid),
    executionState: text(value.executionState),
    hostMemory: number(value.hostMemory),
    notebooks: list(value.notebooks, notebook => ({
      path: text(notebook.path) ?? '',
      name: text(notebook.name) ?? '',
      type: text(notebook.type) ?? ''
    })),
    missing: reasons(value.missing),
    python: text(value.python),
    lastActivityUs: number(value.lastActivityUs),
    opensDevice: typeof value.opensDevice === 'boolean' ? value.opensDevice : null
  };
  if ('package' in value) {
    state.package = text(value.package);
  }
  return state;
}

function host(value: Fields): Host {
  return {
    name: text(value.name) ?? '',
    memoryTotal: number(value.memoryTotal),
    memoryUsed: number(value.memoryUsed),
    missing: reasons(value.missing)
  };
}

/** @throws ProtocolError when it is not a state of this protocol. */
export function parseState(value: unknown): State {
  const state = fields(value);
  if (state.protocol !== 1) {
    throw new ProtocolError(text(state.package));
  }
  return {
    protocol: 1,
    package: text(state.package) ?? '',
    timeUs: number(state.timeUs) ?? 0,
    intervalMs: number(state.intervalMs) ?? 1000,
    driver: text(state.driver),
    problem: text(state.problem),
    host: host(fields(state.host)),
    devices: list(state.devices, device),
    kernels: list(state.kernels, kernel)
  };
}

/** Null for a message of a kind that this version does not know. @throws ProtocolError, SyntaxError */
export function parseMessage(data: string): FeedMessage | null {
  const message = fields(JSON.parse(data));
  if (message.type === 'state') {
    return { type: 'state', state: parseState(message.state) };
  }
  if (message.type !== 'delta') {
    return null;
  }
  return {
    type: 'delta',
    timeUs: number(message.timeUs) ?? 0,
    devices: list(message.devices, item => ({
      index: number(item.index) ?? -1,
      memoryUsed: number(item.memoryUsed),
      memoryReserved: number(item.memoryReserved),
      memoryFree: number(item.memoryFree),
      utilization: number(item.utilization),
      temperatureC: number(item.temperatureC),
      powerW: number(item.powerW)
    })),
    host: { memoryUsed: number(fields(message.host).memoryUsed) }
  };
}

export function parseHistory(value: unknown): History {
  const history = fields(value);
  return {
    timeUs: numbers(history.timeUs).map(time => time ?? 0),
    devices: list(history.devices, item => ({
      uuid: text(item.uuid),
      index: number(item.index) ?? -1,
      memoryUsed: numbers(item.memoryUsed),
      utilization: numbers(item.utilization)
    })),
    host: { memoryUsed: numbers(fields(history.host).memoryUsed) }
  };
}
