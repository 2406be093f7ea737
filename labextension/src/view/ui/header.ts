/** The sentence first, then the numbers, then what must be known to trust them. */

import type { Device, Header } from '../document';
import { formatBytes, formatCount, formatDuration } from '../format';
import { isTimed } from '../model/steps';
import { bdi, button, h, replace } from './dom';

export class HeaderView {
  readonly element = h('header');
  readonly #header: Header;

  constructor(header: Header) {
    this.#header = header;
  }

  show(device: Device): void {
    const { sentence, title, notes, error, outcome } = this.#header;
    const bad = outcome === 'error' || outcome === 'out of memory' || outcome === 'interrupted';
    this.element.classList.toggle('bad', bad);
    replace(
      this.element,
      h(
        'div',
        { class: 'top' },
        h('p', { class: 'sentence', dir: 'auto' }, ...withCode(sentence)),
        bdi(title, 'title')
      ),
      h(
        'ul',
        { class: 'notes' },
        error === null ? null : h('li', { class: 'error' }, bdi(error)),
        ...notes.map(note =>
          h(
            'li',
            { class: note.level },
            note.level === 'warning' ? '⚠ ' : '',
            h('bdi', { dir: 'auto' }, ...withCode(note.text))
          )
        )
      ),
      numbers(device)
    );
  }
}

/** Backquoted parts of the sentence are code. */
export function withCode(text: string): Node[] {
  return text.split(/(`[^`]+`)/).map(part => {
    if (!/^`[^`]+`$/.test(part)) return document.createTextNode(part);
    return h('code', {}, bdi(part.slice(1, -1), 'code'));
  });
}

interface Entry {
  label: string;
  value: number | null;
  small?: string;
  style?: 'key' | 'bad' | undefined;
  help: string;
}

function numbers(device: Device): HTMLElement {
  const { headline: n } = device;
  const total = device.total === null ? '' : ` of ${formatBytes(device.total)}`;
  const isHost = device.kind === 'cpu' || device.kind === 'host';
  const isSampled = device.whose === 'process';
  const entries: Entry[] = [
    {
      label: 'before',
      value: n.allocatedBefore,
      help: isSampled ? 'In use when the recording began' : 'Allocated by torch when the recording began'
    },
    {
      label: 'peak',
      value: n.allocatedPeak,
      style: 'key',
      help: isSampled
        ? 'The most that was in use at any sample'
        : `The most that was allocated at once${isHost ? '' : '; equals max_memory_allocated'}`
    },
    {
      label: 'after',
      value: n.allocatedAfter,
      help: isSampled ? 'In use when the recording ended' : 'Allocated when the recording ended'
    },
    {
      label: 'stayed',
      value: n.stayed,
      help: 'Allocated in the recording and still alive at its end'
    },
    { label: 'freed', value: n.freed, help: 'There before the recording and freed in it' },
    {
      label: 'reserved',
      value: n.reservedPeak,
      help: 'The most that torch’s allocator held of the device'
    },
    {
      label: isHost ? 'host used' : 'device used',
      value: n.deviceUsed,
      small: total,
      help: isHost ? 'The whole machine’s memory, at the end' : 'Whole device, by the driver, at the end'
    },
    {
      label: 'this process',
      value: n.processUsed,
      help: isHost ? 'This process on the host, at the end' : 'This process on the device, by the driver, at the end'
    },
    {
      label: 'to the limit',
      value: n.headroom,
      style: n.headroom !== null && device.limit !== null && n.headroom < device.limit * 0.05 ? 'bad' : undefined,
      help: 'The device’s limit less the most that was reserved'
    }
  ];
  const list = h('dl', { class: 'numbers' });
  for (const entry of entries) {
    // What is not known stands with its reason below the tables; here it would be noise among the numbers.
    if (entry.value === null) continue;
    const title = `${entry.help}. ${formatCount(entry.value)} bytes.`;
    list.append(
      h(
        'div',
        { title, class: entry.style ?? null },
        h('dt', {}, entry.label),
        h('dd', {}, formatBytes(entry.value), entry.small === undefined ? null : h('small', {}, entry.small))
      )
    );
  }
  const timed = isTimed(device);
  list.append(
    h(
      'div',
      { title: timed ? 'From the first to the last moment of the recording' : 'No times were recorded' },
      h('dt', {}, 'took'),
      h('dd', {}, timed ? formatDuration(device.endUs - device.startUs) : '?')
    ),
    h('div', { title: 'Events of the allocator' }, h('dt', {}, 'events'), h('dd', {}, formatCount(device.events)))
  );
  return list;
}

/** One tab a device; nothing for a single one. */
export function deviceTabs(
  devices: readonly Device[],
  current: number,
  onPick: (index: number) => void
): HTMLElement | null {
  if (devices.length < 2) return null;
  const tabs = devices.map((device, k) => {
    const peak = device.headline.allocatedPeak;
    return button(peak === null ? device.key : `${device.key}  ${formatBytes(peak)}`, () => onPick(k), {
      role: 'tab',
      'aria-selected': String(k === current),
      title: device.name
    });
  });
  return h('div', { class: 'devices', role: 'tablist', 'aria-label': 'Devices' }, ...tabs);
}

/** What the host's memory does not have at all; that it is "not known" there would be noise under every report. */
const NOT_ON_HOST = new Set(['reserved_before', 'reserved_peak', 'reserved_after', 'headroom']);

/** What is not known of a device, and why; null when everything that a reader expects is. */
export function missingList(device: Device): HTMLElement | null {
  const entries = Object.entries(device.missing).filter(([name]) => device.kind !== 'cpu' || !NOT_ON_HOST.has(name));
  if (entries.length === 0) return null;
  // "allocatedBefore" and "allocated_before" are both "allocated before".
  const words = (name: string): string =>
    name
      .replace(/_|(?=[A-Z])/g, ' ')
      .toLowerCase()
      .replace(/ us$/, ' time');
  return h(
    'details',
    {},
    h('summary', {}, `Not known: ${entries.map(([name]) => words(name)).join(', ')}`),
    ...entries.map(([name, reason]) => h('div', {}, `${words(name)}: `, bdi(reason)))
  );
}
