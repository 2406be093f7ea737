/**
 * Keeps the model up to date: one WebSocket, and requests at the same pace where WebSockets do not get through.
 *
 * Nothing is connected before somebody looks for the first time, and the server is told when nobody does any more.
 */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';
import type { MonitorModel } from './model';
import { ProtocolError, parseHistory, parseMessage, parseState } from './parse';
import type { ClientMessage } from './protocol';

const NAMESPACE = 'gpumem-magic';
const RETRY_FIRST_MS = 1000;
const RETRY_MOST_MS = 30_000;
/** After a laptop's sleep a socket may look open for minutes: this many intervals without a word, and it is given up. */
const SILENT_INTERVALS = 5;
const SILENT_LEAST_MS = 10_000;
/** A server that has no such handlers, or refuses this user, will not think better of it within seconds. */
const REST_MS = 60_000;
/** More than the server keeps of a day. */
const EVERY_POINT = 20_000;

class HttpError extends Error {
  constructor(readonly status: number) {
    super(`The server answered ${status}.`);
  }
}

export class Feed implements IDisposable {
  constructor(
    private readonly _model: MonitorModel,
    private readonly _server: ServerConnection.ISettings
  ) {
    this._poll = new Poll({
      auto: false,
      name: 'gpumem-magic:state',
      factory: () => this._request(),
      frequency: { interval: _model.settings.intervalMs, backoff: true, max: RETRY_MOST_MS },
      standby: () => !this._looking || this._open || this._resting
    });
    document.addEventListener('visibilitychange', this._onVisibility);
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    document.removeEventListener('visibilitychange', this._onVisibility);
    window.clearTimeout(this._retry);
    window.clearTimeout(this._watchdog);
    this._poll.dispose();
    this._close();
  }

  /** Say whether one of the views ("panel", "status") is on screen. */
  look(view: string, visible: boolean): void {
    if (visible) {
      this._views.add(view);
    } else {
      this._views.delete(view);
    }
    this._update();
  }

  /** Settings changed: tell the server, and poll at the new pace. */
  configure(): void {
    this._poll.frequency = { interval: this._model.settings.intervalMs, backoff: true, max: RETRY_MOST_MS };
    this._sendSettings();
    if (this._open) {
      void this._requestHistory();
    }
  }

  /** Have everything that the server kept of the time shown, not only what a graph needs: for exports. */
  async requestAll(): Promise<void> {
    await this._requestHistory(EVERY_POINT);
  }

  private _update(): void {
    const looking = this._views.size > 0 && !document.hidden;
    if (looking === this._looking || this.isDisposed) {
      return;
    }
    this._looking = looking;
    this._send({ type: 'visible', visible: looking });
    this._watch();
    if (!looking) {
      return;
    }
    if (this._open) {
      // Others may have kept the server polling: fill what was missed meanwhile.
      void this._requestHistory();
    } else if (this._retry === undefined || this._resting) {
      this._resting = false;
      window.clearTimeout(this._retry);
      this._retry = undefined;
      this._connect();
    } else {
      void this._poll.start();
    }
  }

  private _connect(): void {
    if (this.isDisposed || this._socket) {
      return;
    }
    if (this._model.connection.kind !== 'live') {
      this._model.connection = { kind: 'connecting' };
    }
    const { appendToken, token, WebSocket, wsUrl } = this._server;
    const query = appendToken && token !== '' ? `?token=${encodeURIComponent(token)}` : '';
    const socket = new WebSocket(URLExt.join(wsUrl, NAMESPACE, 'feed') + query);
    this._socket = socket;
    socket.onopen = () => {
      this._open = true;
      this._attempt = 0;
      this._sendSettings();
      this._send({ type: 'visible', visible: this._looking });
      this._watch();
      void this._requestHistory();
    };
    socket.onmessage = event => this._receive(event.data);
    socket.onclose = () => this._lost(socket);
  }

  /** Expect a message before long, if one is to come at all. */
  private _watch(): void {
    window.clearTimeout(this._watchdog);
    const socket = this._socket;
    if (socket && this._open && this._looking) {
      const interval = this._model.state?.intervalMs ?? this._model.settings.intervalMs;
      const patience = Math.max(SILENT_LEAST_MS, SILENT_INTERVALS * interval);
      this._watchdog = window.setTimeout(() => this._lost(socket), patience);
    }
  }

  private _receive(data: unknown): void {
    this._watch();
    try {
      const message = parseMessage(String(data));
      if (message) {
        this._model.apply(message);
        this._model.connection = { kind: 'live', transport: 'socket' };
      }
    } catch (error) {
      if (error instanceof ProtocolError) {
        this._model.connection = { kind: 'protocol', package: error.package_ };
      }
      // A message that is no JSON is dropped: the next state says everything again.
    }
  }

  private _lost(socket: WebSocket): void {
    if (socket !== this._socket) {
      return;
    }
    this._close();
    if (this.isDisposed) {
      return;
    }
    // The browser does not say why a socket failed; a request tells 404, 403 and "not there" apart, and then polls on.
    if (this._looking) {
      void this._poll.refresh();
    }
    const wait = Math.min(RETRY_MOST_MS, RETRY_FIRST_MS * 2 ** this._attempt);
    this._attempt += 1;
    // Up to a quarter more, so that all tabs do not come back at the same moment after a restart.
    this._retryIn(wait * (1 + Math.random() / 4));
  }

  private _retryIn(milliseconds: number): void {
    window.clearTimeout(this._retry);
    this._retry = window.setTimeout(() => {
      this._retry = undefined;
      this._resting = false;
      if (this._looking) {
        this._connect();
      }
    }, milliseconds);
  }

  private _close(): void {
    const socket = this._socket;
    this._socket = null;
    this._open = false;
    window.clearTimeout(this._watchdog);
    if (socket) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }

  private _sendSettings(): void {
    const { intervalMs, recordInBackground } = this._model.settings;
    this._send({ type: 'configure', intervalMs, recordInBackground });
  }

  private _send(message: ClientMessage): void {
    if (this._open) {
      this._socket?.send(JSON.stringify(message));
    }
  }

  private async _get(path: string): Promise<unknown> {
    const url = URLExt.join(this._server.baseUrl, NAMESPACE, path);
    const response = await ServerConnection.makeRequest(url, {}, this._server);
    if (!response.ok) {
      throw new HttpError(response.status);
    }
    return response.json();
  }

  /** One state by request. Throws where it failed, so that the poll backs off. */
  private async _request(): Promise<void> {
    try {
      const state = parseState(await this._get('state'));
      if (!this._open) {
        const first = this._model.state === null;
        this._model.apply({ type: 'state', state });
        this._model.connection = { kind: 'live', transport: 'rest' };
        if (first) {
          void this._requestHistory();
        }
      }
    } catch (error) {
      if (!this._open) {
        this._explain(error);
      }
      throw error;
    }
  }

  private _explain(error: unknown): void {
    this._resting = error instanceof HttpError && error.status >= 400 && error.status < 500;
    if (this._resting) {
      this._retryIn(REST_MS);
    }
    if (error instanceof ProtocolError) {
      this._model.connection = { kind: 'protocol', package: error.package_ };
    } else if (error instanceof HttpError && error.status === 404) {
      this._model.connection = { kind: 'absent' };
    } else if (error instanceof HttpError && (error.status === 401 || error.status === 403)) {
      this._model.connection = { kind: 'forbidden' };
    } else {
      this._model.connection = { kind: 'unreachable' };
    }
  }

  private async _requestHistory(points?: number): Promise<void> {
    try {
      const seconds = Math.round(this._model.settings.historySeconds);
      const query = `seconds=${seconds}${points === undefined ? '' : `&points=${points}`}`;
      this._model.applyHistory(parseHistory(await this._get(`history?${query}`)));
    } catch {
      // The present is worth more than the past: without history the graph starts now.
    }
  }

  private readonly _onVisibility = (): void => this._update();
  private readonly _poll: Poll<void>;
  private readonly _views = new Set<string>();
  private _looking = false;
  private _resting = false;
  private _socket: WebSocket | null = null;
  private _open = false;
  private _attempt = 0;
  private _retry: number | undefined;
  private _watchdog: number | undefined;
}
