/** An answer on the page: the conclusion, settings side by side, what to paste, how certain it is. */

import type { Device } from '../document';
import { formatBytes, formatCount } from '../format';
import { button, h } from '../ui/dom';
import { withCode } from '../ui/header';
import { copyText } from '../ui/save';
import type { WhatIf, WhatIfRow } from './document';

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

export function verdict(answer: WhatIf): HTMLElement {
  const tone = answer.best !== null ? 'good' : answer.recordedDies ? 'bad' : null;
  return h('p', { class: `verdict ${tone ?? ''}`, dir: 'auto' }, ...withCode(`${sentence(answer.conclusion)}.`));
}

export function table(rows: readonly WhatIfRow[], answer: WhatIf | null, device: Device): HTMLElement {
  const recorded = answer?.reservedPeak ?? device.headline.reservedPeak ?? 0;
  // A limit far away would press all bars into a corner.
  const most = Math.max(recorded, ...rows.map(row => row.high));
  const cap = answer?.cap != null && answer.cap.bytes <= most * 1.5 ? answer.cap.bytes : null;
  const scale = Math.max(most, cap ?? 0) * 1.02 || 1;
  const limited = answer?.cap != null;
  // What dies or changes nothing shows no range.
  const spread = rows.some(row => row.spread !== '' && row.inert === null && fits(row));
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

/** What a row is drawn against. */
interface Look {
  answer: WhatIf | null;
  recorded: number;
  scale: number;
  cap: number | null;
  limited: boolean;
  spread: boolean;
}

/** Expected to run to its end. */
const fits = (row: WhatIfRow): boolean => !row.verdict.startsWith('oom');

function line(row: WhatIfRow, look: Look): HTMLElement {
  const { answer } = look;
  const best = answer !== null && answer.best === row.conf && !row.recorded;
  const dies = !fits(row);
  const mark = row.recorded ? 'in force' : best ? 'best' : '';
  const name = h(
    'td',
    { class: 'conf', title: row.meaning || 'torch’s own settings' },
    row.recorded || best ? h('b', {}, ...confName(row.conf)) : h('span', {}, ...confName(row.conf)),
    mark === '' ? null : h('small', {}, mark)
  );
  if (row.inert !== null) {
    return h('tr', { class: 'inert' }, name, h('td', { colspan: 5 }, ...withCode(row.inert)));
  }
  const number = h(
    'td',
    { class: 'n strong', title: `${formatCount(row.expected)} bytes` },
    formatBytes(row.expected),
    dies ? h('small', { class: 'muted' }, ' until then') : null
  );
  const says = look.limited || row.verdict !== 'fits' || row.retries > 0;
  return h(
    'tr',
    { class: best ? 'best' : null },
    name,
    number,
    changeCell(row, look.recorded),
    look.spread ? h('td', { class: 'n' }, dies ? '' : row.spread) : null,
    h('td', { class: 'track', 'aria-hidden': 'true' }, bars(row, look, best)),
    h(
      'td',
      { class: `outcome${dies ? ' bad' : ''}` },
      ...(says ? [h('bdi', { dir: 'auto' }, ...withCode(row.outcome))] : [])
    )
  );
}

/** Differences under half a percent are no colour's worth; what died on the way is no comparison. */
function changeCell(row: WhatIfRow, recorded: number): HTMLElement {
  if (!fits(row) || row.recorded) return h('td', { class: 'n' });
  const tone = Math.abs(row.change) <= recorded * 0.005 ? '' : row.change < 0 ? ' less' : ' more';
  return h('td', { class: `n${tone}` }, row.change === 0 ? 'the same' : formatBytes(row.change, true));
}

function bars(row: WhatIfRow, look: Look, best: boolean): HTMLElement {
  const share = (bytes: number): string => `${Math.min(100, (100 * bytes) / look.scale).toFixed(2)}%`;
  const bar = h('i', { class: !fits(row) ? 'bad' : best ? 'best' : row.recorded ? 'now' : null });
  bar.style.width = share(row.expected);
  const marks: HTMLElement[] = [];
  if (row.spread !== '' && fits(row)) {
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

export function key(answer: WhatIf): HTMLElement {
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

export function paste(answer: WhatIf): HTMLElement | null {
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

/** A call that leaves no event; on an H200 it was the only cause of wrong predictions. */
const UNSEEN =
  'An empty_cache() that gave nothing back leaves no event in a recording. Under another setting it may give something back.';

export function sure(answer: WhatIf): HTMLElement {
  const rest = answer.warnings.filter(warning => !answer.confidence.includes(warning));
  const unknown = answer.callsKnown === true ? rest : [...rest, UNSEEN];
  return h(
    'div',
    {},
    h(
      'p',
      { class: `sure${answer.exact ? '' : ' less'}` },
      h('bdi', { dir: 'auto' }, ...withCode(`${sentence(answer.confidence)}.`))
    ),
    ...(answer.ranges ?? []).map(why =>
      h('p', { class: 'why' }, h('bdi', { dir: 'auto' }, ...withCode(`Why a range: ${why}.`)))
    ),
    unknown.length === 0
      ? null
      : h(
          'details',
          {},
          h('summary', {}, 'What it cannot know'),
          ...unknown.map(warning => h('div', {}, h('bdi', { dir: 'auto' }, ...withCode(warning))))
        )
  );
}
