/** Where maps come from: the moments in the file, or the kernel for any moment, one question at a time. */

import { type Answer, type AskChannel, GONE, nextId, SILENT } from '../ask';
import { decode } from '../decode';
import type { Session } from '../session';
import type { SegmentMoment, SegmentMoments } from './document';
import { readMap, type SegmentMap } from './model';

const SILENT_MS = 8000;

export class MapSource {
  readonly #session: Session;
  readonly #channel: AskChannel | null;
  readonly #onMap: (map: SegmentMap) => void;
  readonly #onProblem: (text: string | null) => void;
  readonly #end: (() => void) | null;
  #id = -1;
  #device = -1;
  #waiting = false;
  /** Asked for while another question was under way. */
  #next: number | null = null;
  #timer = 0;

  constructor(
    session: Session,
    channel: AskChannel | null,
    onMap: (map: SegmentMap) => void,
    onProblem: (text: string | null) => void
  ) {
    this.#session = session;
    this.#channel = channel;
    this.#onMap = onMap;
    this.#onProblem = onProblem;
    this.#end = channel?.onReply((answer, buffer) => void this.#take(answer, buffer)) ?? null;
  }

  dispose(): void {
    clearTimeout(this.#timer);
    this.#end?.();
  }

  /** The file's own moments of the device that is looked at; empty where a kernel is to be asked. */
  get moments(): readonly SegmentMoment[] {
    return this.#session.source.recording.device.segments?.moments ?? [];
  }

  get live(): boolean {
    return this.#channel !== null && this.#session.source.recording.device.mapped === true;
  }

  /** Number of the file's moment nearest to a time since the device's start. */
  nearest(us: number): number {
    const { startUs } = this.#session.source.recording.device;
    let best = 0;
    for (const [k, moment] of this.moments.entries()) {
      const distance = (one: SegmentMoment): number => Math.abs(one.timeUs - startUs - us);
      if (distance(moment) < distance(this.moments[best] as SegmentMoment)) best = k;
    }
    return best;
  }

  /** Show the map at a time since the device's start. */
  request(us: number): void {
    if (!this.live) {
      const k = this.nearest(us);
      const moment = this.moments[k];
      if (moment !== undefined) this.showKept(k);
      return;
    }
    if (this.#waiting && this.#device === this.#session.deviceIndex) {
      this.#next = us;
      return;
    }
    this.#ask(us);
  }

  /** Show one of the file's moments. */
  showKept(k: number): void {
    const moment = this.moments[k];
    if (moment === undefined) return;
    try {
      this.#onMap(readMap(this.#session.document, this.#session.deviceIndex, k, moment));
    } catch (error) {
      this.#onProblem(error instanceof Error ? error.message : String(error));
    }
  }

  #ask(us: number): void {
    const { device, index } = this.#session.source.recording;
    this.#id = nextId();
    this.#device = index;
    this.#next = null;
    clearTimeout(this.#timer);
    const sent = this.#channel?.send({
      kind: 'segments',
      id: this.#id,
      device: index,
      timeUs: Math.round(device.startUs + us)
    });
    this.#waiting = sent === true;
    if (sent !== true) this.#onProblem(GONE);
    else this.#timer = window.setTimeout(() => this.#onProblem(SILENT), SILENT_MS);
  }

  async #take(reply: Answer, buffer: DataView | null): Promise<void> {
    if (reply.kind !== 'segments' || reply.id !== this.#id) return;
    clearTimeout(this.#timer);
    this.#waiting = false;
    const id = reply.id;
    if (reply.error !== null || buffer === null) this.#onProblem(reply.error ?? 'The kernel sent no map.');
    else {
      try {
        const document = await decode(new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength));
        const header = document.header as unknown as { segments: SegmentMoments };
        const moment = header.segments.moments[0] as SegmentMoment;
        if (this.#device === this.#session.deviceIndex && this.#id === id) {
          this.#onProblem(null);
          this.#onMap(readMap(document, 0, 0, moment));
        }
      } catch (error) {
        this.#onProblem(error instanceof Error ? error.message : String(error));
      }
    }
    if (this.#next !== null && !this.#waiting) this.#ask(this.#next);
  }
}
