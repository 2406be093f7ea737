/** The tree of live bytes, drawn as nested bars. Click a bar to make it the whole width. */

import { type Colours, toneColour } from '../draw/palette';
import { formatBytes, formatShare } from '../format';
import type { IcicleNode } from '../model/icicle';
import type { Session } from '../session';
import { h, replace } from './dom';

const ROW_PX = 22;
/** Bars under this share of the width are left out; their room stays, so that nothing else looks larger. */
const LEAST_SHARE = 0.004;

export function icicle(session: Session, root: IcicleNode, colours: Colours): HTMLElement {
  const element = h('div', {
    class: 'icicle',
    role: 'group',
    'aria-label': 'Live bytes by cell, line, module and stack'
  });
  const show = (top: IcicleNode): void => {
    const bars: HTMLElement[] = [];
    const depth = place(top, 0, 1, 0, bars);
    element.style.height = `${depth * ROW_PX}px`;
    replace(element, ...bars);
  };
  const place = (node: IcicleNode, left: number, width: number, depth: number, out: HTMLElement[]): number => {
    out.push(bar(node, left, width, depth));
    let at = left;
    let deepest = depth + 1;
    for (const child of node.children) {
      const share = node.bytes > 0 ? (child.bytes / node.bytes) * width : 0;
      if (share >= LEAST_SHARE) deepest = Math.max(deepest, place(child, at, share, depth + 1, out));
      at += share;
    }
    return deepest;
  };
  const bar = (node: IcicleNode, left: number, width: number, depth: number): HTMLElement => {
    const text = `${formatBytes(node.bytes)}  ${node.label}`;
    const element_ = h(
      'button',
      {
        type: 'button',
        title: `${node.label}\n${formatBytes(node.bytes)}, ${formatShare(node.bytes, root.bytes)} of all`
      },
      text
    );
    element_.style.left = `${left * 100}%`;
    element_.style.width = `${width * 100}%`;
    element_.style.top = `${depth * ROW_PX}px`;
    const band = session.banding.bands.find(candidate => node.group !== null && candidate.groups.includes(node.group));
    const colour = band === undefined ? colours.other : toneColour(band.tone, colours);
    const tint = depth === 0 ? colours.grid : colour;
    element_.style.background = `color-mix(in srgb, ${tint} 26%, ${colours.background})`;
    element_.style.borderInlineStart = `3px solid ${tint}`;
    element_.addEventListener('click', () => show(node === root || depth === 0 ? root : node));
    element_.addEventListener('pointerenter', () =>
      session.setEmphasis(node.group === null ? null : new Set([node.group]))
    );
    element_.addEventListener('pointerleave', () => session.setEmphasis(null));
    return element_;
  };
  show(root);
  return element;
}
