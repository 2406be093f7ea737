/** What is known now and what was known before. No DOM and no network: the feed writes, the views read. */

import { type ISignal, Signal } from '@lumino/signaling';
import type { KernelNumbers } from './kernelNumbers';
import { heldBy, kernelLabels, Palette } from './owners';
import type { DeviceState, FeedMessage, History, KernelState, State } from './protocol';
import type { Reports } from './reports';
import { Series } from './series';
import { DEFAULTS, isHidden, type PanelSettings } from './settings';

/** How the panel stands with the server. */
export type Connection =
  | { kind: 'idle' }
  | { kind: 'connecting' }
  | { kind: 'live'; transport: 'socket' | 'rest' }
  /** The server has no such handlers. */
  | { kind: 'absent' }
  | { kind: 'forbidden' }
  | { kind: 'unreachable' }
  | { kind: 'protocol'; package: string | null };

/**
 * `structure`: devices, processes, kernels or settings changed; `tick`: only numbers did; `connection`; `history`: the
 * server's history came in.
 */
export type Change = 'structure' | 'tick' | 'connection' | 'history';

export interface DeviceHistory {
  memory: Series;
  utilization: Series;
}

/** A pause of more than this many intervals is a gap. */
const GAP_INTERVALS = 3;

/** What stays the same when indices move: the UUID, where there is one. */
export function deviceKey(device: { uuid: string | null; index: number }): string {
  return device.uuid ?? `index ${device.index}`;
}

export class MonitorModel {
  readonly palette = new Palette();

  get changed(): ISignal<this, Change> {
    return this._changed;
  }

  /** The last state, kept up to date by deltas; null before the first. */
  get state(): State | null {
    return this._state;
  }

  get connection(): Connection {
    return this._connection;
  }

  set connection(value: Connection) {
    if (JSON.stringify(value) !== JSON.stringify(this._connection)) {
      this._connection = value;
      this._changed.emit('connection');
    }
  }

  get settings(): PanelSettings {
    return this._settings;
  }

  set settings(value: PanelSettings) {
    this._settings = value;
    for (const series of this._allSeries()) {
      series.spanUs = value.historySeconds * 1e6;
    }
    this._changed.emit('structure');
  }

  /** Devices that the user wants to see. */
  get devices(): DeviceState[] {
    return (this._state?.devices ?? []).filter(device => !isHidden(device, this._settings.hiddenDevices));
  }

  /** Short names of kernels, by id. */
  get labels(): ReadonlyMap<string, string> {
    return this._labels;
  }

  get host(): Series {
    return this._host;
  }

  /** What kernels of open notebooks say of themselves. */
  get reports(): Reports {
    return this._reports;
  }

  /** Take a kernel's word, or null when it has none any more. */
  report(kernelId: string, numbers: KernelNumbers | null): void {
    const open = (): boolean | undefined =>
      this._state?.devices.some(
        device => heldBy(kernelId, device) === null && heldBy(kernelId, device, this._reports) !== null
      );
    const before = open();
    if (numbers) {
      this._reports.set(kernelId, numbers);
    } else {
      this._reports.delete(kernelId);
    }
    // Each second while a cell runs: the cards need to look only where the driver leaves something open.
    if (before || open()) {
      this._changed.emit('structure');
    }
  }

  kernel(id: string | null): KernelState | null {
    return this._state?.kernels.find(kernel => kernel.id === id) ?? null;
  }

  historyOf(device: { uuid: string | null; index: number }): DeviceHistory {
    const key = deviceKey(device);
    let history = this._history.get(key);
    if (!history) {
      history = { memory: this._series(), utilization: this._series() };
      this._history.set(key, history);
    }
    return history;
  }

  apply(message: FeedMessage): void {
    if (message.type === 'state') {
      this._state = message.state;
      this._labels = kernelLabels(message.state.kernels);
      const alive = message.state.kernels.map(kernel => kernel.id);
      this.palette.keep(alive);
      for (const id of [...this._reports.keys()].filter(known => !alive.includes(known))) {
        this._reports.delete(id);
      }
      this._record(message.state.timeUs);
      this._changed.emit('structure');
      return;
    }
    if (!this._state) {
      return;
    }
    this._state.timeUs = message.timeUs;
    this._state.host.memoryUsed = message.host.memoryUsed;
    for (const { index, ...values } of message.devices) {
      const device = this._state.devices.find(candidate => candidate.index === index);
      if (device) {
        Object.assign(device, values);
      }
    }
    this._record(message.timeUs);
    this._changed.emit('tick');
  }

  applyHistory(history: History): void {
    for (const device of history.devices) {
      const { memory, utilization } = this.historyOf(device);
      memory.replace(history.timeUs, device.memoryUsed);
      utilization.replace(history.timeUs, device.utilization);
    }
    this._host.replace(history.timeUs, history.host.memoryUsed);
    this._changed.emit('history');
  }

  private _record(timeUs: number): void {
    if (!this._state) {
      return;
    }
    const gapUs = GAP_INTERVALS * 1000 * this._state.intervalMs;
    for (const device of this._state.devices) {
      const { memory, utilization } = this.historyOf(device);
      memory.push(timeUs, device.memoryUsed, gapUs);
      utilization.push(timeUs, device.utilization, gapUs);
    }
    this._host.push(timeUs, this._state.host.memoryUsed, gapUs);
  }

  private _series(): Series {
    return new Series(this._settings.historySeconds * 1e6);
  }

  private *_allSeries(): IterableIterator<Series> {
    yield this._host;
    for (const { memory, utilization } of this._history.values()) {
      yield memory;
      yield utilization;
    }
  }

  private readonly _changed = new Signal<this, Change>(this);
  private _state: State | null = null;
  private _connection: Connection = { kind: 'idle' };
  private _settings: PanelSettings = DEFAULTS;
  private _labels: ReadonlyMap<string, string> = new Map();
  private readonly _reports = new Map<string, KernelNumbers>();
  private readonly _history = new Map<string, DeviceHistory>();
  private readonly _host = new Series(DEFAULTS.historySeconds * 1e6);
}
