/** The tree of live bytes as a table: rows that open into what they consist of. The nested bars' readable twin. */

import { type Colours, toneColour } from '../draw/palette';
import { formatBytes, formatCount, formatShare } from '../format';
import type { IcicleNode } from '../model/icicle';
import type { Session } from '../session';
import { bdi, h, replace } from './dom';

const INDENT_PX = 16;

interface Branch {
  label: string;
  bytes: number;
  group: number | null;
  depth: number;
  parent: Branch | null;
  branches: Branch[];
  open: boolean;
}

/** Branches that add up to their parent: what ends at a line or a frame while others go on is one of them. */
function grow(node: IcicleNode, depth: number, parent: Branch | null): Branch {
  const { label, bytes, group } = node;
  const branch: Branch = { label, bytes, group, depth, parent, branches: [], open: false };
  branch.branches = node.children.map(child => grow(child, depth + 1, branch));
  const own = bytes - node.children.reduce((sum, child) => sum + child.bytes, 0);
  if (node.children.length > 0 && own > 0) {
    const rest = {
      label: 'no deeper stack',
      bytes: own,
      group,
      depth: depth + 1,
      parent: branch,
      branches: [],
      open: false
    };
    branch.branches.push(rest);
  }
  return branch;
}

/** Opens a branch, and on through what consists of one part alone. */
function unfold(branch: Branch): void {
  branch.open = true;
  const [only, ...others] = branch.branches;
  if (only !== undefined && others.length === 0) unfold(only);
}

function visible(branches: readonly Branch[]): Branch[] {
  return branches.flatMap(branch => [branch, ...(branch.open ? visible(branch.branches) : [])]);
}

/** The whole tree as text, an indent for each level. */
export function treeText(root: IcicleNode): string {
  const lines = (node: IcicleNode, depth: number): string[] => [
    `${node.bytes}\t${'  '.repeat(depth)}${node.label.replaceAll('\t', ' ')}`,
    ...node.children.flatMap(child => lines(child, depth + 1))
  ];
  return ['bytes\twhere', ...root.children.flatMap(child => lines(child, 0)), `${root.bytes}\tin all`].join('\n');
}

export function treeTable(session: Session, root: IcicleNode, colours: Colours): HTMLTableElement {
  const tops = grow(root, 0, null).branches;
  for (const top of tops) top.parent = null;
  const body = h('tbody');
  let current = tops[0] ?? null;
  const rowOf = new Map<Branch, HTMLTableRowElement>();
  const show = (): void => {
    rowOf.clear();
    for (const branch of visible(tops)) rowOf.set(branch, row(branch));
    replace(body, ...rowOf.values());
  };
  const go = (to: Branch | null | undefined): void => {
    if (to == null) return;
    for (const [branch, element] of rowOf) element.tabIndex = branch === to ? 0 : -1;
    current = to;
    rowOf.get(to)?.focus();
  };
  const turn = (branch: Branch): void => {
    if (branch.branches.length === 0) return;
    if (branch.open) branch.open = false;
    else unfold(branch);
    show();
    go(branch);
  };
  const row = (branch: Branch): HTMLTableRowElement => {
    const has = branch.branches.length > 0;
    const band = session.banding.bands.find(one => branch.group !== null && one.groups.includes(branch.group));
    const swatch = h('span', { class: 'swatch', 'aria-hidden': 'true' });
    swatch.style.background = band === undefined ? colours.other : toneColour(band.tone, colours);
    const where = h(
      'td',
      { class: 'where', title: branch.label },
      h('span', { 'aria-hidden': 'true', class: 'muted' }, has ? (branch.open ? '▾ ' : '▸ ') : '   '),
      branch.depth === 1 ? swatch : null,
      bdi(branch.label, branch.depth === 1 ? '' : 'code')
    );
    where.style.paddingInlineStart = `${8 + (branch.depth - 1) * INDENT_PX}px`;
    const element = h(
      'tr',
      {
        tabindex: branch === current ? 0 : -1,
        'aria-level': branch.depth,
        'aria-expanded': has ? String(branch.open) : null
      },
      h('td', { class: 'n strong', title: `${formatCount(branch.bytes)} bytes` }, formatBytes(branch.bytes)),
      h('td', { class: 'n' }, formatShare(branch.bytes, root.bytes)),
      where
    );
    const stress = (on: boolean): void =>
      session.setEmphasis(on && branch.group !== null ? new Set([branch.group]) : null);
    element.addEventListener('pointerenter', () => stress(true));
    element.addEventListener('pointerleave', () => stress(false));
    element.addEventListener('focus', () => stress(true));
    element.addEventListener('blur', () => stress(false));
    element.addEventListener('click', () => turn(branch));
    return element;
  };
  body.addEventListener('keydown', event => {
    if (current === null) return;
    const shown = [...rowOf.keys()];
    const at = shown.indexOf(current);
    switch (event.key) {
      case 'ArrowDown':
        go(shown[at + 1]);
        break;
      case 'ArrowUp':
        go(shown[at - 1]);
        break;
      case 'Home':
        go(shown[0]);
        break;
      case 'End':
        go(shown.at(-1));
        break;
      case 'ArrowRight':
        if (current.open) go(current.branches[0]);
        else turn(current);
        break;
      case 'ArrowLeft':
        if (current.open) turn(current);
        else go(current.parent);
        break;
      case 'Enter':
      case ' ':
        turn(current);
        break;
      default:
        return;
    }
    event.preventDefault();
    event.stopPropagation();
  });
  show();
  return h(
    'table',
    { role: 'treegrid', class: 'plain tree' },
    h('caption', { class: 'sr' }, 'Live bytes by cell, line, module and stack'),
    h(
      'thead',
      {},
      h(
        'tr',
        {},
        h('th', { class: 'n', scope: 'col' }, 'bytes'),
        h('th', { class: 'n', scope: 'col' }, 'share'),
        h('th', { scope: 'col' }, 'where: cell, line, module, stack')
      )
    ),
    body,
    h(
      'tfoot',
      {},
      h(
        'tr',
        {},
        h('td', { class: 'n strong', title: `${formatCount(root.bytes)} bytes` }, formatBytes(root.bytes)),
        h('td', { class: 'n' }, root.bytes > 0 ? '100 %' : ''),
        h('td', {}, 'in all')
      )
    )
  );
}
