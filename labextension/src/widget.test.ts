import { readFileSync } from 'node:fs';
import { beforeEach, expect, test, vi } from 'vitest';
import type { DetailReply, DetailRequest } from './view/document';
import widget from './widget';

type Callback = (...args: unknown[]) => void;

/** The part of anywidget's model that a front end gives us. */
class FakeModel {
  readonly sent: DetailRequest[] = [];
  readonly #values: Record<string, unknown>;
  readonly #callbacks = new Map<string, Set<Callback>>();

  constructor(values: Record<string, unknown>) {
    this.#values = values;
  }

  get = (name: string): never => this.#values[name] as never;
  set(name: string, value: unknown): void {
    this.#values[name] = value;
    this.fire(`change:${name}`);
  }
  send(content: DetailRequest): void {
    this.sent.push(content);
  }
  on(event: string, callback: Callback): void {
    this.#callbacks.set(event, (this.#callbacks.get(event) ?? new Set()).add(callback));
  }
  off(event: string, callback: Callback): void {
    this.#callbacks.get(event)?.delete(callback);
  }
  fire(event: string, ...args: unknown[]): void {
    for (const callback of this.#callbacks.get(event) ?? []) callback(...args);
  }
  get listening(): number {
    return [...this.#callbacks.values()].reduce((sum, set) => sum + set.size, 0);
  }
}

const data = (name: string): DataView => {
  const bytes = new Uint8Array(readFileSync(`../tests/data/view/${name}.bin`));
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
};

beforeEach(() => {
  vi.spyOn(HTMLCanvasElement.prototype, 'getContext').mockReturnValue(null);
});

function show(model: FakeModel): { el: HTMLElement; end: () => void; text: () => string } {
  const el = document.createElement('div');
  document.body.append(el);
  const end = widget.render({ model: model as never, el });
  return { el, end, text: () => el.firstElementChild?.shadowRoot?.textContent ?? '' };
}

test('it draws the model, follows it, and leaves nothing behind', async () => {
  const model = new FakeModel({ document: data('complete'), can_detail: true });
  const { el, end, text } = show(model);
  await vi.waitFor(() => expect(text()).toContain('Out of memory at line 5'));
  expect(el.querySelector<HTMLElement>('[data-lm-suppress-shortcuts]')).not.toBeNull();
  model.set('document', data('gap'));
  await vi.waitFor(() => expect(text()).toContain('Peak 4.00 MiB'));
  end();
  expect(el.children.length).toBe(0);
  expect(model.listening).toBe(0);
});

test('zooming into sums asks the kernel once the view rests, and takes its answer', async () => {
  const model = new FakeModel({ document: data('aggregated'), can_detail: true });
  const { el, end, text } = show(model);
  await vi.waitFor(() => expect(text()).toContain('are drawn as sums by line'));
  const shadow = el.firstElementChild?.shadowRoot as ShadowRoot;
  const overlay = shadow.querySelector<HTMLElement>('.overlay') as HTMLElement;
  overlay.focus();
  for (let k = 0; k < 9; k++) {
    overlay.dispatchEvent(
      new KeyboardEvent('keydown', { key: 'w', code: 'KeyW', bubbles: true, composed: true, cancelable: true })
    );
  }
  await vi.waitFor(() => expect(model.sent).toHaveLength(1));
  const [request] = model.sent as [DetailRequest];
  expect(request.kind).toBe('detail');
  expect(request.device).toBe(0);
  expect(request.endUs).toBeGreaterThan(request.startUs);
  const reply = (id: number, error: string | null): DetailReply => ({ kind: 'detail', id, error });
  model.fire('msg:custom', reply(request.id - 1, 'an old question'), []);
  expect(text()).not.toContain('an old question');
  model.fire('msg:custom', reply(request.id, 'this report no longer answers: run its cell again'), []);
  await vi.waitFor(() => expect(text()).toContain('no longer answers'));
  model.fire('msg:custom', reply(request.id, null), [data('detail')]);
  await vi.waitFor(() => expect(text()).not.toContain('no longer answers'));
  end();
});

test('a report that was retired is not asked', async () => {
  const model = new FakeModel({ document: data('aggregated'), can_detail: false });
  const { el, end, text } = show(model);
  await vi.waitFor(() => expect(text()).toContain('are drawn as sums by line'));
  const overlay = el.firstElementChild?.shadowRoot?.querySelector<HTMLElement>('.overlay') as HTMLElement;
  overlay.focus();
  for (let k = 0; k < 9; k++) {
    overlay.dispatchEvent(
      new KeyboardEvent('keydown', { key: 'w', code: 'KeyW', bubbles: true, composed: true, cancelable: true })
    );
  }
  await new Promise(done => setTimeout(done, 300));
  expect(model.sent).toEqual([]);
  end();
});
