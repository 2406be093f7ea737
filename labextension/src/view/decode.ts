/**
 * Bytes → document. Reads the container that `document.ts` describes, gzipped or plain, and refuses anything that
 * does not hold together, with a sentence that says what is wrong: a report must never draw nonsense.
 */

import { type ArrayRef, type DType, FORMAT, type Header, VERSION } from './document';

export type Column = Uint8Array | Uint16Array | Uint32Array | Int32Array | Float64Array;

export interface ViewDocument {
  header: Header;
  /** A named array; throws when the document has none of that name or of another type. */
  array<D extends DType>(name: string, dtype: D): ColumnOf<D>;
  /** Counts or indices as they were written, in whatever unsigned type holds them: nothing is copied. */
  counts(name: string): Counts;
  has(name: string): boolean;
}

export type Counts = Uint8Array | Uint16Array | Uint32Array;

export type ColumnOf<D extends DType> = D extends 'u1'
  ? Uint8Array
  : D extends 'u2'
    ? Uint16Array
    : D extends 'u4'
      ? Uint32Array
      : D extends 'i4'
        ? Int32Array
        : Float64Array;

const ITEM_SIZE: Record<DType, number> = { u1: 1, u2: 2, u4: 4, i4: 4, f8: 8 };

export class DocumentError extends Error {
  override name = 'DocumentError';
}

/** Decode a container; gzip is recognised by its two magic bytes. */
export async function decode(bytes: Uint8Array): Promise<ViewDocument> {
  return parse(bytes[0] === 0x1f && bytes[1] === 0x8b ? await gunzip(bytes) : bytes);
}

async function gunzip(bytes: Uint8Array): Promise<Uint8Array> {
  if (typeof DecompressionStream === 'undefined') {
    throw new DocumentError('This browser cannot unpack the report. Use Chrome 80, Firefox 113, Safari 16.4 or newer.');
  }
  try {
    const stream = new Response(bytes as Uint8Array<ArrayBuffer>).body?.pipeThrough(new DecompressionStream('gzip'));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new DocumentError('The report is damaged: its packed data ends early or was changed. Export it again.');
  }
}

/** Parse an unpacked container. The arrays are views into `bytes` where alignment allows. */
export function parse(bytes: Uint8Array): ViewDocument {
  if (bytes.byteLength < 4) throw new DocumentError('The report is empty. Export it again.');
  // A view that does not start on a multiple of 8 cannot be looked at as float64.
  const data = bytes.byteOffset % 8 === 0 ? bytes : bytes.slice();
  const headerLength = new DataView(data.buffer, data.byteOffset, 4).getUint32(0, true);
  if (headerLength === 0 || 4 + headerLength > data.byteLength) {
    throw new DocumentError('This is not a gpumem report, or it was cut short.');
  }
  const header = parseHeader(data.subarray(4, 4 + headerLength));
  const base = Math.ceil((4 + headerLength) / 8) * 8;
  for (const [name, ref] of Object.entries(header.arrays)) checkArray(name, ref, data.byteLength - base);
  for (const [index, device] of header.devices.entries()) checkDevice(header, index, device.key);
  const find = (name: string, most: DType): ArrayRef => {
    const ref = header.arrays[name];
    if (ref === undefined) throw new DocumentError(`The report lacks its array "${name}". Export it again.`);
    if (ref.dtype !== most && !isNarrower(ref.dtype, most)) {
      throw new DocumentError(`The report's array "${name}" holds ${ref.dtype}, not ${most}.`);
    }
    return ref;
  };
  return {
    header,
    has: name => name in header.arrays,
    array<D extends DType>(name: string, dtype: D): ColumnOf<D> {
      const ref = find(name, dtype);
      const written = column(data, base, ref);
      if (ref.dtype === dtype) return written as ColumnOf<D>;
      return (dtype === 'u2' ? new Uint16Array(written) : new Uint32Array(written)) as ColumnOf<D>;
    },
    counts: name => column(data, base, find(name, 'u4')) as Counts
  };
}

/** Both are unsigned, and the values of one fit the other. */
function isNarrower(dtype: DType, than: DType): boolean {
  const widths: readonly DType[] = ['u1', 'u2', 'u4'];
  return widths.includes(dtype) && widths.indexOf(dtype) < widths.indexOf(than);
}

function parseHeader(bytes: Uint8Array): Header {
  let header: unknown;
  try {
    header = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch {
    throw new DocumentError('This is not a gpumem report, or its header is damaged.');
  }
  const fields = header as Partial<Header> | null;
  if (fields === null || typeof fields !== 'object' || fields.format !== FORMAT) {
    throw new DocumentError('This is not a gpumem report.');
  }
  if (fields.version !== VERSION) {
    throw new DocumentError(
      `The report is of format ${String(fields.version)}, this view reads format ${VERSION}. ` +
        'Update gpumem-magic where the older of both is installed, then reload the page.'
    );
  }
  for (const name of ['devices', 'strings', 'frames', 'stacks', 'notes'] as const) {
    if (!Array.isArray(fields[name])) throw new DocumentError(`The report's header lacks "${name}".`);
  }
  if (typeof fields.arrays !== 'object' || fields.arrays === null) {
    throw new DocumentError('The report\'s header lacks "arrays".');
  }
  return fields as Header;
}

function checkArray(name: string, ref: ArrayRef, available: number): void {
  const size = ITEM_SIZE[ref.dtype];
  const whole = Number.isInteger(ref.offset) && Number.isInteger(ref.length) && ref.offset >= 0 && ref.length >= 0;
  if (size === undefined || !whole || ref.offset % 8 !== 0) {
    throw new DocumentError(`The report describes its array "${name}" wrongly.`);
  }
  if (ref.offset + ref.length * size > available) {
    throw new DocumentError(`The report was cut short: its array "${name}" is incomplete. Export it again.`);
  }
}

/** Lengths that must agree; the values themselves are checked while they are read. */
function checkDevice(header: Header, index: number, key: string): void {
  const { timeline } = header.devices[index] as Header['devices'][number];
  const prefix = `d${index}.`;
  const expected: Record<string, number> = {
    t: timeline.changes,
    start: timeline.lifetimes - timeline.preexisting,
    span: timeline.lifetimes,
    bytes: timeline.lifetimes,
    requested: timeline.lifetimes,
    group: timeline.lifetimes,
    stack: timeline.lifetimes,
    stream: timeline.lifetimes
  };
  for (const [name, length] of Object.entries(expected)) {
    const ref = header.arrays[prefix + name];
    if ((ref?.length ?? 0) !== length) {
      throw new DocumentError(
        `The report contradicts itself: ${key} has ${ref?.length ?? 0} values of "${name}", ${length} were announced.`
      );
    }
  }
}

function column(data: Uint8Array, base: number, ref: ArrayRef): Column {
  const at = data.byteOffset + base + ref.offset;
  switch (ref.dtype) {
    case 'u1':
      return new Uint8Array(data.buffer, at, ref.length);
    case 'u2':
      return new Uint16Array(data.buffer, at, ref.length);
    case 'u4':
      return new Uint32Array(data.buffer, at, ref.length);
    case 'i4':
      return new Int32Array(data.buffer, at, ref.length);
    case 'f8':
      return new Float64Array(data.buffer, at, ref.length);
  }
}
