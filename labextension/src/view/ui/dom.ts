/** Elements from data. Text always goes in as text: nothing that came from a cell, a path or a device is parsed. */

type Child = Node | string | null | undefined | false;
type Attributes = Record<string, string | number | boolean | null | undefined>;

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? '' : String(value));
  }
  append(element, children);
  return element;
}

export function append(element: Element, children: readonly Child[]): void {
  for (const child of children) if (child !== null && child !== undefined && child !== false) element.append(child);
}

/** Bubbles from where the focus was and nothing of its name is left, for whoever knows a better place than the page. */
export const FOCUS_LOST = 'gpumem-focus-lost';

/**
 * Put children in the place of those that are there. The focus stays on what has the same name: who works by keys must
 * not be thrown to the top of the page by what the key just did.
 */
export function replace(element: Element, ...children: Child[]): void {
  const { activeElement } = element.getRootNode() as Document | ShadowRoot;
  const focused = activeElement instanceof HTMLElement && activeElement !== element && element.contains(activeElement);
  const places = focused ? placesOf(element, activeElement) : null;
  element.replaceChildren();
  append(element, children);
  if (!focused || places === null) return;
  const kept = activeElement.isConnected ? activeElement : sameAs(element, activeElement, places);
  if (kept === undefined) element.dispatchEvent(new CustomEvent(FOCUS_LOST, { bubbles: true }));
  else kept.focus({ preventScroll: true });
}

const nameOf = (element: Element): string =>
  (element.getAttribute('data-name') ?? element.getAttribute('aria-label') ?? element.textContent ?? '').replace(
    /^[▸▾] /,
    ''
  );

const likeIt = (one: HTMLElement): ((peer: HTMLElement) => boolean) => {
  const role = one.getAttribute('role');
  return peer => peer.getAttribute('role') === role;
};

interface Places {
  /** Among all of its kind, and among those of its name ("copy"). */
  ofKind: number;
  ofName: number;
}

function placesOf(element: Element, one: HTMLElement): Places {
  const kind = [...element.querySelectorAll<HTMLElement>(one.tagName)].filter(likeIt(one));
  const named = kind.filter(peer => nameOf(peer) === nameOf(one));
  return { ofKind: kind.indexOf(one), ofName: named.indexOf(one) };
}

/** What has its name, or is for the same (numbers change: "Here (1.20 s)"); of rows, and beside what is now off, a peer. */
function sameAs(element: Element, gone: HTMLElement, places: Places): HTMLElement | undefined {
  const kind = [...element.querySelectorAll<HTMLElement>(gone.tagName)].filter(likeIt(gone));
  const on = kind.filter(peer => !peer.hasAttribute('disabled'));
  const named = on.filter(peer => nameOf(peer) === nameOf(gone));
  const found =
    named[Math.min(places.ofName, named.length - 1)] ?? on.find(peer => gone.title !== '' && peer.title === gone.title);
  if (found !== undefined) return found;
  const isOff = kind.some(peer => peer.hasAttribute('disabled') && nameOf(peer) === nameOf(gone));
  return isOff || gone.tagName === 'TR' ? on[Math.min(places.ofKind, on.length - 1)] : undefined;
}

/** "model.py:22 forward": a place in code. */
const PLACE = /:\d+(?: |$)/;

/**
 * Text of unknown script and direction, kept from turning its surroundings around. Code, and a place in it, runs from
 * left to right, as in an editor, whatever script its names are in: what is cut off is then its end.
 */
export function bdi(text: string, className = ''): HTMLElement {
  return h('bdi', { class: className || null, dir: className === 'code' || PLACE.test(text) ? 'ltr' : 'auto' }, text);
}

export function button(label: string, onClick: () => void, attributes: Attributes = {}): HTMLButtonElement {
  const element = h('button', { type: 'button', ...attributes }, label);
  element.addEventListener('click', onClick);
  return element;
}

/** A button that is on or off. */
export function toggle(
  label: string,
  pressed: boolean,
  onChange: (on: boolean) => void,
  attributes: Attributes = {}
): HTMLButtonElement {
  const element = button(
    label,
    () => {
      const on = element.getAttribute('aria-pressed') !== 'true';
      element.setAttribute('aria-pressed', String(on));
      onChange(on);
    },
    { 'aria-pressed': String(pressed), ...attributes }
  );
  return element;
}
