/** The panel's content: follows the model while it is visible, and does nothing while it is not. */

import type { IDisposable } from '@lumino/disposable';
import { formatAge } from '../format';
import { driverMessage, serverMessage } from '../messages';
import { type Change, deviceKey } from '../model';
import type { DeviceState } from '../protocol';
import { Banner } from './banner';
import type { ViewContext } from './context';
import { DeviceCard } from './deviceCard';
import { button, element, KeyedList, setAttribute, setHidden, setText } from './dom';
import { HostCard } from './hostCard';
import { type ActiveNotebook, NotebookSection } from './notebookSection';

/** Up to this many devices are unfolded from the start. */
const UNFOLDED = 2;

export class PanelView implements IDisposable {
  /** @param more Opens the panel's own menu at a button. */
  constructor(
    readonly node: HTMLElement,
    private readonly _context: ViewContext,
    more: (anchor: HTMLElement) => void
  ) {
    const { model, trans } = _context;
    node.classList.add('gpumem-panel');
    this._server = new Banner(_context);
    this._driver = new Banner(_context);
    this._notebook = new NotebookSection(_context);
    this._host = new HostCard(_context);
    const cards = element('div', 'gpumem-cards');
    cards.addEventListener('click', () => this._labelFold());
    this._devices = new KeyedList<DeviceState>(
      cards,
      deviceKey,
      device => new DeviceCard(_context, deviceKey(device), model.devices.length <= UNFOLDED)
    );
    this._fold = button('gpumem-tool', '', null, () => this._foldAll());
    this._more = button('gpumem-tool gpumem-tool-more', '⋯', trans.__('Panel menu'), () => more(this._more));
    this._more.setAttribute('aria-haspopup', 'menu');
    const heading = element('h2', 'gpumem-heading', trans.__('GPU memory'));
    const header = element('div', 'gpumem-header', heading, this._status, this._fold, this._more);
    this._status.setAttribute('role', 'status');
    node.append(header, this._server.node, this._driver.node, this._notebook.node, cards, this._host.card.node);
    model.changed.connect(this._onChange, this);
    this._all();
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    this._disposed = true;
    this._context.model.changed.disconnect(this._onChange, this);
  }

  /** Whether it is on screen; what happened meanwhile is made up for. */
  set visible(value: boolean) {
    this._visible = value;
    if (value) {
      this._all();
    }
  }

  set active(value: ActiveNotebook | null) {
    this._active = value;
    if (this._visible) {
      this._notebook.update(value);
    }
  }

  /** Draw what is folded, too: for an export, which shows everything. */
  drawAll(): void {
    for (const card of this._cards()) {
      card.redraw(true);
    }
    this._host.redraw(true);
  }

  private _onChange(_: unknown, change: Change): void {
    if (!this._visible) {
      return;
    }
    if (change === 'tick') {
      for (const card of this._cards()) {
        card.tick();
      }
      this._host.tick();
    } else if (change === 'history') {
      for (const card of this._cards()) {
        card.redraw();
      }
      this._host.redraw();
    } else if (change === 'connection') {
      this._messages();
    } else {
      this._all();
    }
  }

  private _all(): void {
    const { model } = this._context;
    const { state } = model;
    this._messages();
    this._notebook.update(this._active);
    this._devices.sync(model.devices);
    setHidden(this._host.card.node, state === null);
    if (state) {
      this._host.update(state);
    }
    setHidden(this._fold, model.devices.length < 2);
    this._labelFold();
  }

  private _labelFold(): void {
    const { trans } = this._context;
    const unfold = [...this._cards()].every(view => !view.card.expanded);
    setText(this._fold, unfold ? trans.__('Unfold') : trans.__('Fold'));
    setAttribute(this._fold, 'aria-label', unfold ? trans.__('Unfold all devices') : trans.__('Fold all devices'));
  }

  private _messages(): void {
    const { model, trans } = this._context;
    const { connection, state } = model;
    this._server.update(serverMessage(trans, connection, state));
    this._driver.update(driverMessage(trans, state, model.labels));
    const live = connection.kind === 'live';
    this.node.classList.toggle('gpumem-stale', !live && state !== null);
    setAttribute(this._status, 'data-kind', connection.kind);
    setText(this._status, this._statusText());
    const driver = state?.driver ? trans.__('driver %1', state.driver) : null;
    const pace = state && live ? trans.__('every %1', formatAge(Math.max(1, state.intervalMs / 1000))) : null;
    const words = [state?.host.name, driver, pace].filter(word => word !== null && word !== undefined && word !== '');
    setAttribute(this._status, 'data-tip', words.join(' · ') || null);
  }

  private _statusText(): string {
    const { connection } = this._context.model;
    const { trans } = this._context;
    switch (connection.kind) {
      case 'live':
        return trans.__('live');
      case 'idle':
      case 'connecting':
        return trans.__('connecting');
      case 'unreachable':
        return trans.__('no answer');
      default:
        return trans.__('not available');
    }
  }

  /** Fold everything when anything is unfolded, else unfold everything. */
  private _foldAll(): void {
    const cards = [...this._cards()].map(view => view.card);
    const unfold = cards.every(card => !card.expanded);
    for (const card of cards) {
      card.chosen = unfold;
    }
    this._labelFold();
  }

  private *_cards(): IterableIterator<DeviceCard> {
    for (const view of this._devices.views) {
      if (view instanceof DeviceCard) {
        yield view;
      }
    }
  }

  private readonly _server: Banner;
  private readonly _driver: Banner;
  private readonly _notebook: NotebookSection;
  private readonly _host: HostCard;
  private readonly _devices: KeyedList<DeviceState>;
  private readonly _status = element('span', 'gpumem-status');
  private readonly _fold: HTMLButtonElement;
  private readonly _more: HTMLButtonElement;
  private _active: ActiveNotebook | null = null;
  private _visible = false;
  private _disposed = false;
}
