import { ServerConnection } from '@jupyterlab/services';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { Feed } from './feed';
import { MonitorModel } from './model';

/** The browser's socket: the one thing that cannot be real here. */
class Socket {
  static all: Socket[] = [];
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;
  sent: Record<string, unknown>[] = [];
  closed = false;

  constructor(readonly url: string) {
    Socket.all.push(this);
  }

  send(text: string): void {
    this.sent.push(JSON.parse(text) as Record<string, unknown>);
  }

  close(): void {
    this.closed = true;
  }
}

const STATE = { protocol: 1, package: '0.1.0', timeUs: 5, intervalMs: 1000, host: {}, devices: [], kernels: [] };

describe('the feed', () => {
  let model: MonitorModel;
  let feed: Feed;
  let requests: string[];
  let status: number;
  let hidden: boolean;

  beforeEach(() => {
    vi.useFakeTimers();
    vi.spyOn(document, 'hidden', 'get').mockImplementation(() => hidden);
    Socket.all = [];
    requests = [];
    status = 200;
    hidden = false;
    model = new MonitorModel();
    const server = ServerConnection.makeSettings({
      baseUrl: 'http://localhost/base/',
      wsUrl: 'ws://localhost/base/',
      appendToken: true,
      token: 'a b',
      WebSocket: Socket as unknown as typeof WebSocket,
      fetch: async (input: RequestInfo) => {
        const { url } = input as Request;
        requests.push(url);
        return new Response(JSON.stringify(url.includes('state') ? STATE : { timeUs: [], devices: [] }), { status });
      }
    });
    feed = new Feed(model, server);
  });

  afterEach(() => {
    feed.dispose();
    vi.useRealTimers();
  });

  function socket(): Socket {
    const last = Socket.all[Socket.all.length - 1];
    if (!last) {
      throw new Error('no socket was opened');
    }
    return last;
  }

  function hide(value: boolean): void {
    hidden = value;
    document.dispatchEvent(new Event('visibilitychange'));
  }

  it('connects when somebody looks for the first time, below the base URL and with the token', async () => {
    await vi.advanceTimersByTimeAsync(60_000);
    expect([Socket.all.length, requests.length]).toEqual([0, 0]);
    feed.look('panel', true);
    expect(socket().url).toBe('ws://localhost/base/gpumem-magic/feed?token=a%20b');
    socket().onopen?.();
    expect(socket().sent).toEqual([
      { type: 'configure', intervalMs: 1000, recordInBackground: false },
      { type: 'visible', visible: true }
    ]);
    await vi.advanceTimersByTimeAsync(0);
    expect(requests).toHaveLength(1);
    // JupyterLab adds the time, against caches.
    expect(requests[0]).toMatch(/^http:\/\/localhost\/base\/gpumem-magic\/history\?seconds=600(&\d+)?$/);
  });

  it('tells the server once when nobody looks any more, be it panel or page', () => {
    feed.look('panel', true);
    feed.look('status', true);
    socket().onopen?.();
    socket().sent = [];
    feed.look('panel', false);
    expect(socket().sent).toEqual([]);
    hide(true);
    hide(true);
    hide(false);
    feed.look('status', false);
    expect(socket().sent.map(message => message.visible)).toEqual([false, true, false]);
  });

  it('hands states on, and calls them live', () => {
    feed.look('panel', true);
    socket().onopen?.();
    socket().onmessage?.({ data: JSON.stringify({ type: 'state', state: STATE }) });
    expect(model.state?.timeUs).toBe(5);
    expect(model.connection).toEqual({ kind: 'live', transport: 'socket' });
  });

  it('asks by request where sockets do not get through, and stops that when one does', async () => {
    feed.look('panel', true);
    socket().onclose?.();
    await vi.advanceTimersByTimeAsync(1);
    expect(model.connection).toEqual({ kind: 'live', transport: 'rest' });
    const first = requests.length;
    await vi.advanceTimersByTimeAsync(1300);
    expect(Socket.all.length).toBe(2);
    expect(requests.filter(url => url.includes('state')).length).toBeGreaterThan(1);
    expect(requests.length).toBeGreaterThan(first);
    socket().onopen?.();
    await vi.advanceTimersByTimeAsync(10);
    const settled = requests.length;
    await vi.advanceTimersByTimeAsync(8000);
    expect(requests.length).toBe(settled);
  });

  it('waits longer between attempts, and not at all while nobody looks', async () => {
    vi.spyOn(Math, 'random').mockReturnValue(0);
    feed.look('panel', true);
    const times: number[] = [];
    for (let attempt = 0; attempt < 7; attempt += 1) {
      const before = Socket.all.length;
      socket().onclose?.();
      let waited = 0;
      while (Socket.all.length === before) {
        await vi.advanceTimersByTimeAsync(500);
        waited += 500;
      }
      times.push(waited / 1000);
    }
    expect(times).toEqual([1, 2, 4, 8, 16, 30, 30]);
    feed.look('panel', false);
    socket().onclose?.();
    const before = [Socket.all.length, requests.length];
    await vi.advanceTimersByTimeAsync(120_000);
    expect([Socket.all.length, requests.length]).toEqual(before);
    feed.look('panel', true);
    expect(Socket.all.length).toBe((before[0] ?? 0) + 1);
  });

  it('gives up a socket that has gone silent, but only while somebody looks', async () => {
    feed.look('panel', true);
    const silent = socket();
    silent.onopen?.();
    silent.onmessage?.({ data: JSON.stringify({ type: 'state', state: STATE }) });
    feed.look('panel', false);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(silent.closed).toBe(false);
    feed.look('panel', true);
    await vi.advanceTimersByTimeAsync(9000);
    silent.onmessage?.({ data: JSON.stringify({ type: 'state', state: STATE }) });
    await vi.advanceTimersByTimeAsync(9000);
    expect(silent.closed).toBe(false);
    await vi.advanceTimersByTimeAsync(2000);
    expect(silent.closed).toBe(true);
    expect(model.connection).toEqual({ kind: 'live', transport: 'rest' });
  });

  it.each([
    [404, { kind: 'absent' }],
    [403, { kind: 'forbidden' }],
    [500, { kind: 'unreachable' }]
  ])('explains a server that answers %i', async (code, connection) => {
    status = code;
    feed.look('panel', true);
    socket().onclose?.();
    await vi.advanceTimersByTimeAsync(1);
    expect(model.connection).toEqual(connection);
  });

  it('leaves a server alone that has no such handlers, until a minute is over or somebody looks anew', async () => {
    status = 404;
    feed.look('panel', true);
    socket().onclose?.();
    await vi.advanceTimersByTimeAsync(59_000);
    expect([Socket.all.length, requests.length]).toEqual([1, 1]);
    await vi.advanceTimersByTimeAsync(2000);
    expect(Socket.all.length).toBe(2);
    socket().onclose?.();
    await vi.advanceTimersByTimeAsync(10);
    feed.look('panel', false);
    feed.look('panel', true);
    expect(Socket.all.length).toBe(3);
  });

  it('says so when the server speaks another protocol', () => {
    feed.look('panel', true);
    socket().onopen?.();
    socket().onmessage?.({ data: JSON.stringify({ type: 'state', state: { protocol: 2, package: '2.0.0' } }) });
    expect(model.connection).toEqual({ kind: 'protocol', package: '2.0.0' });
  });

  it('sends new settings at once', () => {
    feed.look('panel', true);
    socket().onopen?.();
    socket().sent = [];
    model.settings = { ...model.settings, intervalMs: 5000 };
    feed.configure();
    expect(socket().sent[0]).toMatchObject({ type: 'configure', intervalMs: 5000 });
  });

  it('leaves nothing running', async () => {
    feed.look('panel', true);
    socket().onopen?.();
    const last = socket();
    feed.dispose();
    expect(last.closed).toBe(true);
    const before = requests.length;
    await vi.advanceTimersByTimeAsync(60_000);
    expect([Socket.all.length, requests.length]).toEqual([1, before]);
  });
});
