/** Find allocations by text or regular expression in function, file, line of source or label. */

import type { Header } from '../document';
import { ALIVE, type Recording } from './steps';

export interface Matches {
  query: string;
  /** One flag a lifetime. */
  lifetime: Uint8Array;
  /** One flag a group. */
  group: Uint8Array;
  count: number;
  bytes: number;
  /** The most that the matches held at once. */
  peak: number;
  /** Matching lifetimes, largest bytes × duration first, at most 1,000: what "next" walks through. */
  order: Uint32Array;
  /** Why the query is not understood. */
  problem: string | null;
}

const WALK = 1000;

/** `/…/` and `/…/i` are regular expressions, anything else is text; case matters only in an expression without i. */
export function compileQuery(query: string): { test: (text: string) => boolean; problem: string | null } {
  const expression = /^\/(.+)\/([imsu]*)$/.exec(query);
  if (expression === null) {
    const needle = query.toLocaleLowerCase();
    return { test: text => text.toLocaleLowerCase().includes(needle), problem: null };
  }
  try {
    const compiled = new RegExp(expression[1] as string, expression[2]);
    return { test: text => compiled.test(text), problem: null };
  } catch (error) {
    return { test: () => false, problem: error instanceof Error ? error.message : String(error) };
  }
}

export function search(recording: Recording, header: Header, query: string): Matches {
  const { test, problem } = compileQuery(query);
  const { lifetimes, steps, device, spanUs } = recording;
  const strings = header.strings.map(text => test(text));
  const frames = header.frames.map(
    ([file, line, name]) =>
      strings[file] === true || strings[name] === true || test(`${header.strings[file] ?? ''}:${line}`)
  );
  const stacks = header.stacks.map(stack => stack.some(frame => frames[frame] === true));
  const group = Uint8Array.from(device.groups, g =>
    [g.label, g.source, g.cell, g.function, g.file].some(text => text !== null && test(text)) ? 1 : 0
  );
  const lifetime = new Uint8Array(lifetimes.count);
  const found: number[] = [];
  let bytes = 0;
  for (let i = 0; i < lifetimes.count; i++) {
    if (group[lifetimes.group[i] as number] !== 1 && stacks[lifetimes.stack[i] as number] !== true) continue;
    lifetime[i] = 1;
    bytes += lifetimes.bytes[i] as number;
    found.push(i);
  }
  const weight = (i: number): number => {
    const end = lifetimes.end[i] as number;
    const from = i < lifetimes.preexisting ? 0 : (steps.time[lifetimes.start[i] as number] as number);
    return (lifetimes.bytes[i] as number) * ((end === ALIVE ? spanUs : (steps.time[end] as number)) - from + 1);
  };
  // Sorting numbers by a computed key once is far cheaper than computing it in each comparison.
  const weights = Float64Array.from(found, weight);
  const largest = Uint32Array.from(found.keys()).sort((a, b) => (weights[b] as number) - (weights[a] as number));
  return {
    query,
    lifetime,
    group,
    count: found.length,
    bytes,
    peak: peakOf(recording, lifetime),
    order: largest.subarray(0, WALK).map(at => found[at] as number),
    problem
  };
}

function peakOf(recording: Recording, shown: Uint8Array): number {
  const { lifetimes, steps } = recording;
  let now = 0;
  for (let i = 0; i < lifetimes.preexisting; i++) if (shown[i] === 1) now += lifetimes.bytes[i] as number;
  let peak = now;
  for (let i = 0; i < steps.count; i++) {
    const who = steps.owner[i] as number;
    if (who < 0 || shown[who] !== 1) continue;
    now += steps.delta[i] as number;
    if (now > peak) peak = now;
  }
  return peak;
}
