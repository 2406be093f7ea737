/** Asks the kernel for single allocations of what is on screen, where the document only has sums. */

import { decode, type ViewDocument } from '../decode';
import type { DetailReply, DetailRequest } from '../document';
import type { Session } from '../session';

export interface DetailChannel {
  send(request: DetailRequest): void;
  /** Returns what ends the subscription. */
  onReply(listener: (reply: DetailReply, buffer: DataView | null) => void): () => void;
}

/** A view that rests this long is worth a question. */
const REST_MS = 180;
/** Asked for on both sides, as a share of the width, so that small pans need no new question. */
const MARGIN = 0.5;
/** Only a stretch with few of the document's sums: a wide one would be summed again. */
const MOST_BINS = 400;

/** Several loaders may share a channel. */
let lastId = 0;

export class DetailLoader {
  readonly #session: Session;
  readonly #channel: DetailChannel;
  readonly #onProblem: (text: string | null) => void;
  readonly #end: () => void;
  #timer = 0;
  #id = 0;

  constructor(session: Session, channel: DetailChannel, onProblem: (text: string | null) => void) {
    this.#session = session;
    this.#channel = channel;
    this.#onProblem = onProblem;
    this.#end = channel.onReply((reply, buffer) => void this.#take(reply, buffer));
  }

  dispose(): void {
    clearTimeout(this.#timer);
    this.#end();
  }

  /** The view moved. */
  consider(): void {
    clearTimeout(this.#timer);
    const { viewport, axisKind } = this.#session;
    // A detail that had to sum again answers a closer look with a finer one.
    const { rest, device } = this.#session.active().recording;
    if (rest === null || rest.lifetimes === 0 || axisKind !== 'time') return;
    const span = viewport.axis.usOfU(viewport.toU) - viewport.axis.usOfU(viewport.fromU);
    if (span > ((device.endUs - device.startUs) / rest.bins) * MOST_BINS) return;
    this.#timer = window.setTimeout(() => this.#ask(span), REST_MS);
  }

  #ask(span: number): void {
    const { viewport, deviceIndex, source } = this.#session;
    const { startUs } = source.recording.device;
    lastId += 1;
    this.#id = lastId;
    this.#channel.send({
      kind: 'detail',
      id: this.#id,
      device: deviceIndex,
      startUs: Math.floor(startUs + Math.max(0, viewport.axis.usOfU(viewport.fromU) - span * MARGIN)),
      endUs: Math.ceil(startUs + viewport.axis.usOfU(viewport.toU) + span * MARGIN)
    });
  }

  async #take(reply: DetailReply, buffer: DataView | null): Promise<void> {
    // An answer to an older question is of no use: the view has moved on.
    if (reply.kind !== 'detail' || reply.id !== this.#id) return;
    if (reply.error !== null || buffer === null) {
      this.#onProblem(reply.error ?? 'The kernel sent no detail.');
      return;
    }
    let document: ViewDocument;
    try {
      document = await decode(new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength));
    } catch (error) {
      this.#onProblem(error instanceof Error ? error.message : String(error));
      return;
    }
    if (reply.id !== this.#id) return;
    this.#onProblem(null);
    this.#session.addDetail(document);
  }
}
