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

export function replace(element: Element, ...children: Child[]): void {
  element.replaceChildren();
  append(element, children);
}

/** Text of unknown script and direction, kept from turning its surroundings around. */
export function bdi(text: string, className = ''): HTMLElement {
  return h('bdi', { class: className || null, dir: 'auto' }, text);
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
