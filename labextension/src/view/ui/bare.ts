/** A copy of a standalone report to share: no source, no folders, no names of people's own making. */

import type { ViewDocument } from '../decode';
import type { Device, Group, Header } from '../document';

const QUOTED = /( ?)`([^`]*)`/g;
/** Ours or torch's, to be typed as it stands. */
const COMMAND = /^(%\w+( --\w+)*|PYTORCH_\w+(=\S*)?|torch(\.\w+)+\(\))$/;
const LINE = /\blines? \d+( to \d+)?$/;
const HIDDEN = '`…`';
/** A verdict: what it says besides a name is worth having. */
const VERDICT = /^(Why|Do \d+):/;
/** What to do about a leak, which is told with names alone. */
const REMEDY = /^Do: /;

const baseName = (path: string): string => path.split(/[\\/]/).at(-1) ?? path;
const cellTitle = (executionCount: number | null): string =>
  executionCount === null ? 'cell' : `In [${executionCount}]`;

/** Takes code, names and labels out, by the rules of gpumem_magic/analysis/anonymous.py. */
class Hiding {
  readonly #labels: readonly string[];
  readonly #titles: ReadonlyMap<string, string>;

  constructor(header: Header) {
    this.#labels = header.devices.flatMap(device => device.groups.map(group => group.label));
    const cells = [...(header.cells ?? [])].sort((a, b) => b.title.length - a.title.length);
    this.#titles = new Map(cells.map(cell => [cell.title, cellTitle(cell.executionCount)]));
  }

  /** Code behind the place that it stands at goes without a trace; another quotation leaves a mark. */
  text(text: string): string {
    let result = text.replace(QUOTED, (all: string, blank: string, quoted: string, at: number) => {
      if (COMMAND.test(quoted)) return all;
      const before = text.slice(0, at);
      const placed = blank !== '' && (LINE.test(before) || this.#labels.some(label => before.endsWith(label)));
      return placed ? '' : blank + HIDDEN;
    });
    for (const [title, bare] of this.#titles) {
      const literal = title.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
      result = result.replace(new RegExp(`(?<![\\p{L}\\d_])${literal}(?![\\p{L}\\d_])`, 'gu'), bare);
    }
    return result;
  }

  notes(notes: Header['notes']): Header['notes'] {
    return notes
      .filter(note => !REMEDY.test(note.text))
      .map(note => ({ ...note, text: this.text(note.text) }))
      .filter(note => note.level === 'warning' || VERDICT.test(note.text) || !note.text.includes(HIDDEN));
  }

  group(group: Group): Group {
    const cell = group.cell === null ? null : (this.#titles.get(group.cell) ?? group.cell);
    return { ...group, source: null, file: group.file === null ? null : baseName(group.file), cell };
  }
}

/** Only what is known to be harmless goes in: a field that is added later stays out until it is looked at. */
function bareDevice(device: Device, hiding: Hiding): Device {
  const { key, name, kind, total, limit, events, startUs, endUs, headline, missing, peak, end, lanes, timeline } =
    device;
  return {
    key,
    name,
    kind,
    ...(device.whose === undefined ? {} : { whose: device.whose }),
    total,
    limit,
    events,
    startUs,
    endUs,
    headline,
    missing,
    groups: device.groups.map(group => hiding.group(group)),
    peak,
    end,
    markers: device.markers.map(marker => ({
      ...marker,
      text: marker.kind === 'exception' ? (marker.text.split(':')[0] as string) : hiding.text(marker.text)
    })),
    regions: device.regions.map((region, k) => ({ ...region, name: `region ${k + 1}` })),
    lanes,
    timeline
  };
}

/** What leaks is told with names of variables and lines of code: left out, as it is from the devices. */
function unleaked(header: Header): string {
  const { sentence } = header;
  const told = header.devices
    .flatMap(device => device.growth?.leaks ?? [])
    .find(leak => sentence.startsWith(`Leak: ${leak.sentence}`));
  if (told === undefined) return sentence;
  return sentence.slice(`Leak: ${told.sentence}`.length).replace(/^( \(\d+ more below\))?\. /, '');
}

export function bareHeader(header: Header): Header {
  const files = new Set(header.frames.map(([file]) => file));
  const { cell } = header;
  const hiding = new Hiding(header);
  return {
    format: header.format,
    version: header.version,
    package: header.package,
    title: cell === null ? baseName(header.title) : cellTitle(cell.executionCount),
    sentence: hiding.text(unleaked(header)),
    createdUs: header.createdUs,
    origin: header.origin,
    outcome: header.outcome,
    error: header.error === null ? null : (header.error.split(':')[0] as string),
    cell: cell === null ? null : { ...cell, label: null },
    notes: hiding.notes(header.notes),
    discloses: 'Contains no source, and file names without their folders.',
    strings: header.strings.map((text, k) => (files.has(k) ? baseName(text) : text)),
    frames: header.frames,
    stacks: header.stacks,
    devices: header.devices.map(device => bareDevice(device, hiding)),
    arrays: header.arrays,
    cells: (header.cells ?? []).map(span => ({
      ...span,
      title: cellTitle(span.executionCount),
      sentence: hiding.text(span.sentence)
    }))
  };
}

/** The container with another header; the arrays stay where they are. */
export function withHeader(source: ViewDocument, header: Header): Uint8Array {
  const text = new TextEncoder().encode(JSON.stringify(header));
  const base = Math.ceil((4 + text.length) / 8) * 8;
  const columns = Object.entries(header.arrays).map(([name, { dtype, offset }]) => {
    const column = source.array(name, dtype);
    return { offset, bytes: new Uint8Array(column.buffer, column.byteOffset, column.byteLength) };
  });
  const end = columns.reduce((most, { offset, bytes }) => Math.max(most, offset + bytes.length), 0);
  const out = new Uint8Array(base + Math.ceil(end / 8) * 8);
  new DataView(out.buffer).setUint32(0, text.length, true);
  out.set(text, 4);
  for (const { offset, bytes } of columns) out.set(bytes, base + offset);
  return out;
}

async function packed(bytes: Uint8Array): Promise<string> {
  const stream = new Response(bytes as Uint8Array<ArrayBuffer>).body?.pipeThrough(new CompressionStream('gzip'));
  const data = new Uint8Array(await new Response(stream).arrayBuffer());
  let text = '';
  for (let i = 0; i < data.length; i += 0x8000) text += String.fromCharCode(...data.subarray(i, i + 0x8000));
  return btoa(text);
}

/** The page around, with a bare document in it and nothing else that was written from the recording. */
export async function barePage(source: ViewDocument): Promise<string> {
  const header = bareHeader(source.header);
  const page = document.documentElement.cloneNode(true) as HTMLElement;
  const data = page.querySelector('#gpumem-document');
  if (data === null) throw new Error('this page is not a standalone report');
  data.textContent = await packed(withHeader(source, header));
  const title = page.querySelector('title');
  if (title !== null) title.textContent = `${header.title} · gpumem`;
  const fallback = page.querySelector('#gpumem-fallback');
  if (fallback !== null) {
    const heading = document.createElement('h1');
    heading.textContent = header.sentence;
    fallback.replaceChildren(heading);
    fallback.removeAttribute('hidden');
  }
  const disclosure = document.createElement('p');
  disclosure.textContent = header.discloses;
  page.querySelector('footer')?.replaceChildren(disclosure);
  return `<!DOCTYPE html>\n<!-- gpumem-magic report -->\n${page.outerHTML}\n`;
}
