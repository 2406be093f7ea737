/** Which cards the user folded or unfolded, remembered by the browser; nothing else is written there. */

const KEY = 'gpumem-magic:folds';

export class Folds {
  /** @param _storage Null where the browser keeps nothing (private windows, blocked storage). */
  constructor(private readonly _storage: Pick<Storage, 'getItem' | 'setItem'> | null) {
    try {
      const kept: unknown = JSON.parse(_storage?.getItem(KEY) ?? '{}');
      if (typeof kept === 'object' && kept !== null) {
        this._chosen = new Map(Object.entries(kept).filter(entry => typeof entry[1] === 'boolean'));
      }
    } catch {
      // What an older version or another program left there is not worth a word; it is overwritten.
    }
  }

  /** The user's choice for a card: true is unfolded; undefined when none was made. */
  get(card: string): boolean | undefined {
    return this._chosen.get(card);
  }

  set(card: string, unfolded: boolean): void {
    this._chosen.set(card, unfolded);
    try {
      this._storage?.setItem(KEY, JSON.stringify(Object.fromEntries(this._chosen)));
    } catch {
      // Storage is full: the choice holds until the page is reloaded.
    }
  }

  private _chosen = new Map<string, boolean>();
}

/** The browser's storage, or null where touching it is forbidden. */
export function browserStorage(): Storage | null {
  try {
    return window.localStorage;
  } catch {
    return null;
  }
}
