/** A table whose rows point at bands of the picture: hover or focus stresses them, click keeps them stressed. */

import { type Colours, toneColour } from '../draw/palette';
import { formatBytes } from '../format';
import type { Session } from '../session';
import { bdi, button, h } from './dom';
import { copyText } from './save';

export interface Cell {
  text: string;
  /** Exact value for whoever points at it. */
  title?: string;
  strong?: boolean;
}

export interface TableRow {
  group: number | null;
  label: string;
  source: string | null;
  /** Why a line is unknown. */
  note: string | null;
  cell: string | null;
  cells: Cell[];
  /** 0 to 1: length of the bar. */
  bar: number;
}

export interface TableSpec {
  caption: string;
  heads: string[];
  rows: TableRow[];
  total: { label: string; cells: Cell[] };
}

export function tableText(spec: TableSpec): string {
  const line = (parts: string[]): string => parts.map(part => part.replaceAll('\t', ' ')).join('\t');
  return [
    line([...spec.heads, 'where', 'source']),
    ...spec.rows.map(row => line(rowParts(row))),
    line([...spec.total.cells.map(cell => cell.text), spec.total.label, ''])
  ].join('\n');
}

function rowParts(row: TableRow): string[] {
  return [
    ...row.cells.map(cell => cell.text),
    row.cell === null ? row.label : `${row.cell} ${row.label}`,
    row.source ?? ''
  ];
}

export function drawTable(session: Session, spec: TableSpec, colours: Colours, pinned: Set<number>): HTMLTableElement {
  const sourced = spec.rows.some(row => row.source !== null);
  const rows = spec.rows.map(row => tableRow(session, row, colours, pinned, sourced));
  if (rows[0] !== undefined) rows[0].tabIndex = 0;
  const body = h('tbody', {}, ...rows);
  body.addEventListener('keydown', event => moveFocus(event, rows));
  return h(
    'table',
    { role: 'grid', class: sourced ? null : 'plain' },
    h('caption', { class: 'sr' }, spec.caption),
    h(
      'thead',
      {},
      h(
        'tr',
        {},
        ...spec.heads.map(head => h('th', { class: 'n', scope: 'col' }, head)),
        h('th', { class: 'bar', 'aria-hidden': 'true' }),
        h('th', { scope: 'col' }, 'where'),
        sourced ? h('th', { scope: 'col' }, 'source') : null
      )
    ),
    body,
    h(
      'tfoot',
      {},
      h(
        'tr',
        {},
        ...spec.total.cells.map(numberCell),
        h('td', { class: 'bar', 'aria-hidden': 'true' }),
        h('td', { colspan: 2 }, spec.total.label)
      )
    )
  );
}

function numberCell(cell: Cell): HTMLElement {
  return h('td', { class: cell.strong === true ? 'n strong' : 'n', title: cell.title }, cell.text);
}

function tableRow(
  session: Session,
  row: TableRow,
  colours: Colours,
  pinned: Set<number>,
  sourced: boolean
): HTMLTableRowElement {
  const { group } = row;
  const colour = colourOf(session, group, colours);
  const swatch = h('span', { class: 'swatch', 'aria-hidden': 'true' });
  swatch.style.background = colour;
  const bar = h('i', { 'aria-hidden': 'true' });
  bar.style.width = `${Math.max(0, Math.min(1, row.bar)) * 100}%`;
  bar.style.background = colour;
  const copy = button('copy', () => void copyText(rowParts(row).join('\t'), element), {
    class: 'copy',
    tabindex: -1,
    title: 'Copy the row (Ctrl+C)'
  });
  const element = h(
    'tr',
    { tabindex: -1, 'aria-selected': String(group !== null && pinned.has(group)) },
    ...row.cells.map(numberCell),
    h('td', { class: 'bar', 'aria-hidden': 'true' }, bar),
    h(
      'td',
      { class: 'where', title: row.label },
      swatch,
      row.cell === null ? null : bdi(`${row.cell} `, 'muted'),
      bdi(row.label),
      row.note === null ? null : bdi(` ${row.note}`, 'muted')
    ),
    sourced
      ? h('td', { class: 'source', title: row.source }, row.source === null ? null : bdi(row.source, 'code'))
      : null
  );
  copy.style.float = 'inline-end';
  element.lastElementChild?.prepend(copy);
  const stress = (on: boolean): void => {
    const groups = on && group !== null ? new Set([group, ...pinned]) : pinned.size > 0 ? new Set(pinned) : null;
    session.setEmphasis(groups);
  };
  const pin = (): void => {
    if (group === null) return;
    if (!pinned.delete(group)) pinned.add(group);
    element.setAttribute('aria-selected', String(pinned.has(group)));
    stress(pinned.has(group));
  };
  element.addEventListener('pointerenter', () => stress(true));
  element.addEventListener('pointerleave', () => stress(false));
  element.addEventListener('focus', () => stress(true));
  element.addEventListener('blur', () => stress(false));
  element.addEventListener('click', event => {
    if (event.target !== copy) pin();
  });
  element.addEventListener('keydown', event => {
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      pin();
    } else if (event.key === 'c' && (event.ctrlKey || event.metaKey) && String(getSelection() ?? '') === '') {
      void copyText(rowParts(row).join('\t'), element);
    }
  });
  return element;
}

function moveFocus(event: KeyboardEvent, rows: readonly HTMLTableRowElement[]): void {
  const at = rows.indexOf(event.target as HTMLTableRowElement);
  const step = { ArrowDown: 1, ArrowUp: -1, Home: -rows.length, End: rows.length }[event.key];
  if (at < 0 || step === undefined) return;
  event.preventDefault();
  const next = rows[Math.min(rows.length - 1, Math.max(0, at + step))] as HTMLTableRowElement;
  for (const row of rows) row.tabIndex = row === next ? 0 : -1;
  next.focus();
}

function colourOf(session: Session, group: number | null, colours: Colours): string {
  if (group === null) return 'transparent';
  const band = session.banding.bands.find(candidate => candidate.groups.includes(group));
  return band === undefined ? colours.unknown : toneColour(band.tone, colours);
}

export function bytesCell(bytes: number, strong = false): Cell {
  return { text: formatBytes(bytes), title: `${bytes.toLocaleString('en')} bytes`, strong };
}
