/** Light or dark, and the colours that go with it: the host's own where it names them. */

import { type Colours, DARK, LIGHT, parseColour } from '../draw/palette';

/** Relative luminance of a computed `rgb()`/`rgba()` colour; null for a transparent or unknown one. */
export function luminanceOf(colour: string): number | null {
  const parts = parseColour(colour);
  if (parts === null || parts[3] === 0) return null;
  const [r, g, b] = parts.slice(0, 3).map(v => {
    const share = v / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Whether the surroundings of an element are dark: by the first ancestor that paints a background. */
export function isDark(element: Element): boolean {
  let at: Element | null = element;
  while (at !== null) {
    const luminance = luminanceOf(getComputedStyle(at).backgroundColor);
    if (luminance !== null) return luminance < 0.35;
    const root: Node = at.getRootNode();
    at = at.parentElement ?? (root instanceof ShadowRoot ? root.host : null);
  }
  return typeof matchMedia === 'function' && matchMedia('(prefers-color-scheme: dark)').matches;
}

/** The palette for what `root` computes to; the canvas takes ground and text from the page. */
export function coloursOf(root: HTMLElement, dark: boolean): Colours {
  const base = dark ? DARK : LIGHT;
  const style = getComputedStyle(root);
  const ground = luminanceOf(style.backgroundColor) === null ? base.background : style.backgroundColor;
  return { ...base, background: ground, foreground: style.color || base.foreground };
}

/** Calls `onChange` when the page's theme may have changed. Returns what ends the watch. */
export function watchTheme(onChange: () => void): () => void {
  const observer = new MutationObserver(onChange);
  const options = {
    attributes: true,
    attributeFilter: ['class', 'style', 'theme', 'data-theme', 'data-jp-theme-light', 'data-jp-theme-name']
  };
  observer.observe(document.documentElement, options);
  observer.observe(document.body, options);
  const media = typeof matchMedia === 'function' ? matchMedia('(prefers-color-scheme: dark)') : null;
  media?.addEventListener('change', onChange);
  return () => {
    observer.disconnect();
    media?.removeEventListener('change', onChange);
  };
}
