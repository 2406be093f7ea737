/** The "What if" tab: other allocator settings side by side, from the file or from the kernel. */

import { type Answer, type AskChannel, GONE, nextId, SILENT } from '../ask';
import type { Device } from '../document';
import type { Session } from '../session';
import { button, h, replace } from '../ui/dom';
import { withCode } from '../ui/header';
import type { ExtraTab } from '../ui/tables';
import type { WhatIf, WhatIfMessage, WhatIfRow } from './document';
import { key, paste, sure, table, verdict } from './render';

const GIB = 2 ** 30;
const SILENT_MS = 8000;
const ABSENT =
  'Not in this file. Write it with the answer inside: `gpumem-magic report FILE --whatif`, or `%%gpumem --export X.html --whatif` in a notebook.';

/** What is known of one device: survives a change of tab and of device. */
interface Known {
  answer: WhatIf | null;
  /** Rows that came before the answer was complete. */
  rows: WhatIfRow[];
  asked: boolean;
  extra: string[];
  /** Typed limit in bytes; null: the recorded process's own. */
  cap: number | null;
  running: { done: number; total: number } | null;
  problem: { text: string; fix: string | null } | null;
}

export class WhatIfTab implements ExtraTab {
  readonly name = 'whatif';
  readonly label = 'What if';
  readonly title = 'What other allocator settings would have reserved';
  readonly element = h('div', { class: 'whatif' });
  readonly followsHere = false;
  readonly #session: Session;
  readonly #channel: AskChannel | null;
  readonly #known = new Map<number, Known>();
  readonly #result = h('div');
  readonly #status = h('div', { role: 'status' });
  readonly #conf = h('input', {
    type: 'text',
    spellcheck: 'false',
    autocomplete: 'off',
    placeholder: 'max_split_size_mb:256,garbage_collection_threshold:0.8'
  });
  readonly #cap = h('input', { type: 'text', inputmode: 'decimal', autocomplete: 'off' });
  readonly #form: HTMLFormElement;
  readonly #end: (() => void) | null;
  #id = -1;
  /** The device that the question under way is about. */
  #askedOf = -1;
  #timer = 0;
  #drawn = '';

  constructor(session: Session, channel: AskChannel | null) {
    this.#session = session;
    this.#channel = channel;
    this.#form = h(
      'form',
      {},
      h('label', {}, 'your own setting (PYTORCH_CUDA_ALLOC_CONF)', this.#conf),
      h(
        'label',
        { class: 'cap', title: 'The most that may be reserved; empty: the limit that the process had' },
        'limit in GiB',
        this.#cap
      ),
      h('button', { type: 'submit' }, 'Try it')
    );
    this.#form.addEventListener('submit', event => {
      event.preventDefault();
      this.#submit();
    });
    this.#end = channel?.onReply(answer => this.#take(answer)) ?? null;
  }

  dispose(): void {
    clearTimeout(this.#timer);
    this.#end?.();
  }

  available(): boolean {
    const { device } = this.#session.source.recording;
    return device.whatIf != null || (device.notReplayed === null && device.mapped === true);
  }

  show(): void {
    const known = this.#here();
    if (known.answer === null && !known.asked && this.#channel !== null && known.problem === null) this.#ask(known);
    this.#draw();
  }

  text(): string {
    const { answer, rows } = this.#here();
    const shown = answer?.rows ?? rows;
    const lines = shown.map(row =>
      row.inert === null
        ? [row.conf || '(defaults)', row.expected, row.low, row.high, row.change, row.outcome]
        : [row.conf || '(defaults)', '', '', '', '', row.inert]
    );
    return [
      ...(answer === null ? [] : [answer.conclusion]),
      ['setting', 'reserved bytes', 'low', 'high', 'against recorded', 'outcome'].join('\t'),
      ...lines.map(line => line.join('\t'))
    ].join('\n');
  }

  get #device(): Device {
    return this.#session.source.recording.device;
  }

  #here(index = this.#session.deviceIndex): Known {
    let known = this.#known.get(index);
    if (known === undefined) {
      const answer = this.#session.document.header.devices[index]?.whatIf ?? null;
      known = { answer, rows: [], asked: false, extra: [], cap: null, running: null, problem: null };
      this.#known.set(index, known);
    }
    return known;
  }

  #ask(known: Known): void {
    clearTimeout(this.#timer);
    this.#id = nextId();
    this.#askedOf = this.#session.deviceIndex;
    known.asked = true;
    known.rows = [];
    known.problem = null;
    known.running = { done: 0, total: 0 };
    const sent = this.#channel?.send({
      kind: 'whatif',
      id: this.#id,
      device: this.#session.deviceIndex,
      confs: known.extra,
      capBytes: known.cap
    });
    if (sent !== true) this.#fail(known, GONE);
    else this.#timer = window.setTimeout(() => this.#note(SILENT), SILENT_MS);
  }

  #stop(): void {
    this.#channel?.send({ kind: 'whatif', id: this.#id, device: this.#askedOf, stop: true });
  }

  #submit(): void {
    const known = this.#here();
    const conf = this.#conf.value.trim();
    const cap = this.#cap.value.trim().replace(',', '.');
    if (cap !== '' && !(Number(cap) > 0)) {
      known.problem = { text: `"${cap}" is no number of GiB`, fix: null };
      this.#draw();
      return;
    }
    if (conf !== '' && !known.extra.includes(conf)) known.extra.push(conf);
    known.cap = cap === '' ? null : Math.round(Number(cap) * GIB);
    this.#ask(known);
    this.#draw();
  }

  #take(reply: Answer): void {
    if (reply.kind !== 'whatif' || reply.id !== this.#id) return;
    clearTimeout(this.#timer);
    const known = this.#here(this.#askedOf);
    if (reply.error !== null) {
      this.#fail(known, reply.error);
      this.#draw();
      return;
    }
    const message = reply as unknown as WhatIfMessage;
    // Whatever was said meanwhile of a kernel that is silent.
    known.problem = null;
    switch (message.state) {
      case 'running':
        known.running = { done: message.done ?? 0, total: message.total ?? 0 };
        if (message.row !== undefined) known.rows.push(message.row);
        break;
      case 'done':
        known.running = null;
        known.answer = message.answer ?? null;
        break;
      case 'stopped':
        known.running = null;
        break;
      case 'problem':
        // A setting that cannot be tried is not asked again with the next one.
        known.extra = known.extra.filter(conf => conf !== message.conf);
        known.running = null;
        known.problem = { text: message.message ?? 'It failed.', fix: message.fix ?? null };
        break;
    }
    this.#draw();
  }

  #fail(known: Known, text: string): void {
    known.running = null;
    known.problem = { text, fix: null };
  }

  #note(text: string): void {
    const known = this.#here(this.#askedOf);
    if (known.running !== null) known.problem = { text, fix: null };
    this.#draw();
  }

  #draw(): void {
    const known = this.#here();
    // Typing and focus survive: the form stays, and what did not change is not drawn again.
    const state = JSON.stringify([this.#session.deviceIndex, known]);
    if (state === this.#drawn) return;
    this.#drawn = state;
    if (this.element.firstChild === null) {
      this.element.append(this.#result, this.#status);
      if (this.#channel !== null) this.element.append(this.#form);
    }
    replace(this.#status, this.#working(known), this.#wrong(known));
    const { answer, rows } = known;
    if (answer === null && this.#channel === null) {
      replace(this.#result, h('p', {}, ...withCode(ABSENT)));
      return;
    }
    const shown = answer?.rows ?? rows;
    replace(
      this.#result,
      answer === null ? null : verdict(answer),
      shown.length === 0 ? null : table(shown, answer, this.#device),
      answer === null ? null : key(answer),
      answer === null ? null : paste(answer),
      answer === null ? null : sure(answer)
    );
    const typical = answer?.cap;
    this.#cap.placeholder = typical == null ? 'none' : (typical.bytes / GIB).toPrecision(4);
  }

  #working(known: Known): HTMLElement | null {
    const { running } = known;
    if (running === null) {
      const more = known.answer === null && known.asked && known.problem === null;
      return more
        ? h(
            'div',
            { class: 'working' },
            'Stopped.',
            button('Go on', () => {
              this.#ask(known);
              this.#draw();
            })
          )
        : null;
    }
    return h(
      'div',
      { class: 'working' },
      h('progress', { max: Math.max(running.total, 1), value: running.done, 'aria-label': 'Settings replayed' }),
      running.total === 0
        ? 'asking the kernel …'
        : `replaying, ${running.done} of ${running.total} done; the kernel stays free`,
      button('Stop', () => this.#stop())
    );
  }

  #wrong(known: Known): HTMLElement | null {
    const { problem } = known;
    if (problem === null) return null;
    const { fix } = problem;
    return h(
      'div',
      { class: 'wrong', role: 'alert' },
      h('bdi', { dir: 'auto' }, ...withCode(problem.text)),
      fix === null || fix === ''
        ? null
        : button(`Try ${fix}`, () => {
            this.#conf.value = fix;
            this.#submit();
          })
    );
  }
}
