/** The ledger of the notebook in front: what is alive by the cell that made it, and the measured runs. */

import { formatAge, formatBytes } from '../format';
import type { AliveOnDevice, AliveRow, CellEntry, KernelNumbers } from '../kernelNumbers';
import { bytesText, type ViewContext } from './context';
import {
  button,
  element,
  type ItemView,
  KeyedList,
  setAttribute,
  setHidden,
  setSentence,
  setText,
  uniqueId
} from './dom';
import { FoldedList } from './foldedList';

/** Of each list; the rest at a click. */
const SHOWN_CELLS = 5;

/** Brings a cell into view. */
export type Jump = (cellId: string) => void;

/** "In [7]" as a button that jumps to the cell, and the cell's first line of code behind it. */
class CellName {
  readonly node = element('span', 'gpumem-cell-name');

  constructor(
    private readonly _context: ViewContext,
    jump: Jump
  ) {
    this._link = button('gpumem-link', '', null, () => jump(this._cellId ?? ''));
    this.node.append(this._link, this._line);
  }

  set(title: string, cellId: string | null, line: string | null): void {
    this._cellId = cellId;
    setText(this._link, title);
    this._link.disabled = cellId === null;
    setAttribute(this._link, 'aria-label', cellId === null ? null : this._context.trans.__('Go to %1', title));
    setText(this._line, line ?? '');
    setAttribute(this._line, 'data-tip', line);
  }

  private readonly _link: HTMLButtonElement;
  private readonly _line = element('code', 'gpumem-code');
  private _cellId: string | null = null;
}

/** "losses[2], [1], [0]": several parts of one thing name it once. */
export function joinNames(names: readonly string[]): string {
  const rootOf = (name: string | undefined): string => name?.replace(/\[[^[\]]*\]$/, '') ?? '';
  return names
    .map((name, at) =>
      at > 0 && rootOf(name) !== name && rootOf(name) === rootOf(names[at - 1]) ? name.slice(rootOf(name).length) : name
    )
    .join(', ');
}

/** Memory that is alive and one cell made. */
class AliveView implements ItemView<AliveRow> {
  readonly node = element('li', 'gpumem-cell');

  constructor(
    private readonly _context: ViewContext,
    jump: Jump
  ) {
    this._name = new CellName(_context, jump);
    this.node.append(this._name.node, this._bytes, this._detail);
  }

  update(row: AliveRow): void {
    const { trans } = this._context;
    this._name.set(row.title ?? trans.__('Before, or by cells that were not measured'), row.cellId, row.line);
    setText(this._bytes, bytesText(this._context, row.bytes));
    const blocks = row.blocks ?? 0;
    const detail = [
      ...(blocks > 0 ? [trans._n('%1 block', '%1 blocks', blocks, blocks)] : []),
      ...(row.names.length > 0 ? [joinNames(row.names)] : []),
      ...(row.lastUsed ? [trans.__('last used in %1', row.lastUsed)] : [])
    ].join(' · ');
    setText(this._detail, detail);
    setAttribute(this._detail, 'data-tip', detail || null);
  }

  private readonly _name: CellName;
  private readonly _bytes = element('span', 'gpumem-value gpumem-bytes');
  private readonly _detail = element('span', 'gpumem-sub');
}

class AliveList implements ItemView<AliveOnDevice> {
  readonly node = element('div', 'gpumem-alive');

  constructor(
    private readonly _context: ViewContext,
    jump: Jump
  ) {
    const { trans } = _context;
    this._caption.id = uniqueId('alive');
    const rows = element('ol', 'gpumem-ledger');
    rows.setAttribute('role', 'list');
    rows.setAttribute('aria-labelledby', this._caption.id);
    this._rows = new FoldedList(
      rows,
      row => `${row.title} ${row.cellId}`,
      () => new AliveView(_context, jump),
      {
        more: count => trans._n('Show %1 more cell', 'Show %1 more cells', count, count),
        fewer: trans.__('Show fewer cells')
      }
    );
    this._unsure.dataset.tip = trans.__('Nobody reported the end of these tensors; they may be gone.');
    this.node.append(
      element('div', 'gpumem-list-head', this._caption, this._total),
      rows,
      this._rows.button,
      this._unsure
    );
  }

  update(device: AliveOnDevice): void {
    const { trans } = this._context;
    setText(this._caption, trans.__('Alive on %1, by the cell that made it', device.key));
    setText(this._total, device.total === null ? '' : bytesText(this._context, device.total));
    this._rows.sync(device.rows, SHOWN_CELLS);
    setHidden(this._unsure, device.unsure <= 0);
    setText(this._unsure, trans.__('and up to %1 that may be gone', bytesText(this._context, device.unsure)));
  }

  private readonly _rows: FoldedList<AliveRow>;
  private readonly _caption = element('span', 'gpumem-overline');
  private readonly _total = element('span', 'gpumem-value gpumem-bytes');
  private readonly _unsure = element('div', 'gpumem-sub');
}

/** One measured run. */
class RunView implements ItemView<CellEntry> {
  readonly node = element('li', 'gpumem-cell');

  constructor(
    private readonly _context: ViewContext,
    jump: Jump
  ) {
    this._name = new CellName(_context, jump);
    this.node.append(this._name.node, this._figures, this._note);
  }

  update(cell: CellEntry): void {
    const { trans } = this._context;
    const repeated = cell.runs !== null && cell.runs > 1 && cell.run !== null;
    const title = repeated ? trans.__('%1, run %2 of %3', cell.title, String(cell.run), String(cell.runs)) : cell.title;
    this._name.set(title, cell.cellId, cell.line);
    const { units } = this._context.model.settings;
    const figures = [
      ...(cell.peak === null ? [] : [trans.__('peak %1', formatBytes(cell.peak, units))]),
      ...(cell.stayed === null ? [] : [trans.__('stayed %1', formatBytes(cell.stayed, units))]),
      ...(cell.freed ? [trans.__('freed %1', formatBytes(cell.freed, units))] : []),
      ...(cell.seconds !== null && cell.seconds >= 1 ? [formatAge(cell.seconds)] : [])
    ];
    setText(this._figures, figures.join(' · ') || trans.__('n/a'));
    const notes = [...(cell.outcome && cell.outcome !== 'ok' ? [this._outcome(cell.outcome)] : []), cell.leak];
    const note = notes.filter(words => words !== null).join(' · ');
    setHidden(this._note, note === '');
    setSentence(this._note, note);
  }

  private _outcome(outcome: string): string {
    const { trans } = this._context;
    switch (outcome) {
      case 'error':
        return trans.__('ended with an error');
      case 'out of memory':
        return trans.__('out of memory');
      case 'interrupted':
        return trans.__('interrupted');
      default:
        return outcome;
    }
  }

  private readonly _name: CellName;
  private readonly _figures = element('span', 'gpumem-sub');
  private readonly _note = element('span', 'gpumem-note');
}

/** Each run of a cell that leaks repeats, with other numbers, what the run before it said: only the last one says it. */
export function tellLeaksOnce(newestFirst: readonly CellEntry[]): CellEntry[] {
  const told = new Set<string>();
  return newestFirst.map(cell => {
    const silent = cell.leak !== null && cell.cellId !== null && told.has(cell.cellId);
    if (cell.leak !== null && cell.cellId !== null) {
      told.add(cell.cellId);
    }
    return silent ? { ...cell, leak: null } : cell;
  });
}

export class CellsView {
  readonly node = element('div', 'gpumem-cells');

  constructor(
    private readonly _context: ViewContext,
    jump: Jump
  ) {
    const { trans } = _context;
    const alive = element('div', '');
    this._alive = new KeyedList(
      alive,
      device => device.key,
      () => new AliveList(_context, jump)
    );
    this._caption.id = uniqueId('runs');
    const runs = element('ol', 'gpumem-ledger gpumem-runs');
    runs.setAttribute('role', 'list');
    runs.setAttribute('aria-labelledby', this._caption.id);
    this._runs = new FoldedList(
      runs,
      ({ cell, at }) => `${at} ${cell.title}`,
      () => {
        const view = new RunView(_context, jump);
        return { node: view.node, update: ({ cell }) => view.update(cell) };
      },
      {
        more: count => trans._n('Show %1 more run', 'Show %1 more runs', count, count),
        fewer: trans.__('Show fewer runs')
      }
    );
    this._order = button('gpumem-tool', '', null, () => {
      this._byPeak = !this._byPeak;
      this._sort();
    });
    setText(this._caption, trans.__('Measured runs'));
    this._head.append(this._caption, this._order);
    this.node.append(alive, this._head, runs, this._runs.button);
  }

  /** @param numbers Null when the kernel sent none. */
  update(numbers: KernelNumbers | null): void {
    this._alive.sync((numbers?.alive ?? []).filter(device => device.rows.length > 0 || device.unsure > 0));
    this._entries = tellLeaksOnce(numbers?.cells ?? []);
    setHidden(this._head, this._entries.length === 0);
    setHidden(this._runs.parent, this._entries.length === 0);
    setHidden(this.node, this._entries.length === 0 && (numbers?.alive ?? []).length === 0);
    this._sort();
  }

  private _sort(): void {
    const { trans } = this._context;
    setText(this._order, this._byPeak ? trans.__('highest first') : trans.__('newest first'));
    const other = this._byPeak ? trans.__('Sort by time, newest first') : trans.__('Sort by peak, highest first');
    setAttribute(this._order, 'aria-label', `${this._order.textContent}. ${other}`);
    // Counted from the oldest, so that a run keeps its row when newer ones come.
    const numbered = this._entries.map((cell, at) => ({ cell, at: this._entries.length - at }));
    if (this._byPeak) {
      numbered.sort((a, b) => (b.cell.peak ?? -1) - (a.cell.peak ?? -1) || b.at - a.at);
    }
    this._runs.sync(numbered, SHOWN_CELLS);
  }

  private readonly _alive: KeyedList<AliveOnDevice>;
  private readonly _runs: FoldedList<{ cell: CellEntry; at: number }>;
  private readonly _head = element('div', 'gpumem-list-head');
  private readonly _caption = element('span', 'gpumem-overline');
  private readonly _order: HTMLButtonElement;
  private _entries: CellEntry[] = [];
  private _byPeak = false;
}
