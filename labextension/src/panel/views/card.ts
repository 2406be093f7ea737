/** A card that folds: title and figure always visible, the rest on demand. */

import type { Folds } from '../folds';
import { element, setAttribute, setText, uniqueId } from './dom';

export class Card {
  readonly node = element('section', 'gpumem-card');
  /** Always visible, under the title. */
  readonly summary = element('div', 'gpumem-summary');
  /** Visible when unfolded. */
  readonly body = element('div', 'gpumem-body');

  /** @param _key Under which the user's choice is remembered. */
  constructor(
    private readonly _folds: Folds,
    private readonly _key: string,
    expanded: boolean,
    /** What is hidden need not be drawn; now it is to be seen. */
    private readonly _unfolded: () => void
  ) {
    this._toggle.type = 'button';
    this.body.id = uniqueId('body');
    this._title.id = uniqueId('title');
    this._toggle.setAttribute('aria-controls', this.body.id);
    this.node.setAttribute('aria-labelledby', this._title.id);
    const caret = element('span', 'gpumem-caret');
    caret.setAttribute('aria-hidden', 'true');
    this._title.append(this._name, this._detail);
    this._toggle.append(caret, this._title, this._figure);
    this._toggle.addEventListener('click', () => {
      this.chosen = !this.expanded;
    });
    this.node.append(element('h3', 'gpumem-heading', this._toggle), this.summary, this.body);
    this._automatic = expanded;
    this._show();
  }

  get expanded(): boolean {
    return this._folds.get(this._key) ?? this._automatic;
  }

  /** What the user chose; it holds against everything automatic. */
  set chosen(value: boolean) {
    this._folds.set(this._key, value);
    this._show();
    if (value) {
      this._unfolded();
    }
  }

  /** Unfold by ourselves when it became interesting, and never fold under the reader's eyes. */
  suggest(): void {
    if (!this._automatic) {
      this._automatic = true;
      this._show();
    }
  }

  setTitle(name: string, detail: string): void {
    setText(this._name, name);
    setText(this._detail, detail);
    setAttribute(this._title, 'data-tip', detail ? `${name} · ${detail}` : null);
  }

  setFigure(text: string): void {
    setText(this._figure, text);
  }

  private _show(): void {
    setAttribute(this._toggle, 'aria-expanded', String(this.expanded));
    this.body.hidden = !this.expanded;
  }

  private readonly _toggle = element('button', 'gpumem-toggle');
  private readonly _title = element('span', 'gpumem-title');
  private readonly _name = element('span', 'gpumem-title-name');
  private readonly _detail = element('span', 'gpumem-title-detail');
  private readonly _figure = element('span', 'gpumem-figure');
  private _automatic: boolean;
}
