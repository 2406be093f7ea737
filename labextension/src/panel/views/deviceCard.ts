/** Everything about one device. */

import { formatPercent } from '../format';
import { processesOf } from '../owners';
import type { DeviceState, MigState, ProcessState } from '../protocol';
import { withReports } from '../reports';
import { asHost, type Bar, deviceBar, fullness, restOf } from '../segments';
import { BarView } from './bar';
import { Card } from './card';
import { pairText, type ViewContext } from './context';
import { element, type ItemView, KeyedList, setHidden, setSentence, setText } from './dom';
import { GraphView } from './graph';
import { OwnerList } from './owners';
import { Value } from './value';

/** A short fact: its name over its value. */
class Fact {
  readonly node: HTMLElement;

  constructor(context: ViewContext, name: string) {
    this._value = new Value(context);
    const term = element('dt', '', name);
    this.node = element('div', 'gpumem-fact', term, element('dd', '', this._value.node));
  }

  set(text: string | null, reason: string | undefined): void {
    this._value.set(text, reason);
  }

  private readonly _value: Value;
}

class Note implements ItemView<string> {
  readonly node = element('li', 'gpumem-note');

  update(text: string): void {
    setSentence(this.node, text);
  }
}

/** A MIG instance: a device within the device, with memory and processes of its own. */
class MigView implements ItemView<MigState> {
  readonly node = element('li', 'gpumem-mig');

  constructor(private readonly _context: ViewContext) {
    this._memory = new Value(_context);
    this._bar = new BarView(_context);
    this._owners = new OwnerList(_context);
    const line = element('div', 'gpumem-mig-line', this._name, this._memory.node);
    this.node.append(line, this._bar.node, this._owners.node);
  }

  update(instance: MigState): void {
    const { memoryTotal, memoryUsed, missing } = instance;
    setText(this._name, `MIG ${instance.index}${instance.name ? ` · ${instance.name}` : ''}`);
    const known = memoryTotal !== null && memoryUsed !== null;
    this._memory.set(
      known ? pairText(this._context, memoryUsed, memoryTotal) : null,
      missing.memoryUsed ?? missing.memoryTotal
    );
    const processes = withReports(instance, this._context.model.reports);
    const bar = deviceBar(
      instance,
      processes,
      this._context.model.state?.kernels.map(kernel => kernel.id)
    );
    this._bar.update(bar);
    // Its size stands above; "free" would only repeat the difference.
    this._owners.update(
      processes,
      restOf(bar).filter(part => part.kind !== 'free')
    );
  }

  private readonly _name = element('span', 'gpumem-mig-name');
  private readonly _memory: Value;
  private readonly _bar: BarView;
  private readonly _owners: OwnerList;
}

/** Nothing is known about it: lost, or not ours to read. */
export function isSilent(device: DeviceState): boolean {
  return [device.memoryTotal, device.memoryUsed, device.utilization, device.temperatureC].every(
    value => value === null
  );
}

/** Processes that no MIG instance of the device lists. */
function ownProcesses(device: DeviceState, processes: ProcessState[]): ProcessState[] {
  const listed = new Set(device.mig.flatMap(instance => instance.processes).map(process => process.pid));
  return device.mig.length === 0 ? processes : device.processes.filter(process => !listed.has(process.pid));
}

export class DeviceCard implements ItemView<DeviceState> {
  /** @param key Under which its being folded is remembered. */
  constructor(
    private readonly _context: ViewContext,
    key: string,
    expanded: boolean
  ) {
    const { trans } = _context;
    this.card = new Card(_context.folds, key, expanded, () => this.redraw());
    this.card.node.classList.add('gpumem-device');
    this._memory = new Value(_context);
    this._bar = new BarView(_context);
    this._utilization = new Fact(_context, trans.__('Utilisation'));
    this._temperature = new Fact(_context, trans.__('Temp.'));
    this._power = new Fact(_context, trans.__('Power'));
    this._graph = new GraphView(_context);
    this._owners = new OwnerList(_context);
    const throttle = element('ul', 'gpumem-notes');
    const health = element('ul', 'gpumem-notes gpumem-trouble');
    const mig = element('ul', 'gpumem-migs');
    for (const list of [throttle, health, mig]) {
      list.setAttribute('role', 'list');
    }
    throttle.setAttribute('aria-label', trans.__('Why its clocks are held back'));
    health.setAttribute('aria-label', trans.__('Trouble'));
    mig.setAttribute('aria-label', trans.__('MIG instances'));
    this._throttle = new KeyedList(
      throttle,
      reason => reason,
      () => new Note()
    );
    this._health = new KeyedList(
      health,
      line => line,
      () => new Note()
    );
    this._mig = new KeyedList(
      mig,
      instance => instance.uuid ?? String(instance.index),
      () => new MigView(_context)
    );
    this._facts.append(this._utilization.node, this._temperature.node, this._power.node);
    this._silence.setAttribute('role', 'status');
    this.card.summary.append(
      element('div', 'gpumem-headline', this._memory.node, this._shared),
      this._bar.node,
      this._silence,
      health
    );
    this.card.body.append(this._facts, throttle, this._graph.node, this._owners.node, mig);
  }

  readonly card: Card;

  get node(): HTMLElement {
    return this.card.node;
  }

  /** A new state: everything may differ. */
  update(device: DeviceState): void {
    const { trans } = this._context;
    const total = this._device?.memoryTotal;
    this._device = device;
    const silent = isSilent(device);
    const processes = processesOf(device, this._context.model.reports);
    this.card.setTitle(trans.__('GPU %1', String(device.index)), device.name ?? '');
    this.card.node.classList.toggle('gpumem-silent', silent);
    const shared = this._sharing(device);
    setHidden(this._shared, shared === null);
    setText(this._shared, shared ?? '');
    setHidden(this._bar.node, silent);
    setHidden(this._facts, silent);
    setHidden(this._silence, !silent);
    if (silent) {
      const reason = device.missing.memoryTotal ?? device.missing.memoryUsed ?? Object.values(device.missing)[0];
      setSentence(
        this._silence,
        reason ? trans.__('No values: %1.', reason) : trans.__('This device gives no values, and no reason.')
      );
    }
    this._throttle.sync([...new Set(device.throttle)].map(reason => trans.__('Clocks held back: %1', reason)));
    setHidden(this._throttle.parent, device.throttle.length === 0);
    this._health.sync([...new Set(device.health ?? [])]);
    setHidden(this._health.parent, (device.health ?? []).length === 0);
    this._mig.sync(device.mig);
    setHidden(this._mig.parent, device.mig.length === 0);
    // With MIG the instances list their processes themselves.
    this._owners.update(ownProcesses(device, processes), restOf(this._barOf(device)));
    setHidden(this._owners.node, silent);
    if (processes.some(process => process.owner === 'kernel')) {
      this.card.suggest();
    }
    this._numbers(device, total !== device.memoryTotal);
  }

  /** New numbers for the device that `update` was last given. */
  tick(): void {
    if (this._device) {
      this._numbers(this._device, false);
      this._owners.updateRest(restOf(this._barOf(this._device)));
    }
  }

  /** Draw the graph anew: the server's history came in, or the card was unfolded. Not while folded, unless `always`. */
  redraw(always = false): void {
    if (this._device && (always || this.card.expanded)) {
      this._draw(this._device, true);
    }
  }

  private _barOf(device: DeviceState): Bar | null {
    const order = this._context.model.state?.kernels.map(kernel => kernel.id);
    const bar = deviceBar(device, processesOf(device, this._context.model.reports), order);
    return device.unified ? asHost(bar) : bar;
  }

  private _numbers(device: DeviceState, force: boolean): void {
    const { memoryTotal, memoryUsed, missing } = device;
    const full = fullness(device);
    const silent = isSilent(device);
    this.card.setFigure(full === null ? '' : formatPercent(full));
    this.card.node.classList.toggle('gpumem-full', full !== null && full >= 0.95);
    setHidden(this._memory.node, silent);
    this._memory.set(
      memoryTotal !== null && memoryUsed !== null
        ? pairText(this._context, memoryUsed + (device.memoryReserved ?? 0), memoryTotal)
        : null,
      missing.memoryUsed ?? missing.memoryTotal
    );
    this._bar.update(this._barOf(device));
    this._utilization.set(
      device.utilization === null ? null : `${Math.round(device.utilization)} %`,
      missing.utilization
    );
    this._temperature.set(
      device.temperatureC === null ? null : `${Math.round(device.temperatureC)} °C`,
      missing.temperatureC
    );
    this._power.set(this._watts(device), missing.powerW);
    if (this.card.expanded) {
      this._draw(device, force);
    }
  }

  private _sharing(device: DeviceState): string | null {
    const { trans } = this._context;
    if (device.unified) {
      return trans.__('shares the host’s memory');
    }
    const node = device.numaNode ?? null;
    return node === null ? null : trans.__('also the host’s NUMA node %1', String(node));
  }

  private _watts(device: DeviceState): string | null {
    if (device.powerW === null) {
      return null;
    }
    const watts = String(Math.round(device.powerW));
    return device.powerLimitW === null
      ? `${watts} W`
      : this._context.trans.__('%1 of %2 W', watts, String(Math.round(device.powerLimitW)));
  }

  private _draw(device: DeviceState, force: boolean): void {
    const { model } = this._context;
    const history = model.historyOf(device);
    this._graph.update(
      {
        memory: history.memory,
        total: device.memoryTotal,
        utilization: history.utilization,
        nowUs: model.state?.timeUs ?? 0,
        spanUs: model.settings.historySeconds * 1e6
      },
      force
    );
  }

  private readonly _memory: Value;
  private readonly _bar: BarView;
  private readonly _utilization: Fact;
  private readonly _temperature: Fact;
  private readonly _power: Fact;
  private readonly _graph: GraphView;
  private readonly _owners: OwnerList;
  private readonly _throttle: KeyedList<string>;
  private readonly _health: KeyedList<string>;
  private readonly _mig: KeyedList<MigState>;
  private readonly _facts = element('dl', 'gpumem-facts');
  private readonly _shared = element('span', 'gpumem-badge');
  private readonly _silence = element('p', 'gpumem-silence');
  private _device: DeviceState | null = null;
}
