/** Sentences and parts that several views share. */

import type { Frame } from '../draw/picture';
import { formatBytes, formatCount, formatDuration, formatMoment } from '../format';
import { foldLabel, foldStack, frameLabel, framesOf, type StackPart } from '../model/frames';
import { ALIVE, isTimed } from '../model/steps';
import type { Session, Source } from '../session';
import { bdi, h } from './dom';

/** A moment in words; where a recording has the order of its changes alone, its place in that. */
export function momentText(source: Source, us: number, resolutionUs: number): string {
  return isTimed(source.recording.device) ? formatMoment(us, resolutionUs) : changeText(source, us);
}

/** How long after the beginning something was, in words; its place likewise. */
export function sinceText(source: Source, us: number): string {
  return isTimed(source.recording.device) ? formatDuration(us) : changeText(source, us);
}

/** How long a stretch is, in words. */
export function lengthText(source: Source, fromUs: number, toUs: number): string {
  if (isTimed(source.recording.device)) return formatDuration(toUs - fromUs);
  const count = changeAt(source, toUs) - changeAt(source, fromUs);
  return `${formatCount(count)} ${count === 1 ? 'change' : 'changes'}`;
}

const changeAt = ({ axis }: Source, us: number): number => axis.momentAt(axis.uOfUs(us));
const changeText = (source: Source, us: number): string => `change ${formatCount(changeAt(source, us))}`;

/** What a screen reader hears of the picture. */
export function describePicture(session: Session, frame: Frame): string {
  const { axis } = frame.viewport;
  const from = sinceText(session.source, axis.usOfU(frame.viewport.fromU));
  const to = sinceText(session.source, axis.usOfU(frame.viewport.toU));
  const shown = session.viewport.isWhole ? 'The whole recording' : `From ${from} to ${to}`;
  return `${shown}: at most ${formatBytes(frame.columns.most)} allocated.`;
}

/** The stack of an allocation as a list; library frames folded, the cell's frame in bold. */
export function stackList(source: Source, stack: number, most: number, openable: boolean): HTMLElement | null {
  const frames = framesOf(source.document.header, stack);
  if (frames.length === 0) return null;
  const parts = foldStack(frames);
  const shown = parts.slice(0, most);
  const list = h('ol', { class: 'stack' }, ...shown.map(part => stackPart(part, openable)));
  if (parts.length > shown.length) {
    list.append(h('li', { class: 'folded' }, `and ${parts.length - shown.length} more`));
  }
  return list;
}

function stackPart(part: StackPart, openable: boolean): HTMLElement {
  if (part.kind === 'frame') return h('li', { class: part.cell ? 'cell' : '' }, bdi(frameLabel(part.frame)));
  if (!openable) return h('li', { class: 'folded' }, foldLabel(part.frames));
  const inside = part.frames.map(frame => h('li', {}, bdi(frameLabel(frame))));
  return h(
    'li',
    {},
    h('details', {}, h('summary', {}, foldLabel(part.frames)), h('ol', { class: 'stack' }, ...inside))
  );
}

export interface Life {
  bytes: number;
  requested: number;
  fromUs: number | null;
  toUs: number | null;
  stream: number;
  preexisting: boolean;
}

/** The facts of one allocation. Times are relative to the recording's start; null: before it, or alive at its end. */
export function lifeOf(source: Source, lifetime: number): Life {
  const { lifetimes, steps, device } = source.recording;
  const end = lifetimes.end[lifetime] as number;
  const preexisting = lifetime < lifetimes.preexisting;
  return {
    bytes: lifetimes.bytes[lifetime] as number,
    requested: lifetimes.requested[lifetime] as number,
    fromUs: preexisting ? null : (steps.time[lifetimes.start[lifetime] as number] as number),
    toUs: end === ALIVE ? null : (steps.time[end] as number),
    stream: device.timeline.streams[lifetimes.stream[lifetime] as number] ?? 0,
    preexisting
  };
}

/** "from 1.20 s to 1.31 s (110 ms)", "from before the recording to its end, still alive". */
export function lifeText(life: Life, source: Source): string {
  const { fromUs, toUs } = life;
  const { stretch } = source;
  const time = (us: number): string => sinceText(source, us);
  const before = stretch === null ? 'before the recording' : `before ${time(stretch.fromUs)}`;
  const after = stretch === null ? 'its end, still alive' : `after ${time(stretch.toUs)}`;
  const length = fromUs !== null && toUs !== null ? ` (${lengthText(source, fromUs, toUs)})` : '';
  return `from ${fromUs === null ? before : time(fromUs)} to ${toUs === null ? after : time(toUs)}${length}`;
}

/** What lives from before the beginning to past the end comes folded by owner: it may be many blocks. */
export function mayBeMany(life: Life): boolean {
  return life.fromUs === null && life.toUs === null;
}
