/** Live bytes as a tree: cell → line → module → stack from the outside in. Every node holds the sum of its children. */

import type { Source } from '../session';
import { frameLabel, framesOf } from './frames';

export interface IcicleNode {
  label: string;
  bytes: number;
  group: number | null;
  children: IcicleNode[];
}

interface Draft {
  label: string;
  bytes: number;
  group: number | null;
  children: Map<string, Draft>;
}

function child(parent: Draft, label: string, group: number | null): Draft {
  let found = parent.children.get(label);
  if (found === undefined) {
    found = { label, bytes: 0, group, children: new Map() };
    parent.children.set(label, found);
  }
  return found;
}

function finish(draft: Draft): IcicleNode {
  const children = [...draft.children.values()].map(finish).sort((a, b) => b.bytes - a.bytes);
  return { label: draft.label, bytes: draft.bytes, group: draft.group, children };
}

/** Who is alive at a moment, adding up to the allocated bytes: rounding is a node of its own. */
export function liveTree(source: Source, moment: number): IcicleNode {
  const { lifetimes, device } = source.recording;
  const root: Draft = { label: 'allocated', bytes: 0, group: null, children: new Map() };
  // Thousands of allocations share a handful of (line, module, stack): sum by these first, then build the tree once each.
  const pairs = new Map<number, number>();
  const stacks = source.document.header.stacks.length;
  const names = device.categories?.moduleNames ?? [''];
  const modules = lifetimes.module === null ? 1 : names.length;
  let rounding = 0;
  source.live.each(moment, i => {
    const module = lifetimes.module === null ? 0 : (lifetimes.module[i] as number);
    const pair = ((lifetimes.group[i] as number) * modules + module) * stacks + (lifetimes.stack[i] as number);
    pairs.set(pair, (pairs.get(pair) ?? 0) + (lifetimes.requested[i] as number));
    rounding += (lifetimes.bytes[i] as number) - (lifetimes.requested[i] as number);
  });
  const table = source.live.at(moment);
  for (const [pair, bytes] of pairs) {
    const owner = Math.floor(pair / stacks);
    const index = Math.floor(owner / modules);
    const module = names[owner % modules] ?? '';
    const group = device.groups[index];
    if (group === undefined) continue;
    let at = root;
    const path: string[] = [];
    if (group.cell !== null) path.push(group.cell);
    path.push(group.source === null ? group.label : `${group.label}  ${group.source}`);
    if (module !== '') path.push(module);
    for (const frame of framesOf(source.document.header, pair % stacks).reverse()) path.push(frameLabel(frame));
    root.bytes += bytes;
    for (const label of path) {
      at = child(at, label, index);
      at.bytes += bytes;
    }
  }
  for (const [label, bytes] of [
    ['rounding and unsplit remainders', rounding],
    ['small allocations, summed', table.summed]
  ] as const) {
    if (bytes === 0) continue;
    child(root, label, null).bytes = bytes;
    root.bytes += bytes;
  }
  return finish(root);
}
