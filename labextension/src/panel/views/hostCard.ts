/** The host's memory and every kernel's share of it, by notebook: all there is to see on a machine without a GPU. */

import type { ProcessState, State } from '../protocol';
import { asHost, type Bar, deviceBar, restOf } from '../segments';
import { BarView } from './bar';
import { Card } from './card';
import { pairText, type ViewContext } from './context';
import { element } from './dom';
import { GraphView } from './graph';
import { OwnerList } from './owners';
import { Value } from './value';

/** A kernel in the shape of a process, so that one list serves devices and host. */
function asProcesses(state: State): ProcessState[] {
  return state.kernels.map(kernel => ({
    pid: kernel.pid ?? 0,
    used: kernel.hostMemory,
    name: kernel.name,
    owner: 'kernel',
    kernelId: kernel.id,
    missing: kernel.missing.hostMemory ? { used: kernel.missing.hostMemory } : {}
  }));
}

export class HostCard {
  constructor(private readonly _context: ViewContext) {
    this.card = new Card(_context.folds, 'host', false, () => this.redraw());
    this._memory = new Value(_context);
    this._bar = new BarView(_context);
    this._graph = new GraphView(_context);
    this._owners = new OwnerList(_context);
    this.card.summary.append(element('div', 'gpumem-headline', this._memory.node), this._bar.node);
    this.card.body.append(this._graph.node, this._owners.node);
  }

  readonly card: Card;

  update(state: State): void {
    const { trans } = this._context;
    this._state = state;
    this.card.setTitle(trans.__('Host memory'), state.host.name);
    if (state.devices.length === 0) {
      this.card.suggest();
    }
    this._numbers(state);
    this._owners.update(asProcesses(state), restOf(this._barOf(state)));
    if (this.card.expanded) {
      this._draw(state, false);
    }
  }

  tick(): void {
    if (this._state) {
      this._numbers(this._state);
      this._owners.updateRest(restOf(this._barOf(this._state)));
      if (this.card.expanded) {
        this._draw(this._state, false);
      }
    }
  }

  redraw(always = false): void {
    if (this._state && (always || this.card.expanded)) {
      this._draw(this._state, true);
    }
  }

  private _barOf(state: State): Bar | null {
    const order = state.kernels.map(kernel => kernel.id);
    return asHost(deviceBar(state.host, asProcesses(state), order));
  }

  private _numbers(state: State): void {
    const { memoryTotal, memoryUsed, missing } = state.host;
    const known = memoryTotal !== null && memoryUsed !== null;
    this._memory.set(
      known ? pairText(this._context, memoryUsed, memoryTotal) : null,
      missing.memoryUsed ?? missing.memoryTotal
    );
    this._bar.update(this._barOf(state));
  }

  private _draw(state: State, force: boolean): void {
    const { model } = this._context;
    this._graph.update(
      {
        memory: model.host,
        total: state.host.memoryTotal,
        utilization: null,
        nowUs: state.timeUs,
        spanUs: model.settings.historySeconds * 1e6
      },
      force
    );
  }

  private readonly _memory: Value;
  private readonly _bar: BarView;
  private readonly _graph: GraphView;
  private readonly _owners: OwnerList;
  private _state: State | null = null;
}
