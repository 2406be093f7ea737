/** One value, or "n/a" with its reason on hover, on focus and for a screen reader. */

import type { ViewContext } from './context';
import { element, setAttribute, setText, spoken } from './dom';

export class Value {
  readonly node = element('span', 'gpumem-value');

  constructor(private readonly _context: ViewContext) {}

  set(text: string | null, reason: string | undefined): void {
    const missing = text === null;
    const { trans } = this._context;
    const why = reason ?? trans.__('The server gave no reason.');
    const words = `: ${spoken(why)}`;
    this.node.classList.toggle('gpumem-missing', missing);
    setAttribute(this.node, 'tabindex', missing ? '0' : null);
    setAttribute(this.node, 'data-tip', missing ? why : null);
    if (!missing) {
      setText(this.node, text);
    } else if (this.node.textContent !== `${trans.__('n/a')}${words}`) {
      this.node.replaceChildren(trans.__('n/a'), element('span', 'gpumem-spoken', words));
    }
  }
}
