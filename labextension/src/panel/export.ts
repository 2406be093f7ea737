/** What can be taken out of the panel: its history as CSV, and itself as one HTML file. */

import type { MonitorModel } from './model';
import type { Series } from './series';

function quoted(text: string): string {
  // A leading =, +, - or @ would be run as a formula by spreadsheets.
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

interface Curve {
  about: (string | number)[];
  memory: Series;
  utilization: Series | null;
  total: number | null;
}

function curves(model: MonitorModel): Curve[] {
  const host = model.state?.host;
  return [
    ...model.devices.map(device => ({
      about: [device.index, device.uuid ?? '', device.name ?? ''],
      ...model.historyOf(device),
      total: device.memoryTotal
    })),
    // Without an index: it is no device. On a machine without one it is all there is.
    { about: ['', 'host', host?.name ?? ''], memory: model.host, utilization: null, total: host?.memoryTotal ?? null }
  ];
}

/** Column names are those of `gpumem-magic log`, as far as the history holds them; an unknown value is empty. */
export function historyCsv(model: MonitorModel): string {
  const lines = ['time_utc,index,uuid,name,used_bytes,total_bytes,utilization_percent'];
  for (const { about, memory, total, utilization } of curves(model)) {
    const busy = new Map([...(utilization?.entries() ?? [])].map(entry => [entry.timeUs, entry.value]));
    const name = about.map(word => quoted(String(word))).join(',');
    for (const { timeUs, value } of memory.entries()) {
      const percent = busy.get(timeUs) ?? null;
      if (value !== null || percent !== null) {
        const time = new Date(timeUs / 1000).toISOString();
        lines.push(`${time},${name},${value ?? ''},${total ?? ''},${percent ?? ''}`);
      }
    }
  }
  return `${lines.join('\n')}\n`;
}

/** Our own style rules as text. */
function ownRules(): string {
  const rules: string[] = [];
  for (const sheet of document.styleSheets) {
    let list: CSSRuleList;
    try {
      list = sheet.cssRules;
    } catch {
      continue; // a sheet of another origin may not be read, and is not ours
    }
    rules.push(...[...list].map(rule => rule.cssText).filter(text => text.includes('gpumem-')));
  }
  return rules.join('\n');
}

/** The theme's variables that the rules use, with the values that they have now. */
function themeVariables(rules: string): string {
  const style = getComputedStyle(document.body);
  const names = new Set([...rules.matchAll(/var\((--(?:jp|md)-[\w-]+)/g)].map(match => match[1] ?? ''));
  return [...names].map(name => `${name}:${style.getPropertyValue(name)}`).join(';');
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
}

/** The panel as it stands, unfolded, without scripts and without requests. */
export function panelHtml(panel: HTMLElement, title: string, timeUs: number): string {
  const copy = panel.cloneNode(true) as HTMLElement;
  const when = new Date(timeUs / 1000).toISOString();
  // The application's layout sets position and size here.
  copy.removeAttribute('style');
  for (const node of copy.querySelectorAll(
    '.gpumem-tool,.gpumem-more,.gpumem-all,.gpumem-copy,.gpumem-cursor,.gpumem-caret'
  )) {
    node.remove();
  }
  for (const node of copy.querySelectorAll('.gpumem-status')) {
    node.removeAttribute('data-kind');
    node.textContent = when;
  }
  for (const node of copy.querySelectorAll<HTMLElement>('.gpumem-body,.gpumem-rows > li,.gpumem-ledger > li')) {
    node.hidden = false;
  }
  for (const node of copy.querySelectorAll<HTMLElement>('[data-tip]')) {
    node.title = node.dataset.tip ?? '';
    node.removeAttribute('tabindex');
  }
  for (const node of copy.querySelectorAll('button')) {
    const plain = document.createElement('span');
    plain.className = node.className;
    plain.append(...node.childNodes);
    plain.hidden = node.hidden;
    node.replaceWith(plain);
  }
  const rules = ownRules();
  const light = document.body.dataset.jpThemeLight !== 'false';
  return [
    '<!DOCTYPE html>',
    '<html><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
    `<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">`,
    `<title>${escaped(title)} ${when}</title>`,
    `<style>:root{${themeVariables(rules)};font:13px system-ui,sans-serif}`,
    'body{margin:0 auto;max-width:1100px;background:var(--jp-layout-color1)}',
    rules.replaceAll('</', '<\\/'),
    '.gpumem-panel{height:auto}.gpumem-status::before{display:none}',
    '</style></head>',
    `<body data-jp-theme-light="${light}">${copy.outerHTML}</body></html>\n`
  ].join('\n');
}

/** Let the browser save a text as a file. */
export function download(name: string, type: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  // The download has its own reference by then; a minute is far more than it needs.
  window.setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
