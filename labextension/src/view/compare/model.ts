/** Two recordings aligned by the code that allocated: rows by owner, and inside an owner by stack. */

import type { CompareDevice, CompareRow, Group } from '../document';
import { frameLabel, framesOf } from '../model/frames';
import type { Session } from '../session';

export type Moment = 'peak' | 'end' | 'here';

export interface Change {
  /** The owner as B has it, else as A has it. */
  group: Group | null;
  row: CompareRow;
  a: number;
  b: number;
}

export interface Sides {
  a: Session | null;
  b: Session | null;
}

/** The moment of a side that a table is about: a count of steps. */
export function momentOf(session: Session, moment: Moment): number {
  const { curves, recording } = session.source;
  if (moment === 'end') return recording.steps.count;
  if (moment === 'here') return session.here?.moment ?? 0;
  return curves.extremes.greatest(0, curves.moments - 1);
}

/** Every owner with its bytes on both sides, the largest change first. */
export function changesAt(device: CompareDevice, sides: Sides, moment: Moment): Change[] {
  const changes = device.rows.map((row): Change => {
    const group = groupOf(sides.b, row.b) ?? groupOf(sides.a, row.a);
    if (moment === 'peak') return { group, row, a: row.bytesA, b: row.bytesB };
    if (moment === 'end') return { group, row, a: row.endA, b: row.endB };
    return { group, row, a: heldHere(sides.a, row.a, group), b: heldHere(sides.b, row.b, group) };
  });
  return changes
    .filter(({ a, b }) => a !== 0 || b !== 0)
    .sort((p, q) => Math.abs(q.b - q.a) - Math.abs(p.b - p.a) || q.b - p.b);
}

function groupOf(session: Session | null, groups: readonly number[]): Group | null {
  return session === null || groups[0] === undefined ? null : session.group(groups[0]);
}

/** Bytes of an owner at the moment that was clicked. */
function heldHere(session: Session | null, groups: readonly number[], group: Group | null): number {
  if (session?.here == null) return 0;
  const table = session.here.source.live.at(session.here.moment);
  if (group?.kind === 'rounding') return table.rounding;
  const own = session.here.source.recording.device.groups;
  const wanted = new Set(groups.map(index => session.group(index)));
  // A detail that the kernel sent numbers its groups anew.
  const same = (index: number): boolean => {
    const candidate = own[index];
    if (candidate === undefined) return false;
    for (const one of wanted) {
      if (one.kind === candidate.kind && one.label === candidate.label && one.file === candidate.file) return true;
    }
    return false;
  };
  return table.rows.reduce((sum, row) => sum + (same(row.group) ? row.bytes : 0), 0);
}

export interface StackChange {
  /** Frames from the outside in, without those that all stacks of the owner share. Empty: no stack. */
  frames: string[];
  a: number;
  b: number;
}

export interface StackChanges {
  /** Outer frames that all stacks of the owner share. */
  shared: string[];
  stacks: StackChange[];
  /** Bytes of small allocations that the document keeps as sums, on each side. */
  summed: [number, number];
}

/** What an owner holds at a moment by stack, the largest change first; null where no stacks were recorded. */
export function stacksOf(change: Change, sides: Sides, moment: Moment): StackChanges | null {
  const sums = new Map<string, StackChange>();
  const left: [number, number] = [change.a, change.b];
  for (const side of ['a', 'b'] as const) {
    const session = sides[side];
    if (session === null) continue;
    for (const [stack, bytes] of bytesByStack(session, change.row[side], momentOf(session, moment))) {
      const frames = framesOf(session.document.header, stack).map(frameLabel).reverse();
      const key = frames.join('\n');
      const sum = sums.get(key) ?? { frames, a: 0, b: 0 };
      sum[side] += bytes;
      sums.set(key, sum);
      left[side === 'a' ? 0 : 1] -= bytes;
    }
  }
  const stacks = [...sums.values()];
  if (!stacks.some(({ frames }) => frames.length > 0)) return null;
  const shared = sharedPrefix(stacks.map(({ frames }) => frames));
  return {
    shared,
    stacks: stacks
      .map(stack => ({ ...stack, frames: stack.frames.slice(shared.length) }))
      .sort((p, q) => Math.abs(q.b - q.a) - Math.abs(p.b - p.a) || q.b - p.b),
    summed: left
  };
}

function bytesByStack(session: Session, groups: readonly number[], moment: number): Map<number, number> {
  const { live, recording } = session.source;
  const { lifetimes } = recording;
  const wanted = new Set(groups);
  const sums = new Map<number, number>();
  live.each(moment, i => {
    if (!wanted.has(lifetimes.group[i] as number)) return;
    const stack = lifetimes.stack[i] as number;
    sums.set(stack, (sums.get(stack) ?? 0) + (lifetimes.requested[i] as number));
  });
  return sums;
}

/** What all lists begin with; at least one entry of each is left over, so that none is shown empty. */
function sharedPrefix(lists: readonly (readonly string[])[]): string[] {
  const filled = lists.filter(list => list.length > 0);
  const first = filled[0] ?? [];
  let length = Math.max(0, Math.min(...filled.map(list => list.length)) - 1);
  for (const list of filled) {
    let k = 0;
    while (k < length && list[k] === first[k]) k += 1;
    length = k;
  }
  return first.slice(0, length);
}
