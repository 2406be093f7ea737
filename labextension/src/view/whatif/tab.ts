/** The "What if" tab: other allocator settings side by side, from the file or from the kernel. */

import { type Answer, type AskChannel, GONE, nextId, SILENT } from '../ask';
import type { Device } from '../document';
import { formatBytes, formatCount } from '../format';
import type { Session } from '../session';
import { bdi, button, h, replace } from '../ui/dom';
import { withCode } from '../ui/header';
import { copyText } from '../ui/save';
import type { ExtraTab } from '../ui/tables';
import type { WhatIf, WhatIfMessage, WhatIfRow } from './document';

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
      replace(this.#result, h('p', {}, ABSENT));
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
      bdi(problem.text),
      fix === null || fix === ''
        ? null
        : button(`Try ${fix}`, () => {
            this.#conf.value = fix;
            this.#submit();
          })
    );
  }
}

function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A setting breaks between its options, not inside a name. */
function confName(conf: string): Node[] {
  const parts = (conf || '(defaults)').split(',');
  return parts.flatMap((part, k) =>
    k + 1 < parts.length ? [document.createTextNode(`${part},`), h('wbr')] : [document.createTextNode(part)]
  );
}

function verdict(answer: WhatIf): HTMLElement {
  const tone = answer.best !== null ? 'good' : answer.recordedDies ? 'bad' : null;
  return h('p', { class: `verdict ${tone ?? ''}`, dir: 'auto' }, ...withCode(`${sentence(answer.conclusion)}.`));
}

function table(rows: readonly WhatIfRow[], answer: WhatIf | null, device: Device): HTMLElement {
  const recorded = answer?.reservedPeak ?? device.headline.reservedPeak ?? 0;
  // A limit far away would press all bars into a corner.
  const most = Math.max(recorded, ...rows.map(row => row.high));
  const cap = answer?.cap != null && answer.cap.bytes <= most * 1.5 ? answer.cap.bytes : null;
  const scale = Math.max(most, cap ?? 0) * 1.02 || 1;
  const limited = answer?.cap != null;
  const spread = rows.some(row => row.spread !== '');
  const head = (text: string, className: string | null = 'n'): HTMLElement =>
    h('th', { class: className, scope: 'col' }, text);
  return h(
    'table',
    { class: limited ? 'limited' : null },
    h('caption', { class: 'sr' }, 'Peak of reserved memory under other allocator settings'),
    h(
      'thead',
      {},
      h(
        'tr',
        {},
        head('setting', null),
        head('would reserve'),
        head('against recorded'),
        spread ? head('range') : null,
        h('th', { class: 'track', 'aria-hidden': 'true' }),
        limited ? head(`under ${formatBytes(answer?.cap?.bytes ?? 0)}`, null) : head('', null)
      )
    ),
    h('tbody', {}, ...rows.map(row => line(row, { answer, recorded, scale, cap, limited, spread })))
  );
}

interface Look {
  answer: WhatIf | null;
  recorded: number;
  scale: number;
  cap: number | null;
  limited: boolean;
  spread: boolean;
}

function line(row: WhatIfRow, look: Look): HTMLElement {
  const { answer } = look;
  const best = answer !== null && answer.best === row.conf && !row.recorded;
  const dies = row.verdict !== 'fits';
  const mark = row.recorded ? 'in force' : best ? 'best' : '';
  const name = h(
    'td',
    { class: 'conf', title: row.meaning || 'torch’s own settings' },
    row.recorded || best ? h('b', {}, ...confName(row.conf)) : h('span', {}, ...confName(row.conf)),
    mark === '' ? null : h('small', {}, mark)
  );
  if (row.inert !== null) {
    return h('tr', { class: 'inert' }, name, h('td', { colspan: 5 }, row.inert));
  }
  const number = h(
    'td',
    { class: 'n strong', title: `${formatCount(row.expected)} bytes` },
    formatBytes(row.expected),
    dies ? h('small', { class: 'muted' }, ' until then') : null
  );
  const says = look.limited || dies || row.retries > 0;
  return h(
    'tr',
    { class: best ? 'best' : null },
    name,
    number,
    changeCell(row, look.recorded),
    look.spread ? h('td', { class: 'n' }, dies ? '' : row.spread) : null,
    h('td', { class: 'track', 'aria-hidden': 'true' }, bars(row, look, best)),
    h('td', { class: `outcome${dies ? ' bad' : ''}` }, says ? bdi(row.outcome) : '')
  );
}

/** Differences under half a percent are no colour's worth; what died on the way is no comparison. */
function changeCell(row: WhatIfRow, recorded: number): HTMLElement {
  if (row.verdict !== 'fits' || row.recorded) return h('td', { class: 'n' });
  const tone = Math.abs(row.change) <= recorded * 0.005 ? '' : row.change < 0 ? ' less' : ' more';
  return h('td', { class: `n${tone}` }, row.change === 0 ? 'the same' : formatBytes(row.change, true));
}

function bars(row: WhatIfRow, look: Look, best: boolean): HTMLElement {
  const share = (bytes: number): string => `${Math.min(100, (100 * bytes) / look.scale).toFixed(2)}%`;
  const bar = h('i', { class: row.verdict !== 'fits' ? 'bad' : best ? 'best' : row.recorded ? 'now' : null });
  bar.style.width = share(row.expected);
  const marks: HTMLElement[] = [];
  if (row.spread !== '' && row.verdict === 'fits') {
    const range = h('u');
    range.style.insetInlineStart = share(row.low);
    range.style.width = share(row.high - row.low);
    marks.push(range);
  }
  if (look.answer !== null) {
    const live = h('s');
    live.style.insetInlineStart = share(look.answer.livePeak);
    marks.push(live);
  }
  if (look.cap !== null) {
    const cap = h('s', { class: 'cap' });
    cap.style.insetInlineStart = share(look.cap);
    marks.push(cap);
  }
  return h('div', { class: 'bars' }, bar, ...marks);
}

function key(answer: WhatIf): HTMLElement {
  const { livePeak, packedPeak, cap } = answer;
  return h(
    'div',
    { class: 'key' },
    h(
      'span',
      { title: 'The most bytes in use at once. No setting can reserve less.' },
      h('s'),
      `${formatBytes(livePeak)} in use at once: no setting goes below`
    ),
    h(
      'span',
      { title: 'An arrangement of all blocks, with the future known, that exists: what fragmentation costs at most' },
      `packed as tightly as was found: ${formatBytes(packedPeak)}`
    ),
    cap === null ? null : h('span', {}, h('s', { class: 'cap' }), `limit ${formatBytes(cap.bytes)}: ${cap.why}`)
  );
}

function paste(answer: WhatIf): HTMLElement | null {
  if (answer.paste.length === 0) return null;
  return h(
    'div',
    { class: 'paste' },
    ...answer.paste.map(({ where, text }) => {
      const code = h('code', { tabindex: 0 }, text);
      const element = h(
        'div',
        {},
        h('span', {}, where),
        code,
        button('Copy', () => void copyText(text, element))
      );
      return element;
    })
  );
}

function sure(answer: WhatIf): HTMLElement {
  const rest = answer.warnings.filter(warning => !answer.confidence.includes(warning));
  return h(
    'div',
    {},
    h('p', { class: `sure${answer.exact ? '' : ' less'}` }, bdi(`${sentence(answer.confidence)}.`)),
    rest.length === 0
      ? null
      : h(
          'details',
          {},
          h('summary', {}, 'What lowers the certainty'),
          ...rest.map(warning => h('div', {}, bdi(warning)))
        )
  );
}
