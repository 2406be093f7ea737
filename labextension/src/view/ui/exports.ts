/** Files that the kernel writes from the whole recording, and what a standalone page can write by itself. */

import { type Answer, type AskChannel, GONE, nextId } from '../ask';
import type { Session } from '../session';
import { barePage } from './bare';
import { download, fileName } from './save';

export interface SaveItem {
  label: string;
  act: () => void;
  /** Why it cannot be had here. */
  refused?: string | null;
}

const KINDS = [
  ['html', 'Report as HTML', 'html', 'text/html'],
  ['bare', 'Report without source, to share', 'bare.html', 'text/html'],
  ['snapshot', 'Recording for torch’s viewer', 'pickle', 'application/octet-stream'],
  ['perfetto', 'Trace for Perfetto', 'perfetto.json', 'application/json'],
  ['speedscope', 'Flame graphs for speedscope', 'speedscope.json', 'application/json']
] as const;

export class Exports {
  readonly #session: Session;
  readonly #channel: AskChannel | null;
  readonly #standalone: boolean;
  readonly #say: (text: string | null) => void;
  readonly #waiting = new Map<number, (typeof KINDS)[number]>();
  readonly #end: () => void;

  constructor(session: Session, channel: AskChannel | null, standalone: boolean, say: (text: string | null) => void) {
    this.#session = session;
    this.#channel = channel;
    this.#standalone = standalone;
    this.#say = say;
    this.#end = channel?.onReply((answer, buffer) => this.#take(answer, buffer)) ?? (() => {});
  }

  dispose(): void {
    this.#end();
  }

  get items(): SaveItem[] {
    if (this.#channel !== null)
      return KINDS.map(kind => ({ label: kind[1], act: () => this.#ask(kind), refused: this.#refused(kind[0]) }));
    if (!this.#standalone || typeof CompressionStream === 'undefined') return [];
    const [, bare, , perfetto, speedscope] = KINDS;
    return [
      { label: bare[1], act: () => void this.#bare() },
      ...[perfetto, speedscope].map(kind => ({
        label: kind[1],
        act: () => {},
        refused: `by gpumem-magic export FILE --to ${kind[0]}`
      }))
    ];
  }

  #refused(what: (typeof KINDS)[number][0]): string | null {
    const { devices } = this.#session.document.header;
    // Without addresses there were no events of torch's caching allocator, which is all that its viewer knows.
    return what === 'snapshot' && !devices.some(device => device.mapped === true)
      ? 'only from events of a GPU’s allocator'
      : null;
  }

  #ask(kind: (typeof KINDS)[number]): void {
    const id = nextId();
    this.#waiting.set(id, kind);
    const sent = this.#channel?.send({ kind: 'export', id, what: kind[0] }) ?? false;
    this.#say(sent ? 'The kernel writes the file …' : GONE);
  }

  #take(answer: Answer, buffer: DataView | null): void {
    const kind = this.#waiting.get(answer.id);
    if (answer.kind !== 'export' || kind === undefined) return;
    this.#waiting.delete(answer.id);
    if (answer.error !== null || buffer === null) {
      this.#say(answer.error ?? 'The kernel sent no file.');
      return;
    }
    this.#say(null);
    const bytes = new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength) as Uint8Array<ArrayBuffer>;
    download(new Blob([bytes], { type: kind[3] }), fileName(this.#session, kind[2]));
  }

  async #bare(): Promise<void> {
    try {
      const page = await barePage(this.#session.document);
      download(new Blob([page], { type: 'text/html' }), fileName(this.#session, 'bare.html'));
    } catch (error) {
      this.#say(`The copy cannot be made: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
}
