/**
 * The standalone HTML report: finds the document in the page (`#gpumem-document`, base64 of a gzip container) and
 * draws it into `#gpumem-report`. `gpumem_magic/report/html.py` writes the page; without scripts its static part
 * (`#gpumem-fallback`) is what one reads, and it stays when the view fails.
 */

import { View } from './view/view';

const THEMES = ['auto', 'light', 'dark'] as const;
type Theme = (typeof THEMES)[number];
/** Read by the page's own script before the first paint, so that a chosen theme never flashes. */
const THEME_KEY = 'gpumem-theme';

function decodeBase64(text: string): Uint8Array {
  // Newer browsers have it built in, several times as fast.
  const native = Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array };
  if (native.fromBase64 !== undefined) return native.fromBase64(text);
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

function storedTheme(): Theme {
  const { gpumemTheme } = document.documentElement.dataset;
  return gpumemTheme === 'light' || gpumemTheme === 'dark' ? gpumemTheme : 'auto';
}

function applyTheme(theme: Theme, host: HTMLElement, view: View): void {
  const { dataset } = document.documentElement;
  if (theme === 'auto') {
    delete dataset.gpumemTheme;
    delete host.dataset.gpumemTheme;
  } else {
    dataset.gpumemTheme = theme;
    host.dataset.gpumemTheme = theme;
  }
  try {
    localStorage.setItem(THEME_KEY, theme);
  } catch {
    // A page opened from disk may have no storage: the choice then lasts as long as the page.
  }
  view.refreshTheme();
}

function themeButton(host: HTMLElement, view: View): HTMLButtonElement {
  const button = document.createElement('button');
  button.type = 'button';
  button.style.cssText =
    'float:inline-end;margin-inline-start:12px;font:12px system-ui,sans-serif;padding:2px 8px;cursor:pointer;' +
    'background:none;color:inherit;border:1px solid currentColor;border-radius:5px';
  const label = (): void => {
    button.textContent = `theme: ${storedTheme()}`;
  };
  button.addEventListener('click', () => {
    applyTheme(THEMES[(THEMES.indexOf(storedTheme()) + 1) % THEMES.length] as Theme, host, view);
    label();
  });
  label();
  return button;
}

async function start(): Promise<void> {
  const host = document.getElementById('gpumem-report');
  const data = document.getElementById('gpumem-document');
  if (host === null || data === null) return;
  const theme = storedTheme();
  if (theme !== 'auto') host.dataset.gpumemTheme = theme;
  const view = new View(host, { standalone: true });
  // Hidden first: the page is laid out once, and does not flash its static part before the view.
  const fallback = document.getElementById('gpumem-fallback');
  if (fallback !== null) fallback.hidden = true;
  const drawn = await view.show(decodeBase64(data.textContent ?? ''));
  // The text is a third larger than the bytes and nobody reads it again.
  data.textContent = '';
  if (!drawn && fallback !== null) fallback.hidden = false;
  (document.querySelector('footer') ?? document.body.appendChild(document.createElement('footer'))).prepend(
    themeButton(host, view)
  );
}

void start();
