/** A memory bar: one part a notebook in its colour, then what others hold, the driver, what nobody owns, and free. */

import type { Bar, Segment } from '../segments';
import { bytesText, type ViewContext } from './context';
import { element, type ItemView, KeyedList, setAttribute } from './dom';

/** What a part is called, for people. */
export function segmentName(context: ViewContext, part: Pick<Segment, 'kind' | 'kernelId'>): string {
  const { model, trans } = context;
  switch (part.kind) {
    case 'kernel':
      return model.labels.get(part.kernelId ?? '') ?? trans.__('A kernel of this server');
    case 'terminal':
      return trans.__('Terminals and the server');
    case 'orphan':
      return trans.__('Left by kernels that are gone');
    case 'other':
      return trans.__('Other processes');
    case 'driver':
      return trans.__('Driver');
    case 'unattributed':
      return trans.__('Not attributed');
    case 'untold':
      return trans.__('Not told per process');
    case 'host':
      return trans.__('Other programs');
    case 'free':
      return trans.__('Free');
  }
}

/** Colour of a part, as the style sheet knows it. */
export function paint(context: ViewContext, node: HTMLElement, part: Pick<Segment, 'kind' | 'kernelId'>): void {
  const color = part.kind === 'kernel' ? String(context.model.palette.colorOf(part.kernelId ?? '')) : null;
  setAttribute(node, 'data-kind', part.kind);
  setAttribute(node, 'data-color', color);
}

class Part implements ItemView<Segment & { share: number }> {
  readonly node = element('div', 'gpumem-part');

  constructor(private readonly _context: ViewContext) {}

  update(part: Segment & { share: number }): void {
    paint(this._context, this.node, part);
    const width = `${(part.share * 100).toFixed(2)}%`;
    if (this.node.style.width !== width) {
      this.node.style.width = width;
    }
    setAttribute(this.node, 'data-tip', `${segmentName(this._context, part)}: ${bytesText(this._context, part.bytes)}`);
  }
}

export class BarView {
  readonly node = element('div', 'gpumem-bar');

  constructor(private readonly _context: ViewContext) {
    this.node.setAttribute('role', 'img');
    this._parts = new KeyedList(
      this.node,
      part => `${part.kind} ${part.kernelId ?? ''}`,
      () => new Part(_context)
    );
  }

  update(bar: Bar | null): void {
    this.node.classList.toggle('gpumem-unknown', bar === null);
    const shares = (bar?.segments ?? []).map(part => ({ ...part, share: part.bytes / (bar?.whole || 1) }));
    this._parts.sync(shares);
    const spoken = shares.map(part => `${segmentName(this._context, part)}: ${bytesText(this._context, part.bytes)}`);
    setAttribute(this.node, 'aria-label', spoken.join('; ') || this._context.trans.__('Memory: unknown'));
  }

  private readonly _parts: KeyedList<Segment & { share: number }>;
}
