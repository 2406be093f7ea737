/** A list of which only the first rows show until asked for the rest: what scrolls in a scrolling panel cuts a row. */

import { button, type ItemView, KeyedList, setAttribute, setHidden, setText } from './dom';

/** What the button says. */
export interface FoldWords {
  more(count: number): string;
  fewer: string;
}

export class FoldedList<Item> {
  /** Belongs under `parent`. */
  readonly button: HTMLButtonElement;

  constructor(
    readonly parent: HTMLElement,
    keyOf: (item: Item) => string,
    create: (item: Item) => ItemView<Item>,
    private readonly _words: FoldWords
  ) {
    this._list = new KeyedList(parent, keyOf, create);
    this.button = button('gpumem-link gpumem-all', '', null, () => {
      this._expanded = !this._expanded;
      this._fold();
    });
  }

  /** @param shown How many show while folded. One row more is not worth a button. */
  sync(items: readonly Item[], shown: number): void {
    this._list.sync(items);
    this._shown = items.length > shown + 1 ? shown : items.length;
    this._fold();
  }

  /** Rows that are folded away stay in the page, so that an export can show them. */
  private _fold(): void {
    const rows = [...this.parent.children] as HTMLElement[];
    const folded = rows.length - this._shown;
    for (const [at, node] of rows.entries()) {
      setHidden(node, at >= this._shown && !this._expanded);
    }
    setHidden(this.button, folded === 0);
    setAttribute(this.button, 'aria-expanded', String(this._expanded));
    setText(this.button, this._expanded ? this._words.fewer : this._words.more(folded));
  }

  private readonly _list: KeyedList<Item>;
  private _shown = 0;
  private _expanded = false;
}
