/** The fullest device at a glance, in JupyterLab's status bar; a click opens the panel. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { type ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { formatPair, formatPercent } from '../format';
import type { MonitorModel } from '../model';
import type { DeviceState } from '../protocol';
import { fullness } from '../segments';
import { element, setAttribute, setText } from './dom';

/** The device with the largest share in use; null when none tells. */
export function fullest(devices: readonly DeviceState[]): DeviceState | null {
  let found: DeviceState | null = null;
  for (const device of devices) {
    if ((fullness(device) ?? -1) > ((found && fullness(found)) ?? -1)) {
      found = device;
    }
  }
  return found;
}

export class StatusItem extends Widget {
  constructor(
    private readonly _model: MonitorModel,
    private readonly _trans: TranslationBundle,
    open: () => void
  ) {
    super();
    this.addClass('gpumem-status-item');
    const bar = element('span', 'gpumem-status-bar', this._fill);
    bar.setAttribute('aria-hidden', 'true');
    this._button.type = 'button';
    this._button.append(this._text, bar);
    this._button.addEventListener('click', open);
    this.node.append(this._button);
    _model.changed.connect(this._update, this);
    this._update();
  }

  /** There is something to show, and the user wants it. */
  get active(): boolean {
    return this._active;
  }

  get activeChanged(): ISignal<this, void> {
    return this._activeChanged;
  }

  override dispose(): void {
    if (!this.isDisposed) {
      Signal.clearData(this);
      super.dispose();
    }
  }

  private _update(): void {
    const device = fullest(this._model.devices);
    const full = device && fullness(device);
    const active = this._model.settings.showStatusItem && full !== null && this._model.connection.kind === 'live';
    if (active !== this._active) {
      this._active = active;
      this._activeChanged.emit();
    }
    if (!active || !device || full === null) {
      return;
    }
    const used = (device.memoryUsed ?? 0) + (device.memoryReserved ?? 0);
    const [part, whole] = formatPair(used, device.memoryTotal ?? 0, this._model.settings.units);
    setText(this._text, this._trans.__('GPU %1: %2 of %3', String(device.index), part, whole));
    const width = `${(full * 100).toFixed(1)}%`;
    if (this._fill.style.width !== width) {
      this._fill.style.width = width;
    }
    this._fill.classList.toggle('gpumem-full', this._model.settings.warnAt > 0 && full >= this._model.settings.warnAt);
    const words =
      this._model.devices.length > 1
        ? this._trans.__(
            'The fullest of %1 devices: %2. Show all',
            String(this._model.devices.length),
            formatPercent(full)
          )
        : this._trans.__('GPU memory in use: %1. Show more', formatPercent(full));
    setAttribute(this._button, 'title', words);
    setAttribute(this._button, 'aria-label', `${this._text.textContent}. ${words}`);
  }

  private readonly _button = element('button', 'gpumem-status-button');
  private readonly _text = element('span', 'gpumem-status-text');
  private readonly _fill = element('span', 'gpumem-status-fill');
  private readonly _activeChanged = new Signal<this, void>(this);
  private _active = false;
}
