/**
 * One tooltip for the whole panel, by pointer and by keyboard: `data-tip` on a node is its text.
 *
 * A `title` attribute is not shown on focus, and a tooltip inside the panel would be cut off at its edge.
 */

import type { IDisposable } from '@lumino/disposable';
import { element, setSentence } from './dom';

export class Tip implements IDisposable {
  constructor(private readonly _root: HTMLElement) {
    this._node.setAttribute('role', 'tooltip');
    // What it says is in the accessible text of the node already.
    this._node.setAttribute('aria-hidden', 'true');
    this._node.hidden = true;
    for (const type of ['pointerover', 'focusin'] as const) {
      _root.addEventListener(type, this._onEnter);
    }
    for (const type of ['pointerleave', 'focusout', 'scroll', 'click'] as const) {
      _root.addEventListener(type, this._onLeave, true);
    }
    _root.addEventListener('keydown', this._onKey);
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    this._disposed = true;
    this._node.remove();
    for (const type of ['pointerover', 'focusin'] as const) {
      this._root.removeEventListener(type, this._onEnter);
    }
    for (const type of ['pointerleave', 'focusout', 'scroll', 'click'] as const) {
      this._root.removeEventListener(type, this._onLeave, true);
    }
    this._root.removeEventListener('keydown', this._onKey);
  }

  /** Show a text at a point of the page, in client coordinates. */
  show(text: string, x: number, y: number): void {
    if (!this._node.isConnected) {
      document.body.append(this._node);
    }
    setSentence(this._node, text);
    this._node.hidden = false;
    const { width, height } = this._node.getBoundingClientRect();
    const left = Math.max(4, Math.min(x - width / 2, window.innerWidth - width - 4));
    const top = y + height + 4 > window.innerHeight ? y - height - 24 : y;
    this._node.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  hide(): void {
    this._node.hidden = true;
  }

  private readonly _onEnter = (event: Event): void => {
    const target = event.target instanceof Element ? event.target.closest<HTMLElement>('[data-tip]') : null;
    const text = target?.dataset.tip;
    if (!target || !text) {
      this.hide();
      return;
    }
    const box = target.getBoundingClientRect();
    const x = event instanceof PointerEvent ? event.clientX : box.left + box.width / 2;
    this.show(text, x, box.bottom + 6);
  };

  private readonly _onLeave = (): void => this.hide();

  private readonly _onKey = (event: KeyboardEvent): void => {
    if (event.key === 'Escape') {
      this.hide();
    }
  };

  private readonly _node = element('div', 'gpumem-tip');
  private _disposed = false;
}
