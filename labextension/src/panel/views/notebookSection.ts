/** The notebook in front: what its kernel holds on each device and on the host, and torch's own numbers. */

import type { KernelNumbers, TorchNumbers } from '../kernelNumbers';
import { kernelMessage } from '../messages';
import { heldBy } from '../owners';
import type { DeviceState, KernelState } from '../protocol';
import { Banner } from './banner';
import { paint } from './bar';
import { CellsView } from './cells';
import { bytesText, type ViewContext } from './context';
import { element, type ItemView, KeyedList, setHidden, setText } from './dom';
import { kernelState } from './kernelState';
import { TorchBlock } from './torchBlock';
import { Value } from './value';

/** The notebook in front, as the plugin sees it. */
export interface ActiveNotebook {
  name: string;
  kernelId: string | null;
  numbers: KernelNumbers | null;
  /** Bring a cell of it into view. */
  jump(cellId: string): void;
}

interface Line {
  key: string;
  name: string;
  text: string | null;
  reason: string | undefined;
}

class LineView implements ItemView<Line> {
  readonly node = element('div', 'gpumem-line');

  constructor(context: ViewContext) {
    this._value = new Value(context);
    this.node.append(this._name, element('dd', '', this._value.node));
  }

  update(line: Line): void {
    setText(this._name, line.name);
    this._value.set(line.text, line.reason);
  }

  private readonly _name = element('dt', '');
  private readonly _value: Value;
}

export class NotebookSection {
  readonly node = element('section', 'gpumem-card gpumem-notebook');

  constructor(private readonly _context: ViewContext) {
    const { trans } = _context;
    this._swatch.setAttribute('aria-hidden', 'true');
    this._banner = new Banner(_context);
    this.node.setAttribute('aria-label', trans.__('This notebook'));
    const caption = element('span', 'gpumem-overline', trans.__('This notebook'));
    const title = element('div', 'gpumem-notebook-title', this._swatch, this._name, this._state);
    const lines = element('dl', 'gpumem-lines');
    this._lines = new KeyedList(
      lines,
      line => line.key,
      () => new LineView(_context)
    );
    const torch = element('div', '');
    this._torch = new KeyedList(
      torch,
      device => device.key,
      () => new TorchBlock(_context)
    );
    this._cells = new CellsView(_context, cellId => this._active?.jump(cellId));
    this.node.append(caption, title, lines, torch, this._cells.node, this._banner.node);
  }

  update(active: ActiveNotebook | null): void {
    const { model, trans } = this._context;
    this._active = active;
    setHidden(this.node, active === null || model.state === null);
    if (!active || !model.state) {
      return;
    }
    const kernel = model.kernel(active.kernelId);
    setText(this._name, active.name);
    setText(this._state, kernel ? kernelState(this._context, kernel) : trans.__('no kernel'));
    setHidden(this._swatch, kernel === null);
    const numbers = kernel && active.numbers;
    this._torch.sync(numbers?.devices ?? []);
    this._cells.update(numbers);
    if (!kernel) {
      this._lines.sync([]);
      this._banner.update(null);
      return;
    }
    paint(this._context, this._swatch, { kind: 'kernel', kernelId: kernel.id });
    this._lines.sync([...this._deviceLines(kernel), this._hostLine(kernel)]);
    this._banner.update(kernelMessage(trans, kernel, model.state));
  }

  private _deviceLines(kernel: KernelState): Line[] {
    const { model, trans } = this._context;
    const devices = model.state?.devices ?? [];
    const held = devices
      .map(device => ({ device, bytes: heldBy(kernel.id, device, model.reports) }))
      .filter((entry): entry is { device: DeviceState; bytes: number } => entry.bytes !== null);
    if (held.length === 0 && devices.length > 0) {
      return [{ key: 'none', name: trans.__('Device memory'), text: trans.__('none'), reason: undefined }];
    }
    return held.map(({ device, bytes }) => ({
      key: `device ${device.index}`,
      name: trans.__('On GPU %1', String(device.index)),
      text: bytesText(this._context, bytes),
      reason: undefined
    }));
  }

  private _hostLine(kernel: KernelState): Line {
    return {
      key: 'host',
      name: this._context.trans.__('On the host'),
      text: kernel.hostMemory === null ? null : bytesText(this._context, kernel.hostMemory),
      reason: kernel.missing.hostMemory
    };
  }

  private readonly _lines: KeyedList<Line>;
  private readonly _torch: KeyedList<TorchNumbers>;
  private readonly _cells: CellsView;
  private _active: ActiveNotebook | null = null;
  private readonly _banner: Banner;
  private readonly _swatch = element('span', 'gpumem-swatch');
  private readonly _name = element('span', 'gpumem-notebook-name');
  private readonly _state = element('span', 'gpumem-state');
}
