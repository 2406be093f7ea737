/** The few lines of DOM that every view needs: build once, then change only what differs. */

export function element<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  className: string,
  ...children: (Node | string)[]
): HTMLElementTagNameMap[Tag] {
  const node = document.createElement(tag);
  node.className = className;
  node.append(...children);
  return node;
}

export function setText(node: Node, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

const sentences = new WeakMap<Node, string>();

/** A sentence as text without the backquotes around its code, for where there is only text. */
export function spoken(sentence: string): string {
  return sentence.replace(/`([^`]+)`/g, '$1');
}

/** So many characters of code fit a line of the narrowest panel: they stay together, as `--gpus all` should. */
const WHOLE = 20;

/** Code that a narrow column breaks where a reader would, not within a word. */
function breakable(code: string): (Node | string)[] {
  return code
    .split(/(?<=[._,;:=/([{])(?=[^\s)\]}])/)
    .flatMap((part, at) => (at === 0 ? [part] : [document.createElement('wbr'), part]));
}

/** A sentence whose backquoted parts are code. */
export function setSentence(node: HTMLElement, sentence: string): void {
  if (sentences.get(node) === sentence) {
    return;
  }
  sentences.set(node, sentence);
  const parts = sentence.split(/`([^`]+)`/);
  // Code may be of any script: its direction must not turn the words around it.
  const nodes = parts.map((part, at) =>
    at % 2 === 0
      ? part
      : element(
          'code',
          part.length <= WHOLE ? 'gpumem-quoted gpumem-whole' : 'gpumem-quoted',
          element('bdi', '', ...breakable(part))
        )
  );
  node.replaceChildren(...nodes.filter(part => part !== ''));
}

/** Set an attribute, or remove it with null. */
export function setAttribute(node: Element, name: string, value: string | null): void {
  if (node.getAttribute(name) === value) {
    return;
  }
  if (value === null) {
    node.removeAttribute(name);
  } else {
    node.setAttribute(name, value);
  }
}

export function setHidden(node: HTMLElement, hidden: boolean): void {
  if (node.hidden !== hidden) {
    node.hidden = hidden;
  }
}

/** A button that looks like its content; `label` is what a screen reader says where the content is an icon. */
export function button(
  className: string,
  content: Node | string,
  label: string | null,
  act: () => void
): HTMLButtonElement {
  const node = element('button', className, content);
  node.type = 'button';
  setAttribute(node, 'aria-label', label);
  node.addEventListener('click', act);
  return node;
}

let ids = 0;

/** An id for aria references, unique in the page. */
export function uniqueId(name: string): string {
  ids += 1;
  return `gpumem-${name}-${ids}`;
}

export interface ItemView<Item> {
  readonly node: HTMLElement;
  update(item: Item): void;
}

/** Children of one node, one view an item: views live as long as their key, and move only when the order changes. */
export class KeyedList<Item> {
  constructor(
    readonly parent: HTMLElement,
    private readonly _keyOf: (item: Item) => string,
    private readonly _create: (item: Item) => ItemView<Item>
  ) {}

  get views(): IterableIterator<ItemView<Item>> {
    return this._views.values();
  }

  sync(items: readonly Item[]): void {
    const wanted = new Set(items.map(this._keyOf));
    for (const [key, view] of this._views) {
      if (!wanted.has(key)) {
        view.node.remove();
        this._views.delete(key);
      }
    }
    const focused = this.parent.contains(document.activeElement) ? (document.activeElement as HTMLElement) : null;
    let at: Element | null = this.parent.firstElementChild;
    for (const item of items) {
      const key = this._keyOf(item);
      let view = this._views.get(key);
      if (!view) {
        view = this._create(item);
        this._views.set(key, view);
      }
      view.update(item);
      if (view.node === at) {
        at = at.nextElementSibling;
      } else {
        this.parent.insertBefore(view.node, at);
      }
    }
    // A node that is moved loses the focus, and whoever works by keyboard the place.
    if (focused && focused !== document.activeElement && focused.isConnected) {
      focused.focus({ preventScroll: true });
    }
  }

  private readonly _views = new Map<string, ItemView<Item>>();
}
