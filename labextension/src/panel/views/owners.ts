/** The list under a bar: who holds how much, what can be done about it. It is the bar's legend, too. */

import { formatAge } from '../format';
import type { ProcessState } from '../protocol';
import { type Contexts, contextsBelow, type OwnerRow, ownerRows } from '../rows';
import type { Segment } from '../segments';
import { paint, segmentName } from './bar';
import { bytesText, type ViewContext } from './context';
import { button, element, type ItemView, KeyedList, setAttribute, setHidden, setText } from './dom';
import { FoldedList } from './foldedList';
import { kernelState } from './kernelState';
import { Value } from './value';

/** Foreign processes beyond this many are folded: a shared machine has dozens. */
const SHOWN_OTHERS = 5;
/** A kernel's own PID and its first workers; data loaders come by the dozen. */
const SHOWN_CHILDREN = 3;

/** A longer second line is cut off by the style sheet (two lines at 220 px), and told in full by the tooltip. */
const LONG_DETAIL = 56;

class OwnerView implements ItemView<OwnerRow> {
  readonly node = element('li', 'gpumem-row');

  constructor(private readonly _context: ViewContext) {
    const { actions, trans } = _context;
    this._bytes = new Value(_context);
    this._link = button('gpumem-link', '', null, () => actions.open(this._row?.kernelId ?? ''));
    this._more = button('gpumem-more', '⋯', null, () => {
      const pids = (this._row?.processes ?? []).map(process => process.pid).filter(pid => pid > 0);
      actions.menu(this._more, { kernelId: this._row?.kernelId ?? null, pids });
    });
    this._more.setAttribute('aria-haspopup', 'menu');
    this._bytes.node.classList.add('gpumem-bytes');
    this._swatch.setAttribute('aria-hidden', 'true');
    this._link.dataset.tip = trans.__('Open');
    const name = element('span', 'gpumem-name', this._link, this._plain);
    this.node.append(this._swatch, name, this._bytes.node, this._more, this._sub);
  }

  update(row: OwnerRow): void {
    this._row = row;
    const { model, trans } = this._context;
    paint(this._context, this._swatch, row);
    const title = this._title(row);
    const linked = (model.kernel(row.kernelId)?.notebooks.length ?? 0) > 0;
    setText(linked ? this._link : this._plain, title);
    setHidden(this._link, !linked);
    setHidden(this._plain, linked);
    this._bytes.set(row.bytes === null ? null : bytesText(this._context, row.bytes), row.reason);
    const detail = this._detail(row);
    setText(this._sub, detail);
    setAttribute(this._sub, 'data-tip', detail.length > LONG_DETAIL ? detail : null);
    const actionable = row.kernelId !== null || row.processes.some(process => process.pid > 0);
    setHidden(this._more, !actionable);
    setAttribute(this._more, 'aria-label', trans.__('Actions for %1', title));
  }

  private _title(row: OwnerRow): string {
    const { trans } = this._context;
    const process = row.processes[0];
    if (row.kind === 'kernel') {
      return segmentName(this._context, row);
    }
    if (process?.owner === 'server') {
      return trans.__('The Jupyter server itself');
    }
    if (process?.owner === 'orphan' && process.notebooks?.[0]) {
      return trans.__('Left by %1', process.notebooks.map(path => path.split('/').pop()).join(', '));
    }
    if (process?.owner === 'foreign' && process.pid === 0) {
      return trans.__('Processes of the host');
    }
    return process?.name ?? trans.__('PID %1', String(process?.pid ?? '?'));
  }

  /** The second line: PIDs, names, and what a tired person needs to know about this one. */
  private _detail(row: OwnerRow): string {
    return (row.kind === 'kernel' ? this._kernelDetail(row) : this._processDetail(row.processes[0])).join(' · ');
  }

  private _kernelDetail(row: OwnerRow): string[] {
    const { model, trans } = this._context;
    const more = row.processes.length - SHOWN_CHILDREN;
    const kernel = model.kernel(row.kernelId);
    const contexts = contextsBelow(row.processes, kernel?.pid ?? null);
    return [
      ...(contexts ? [this._contexts(contexts, row.processes.length)] : []),
      ...row.processes.slice(0, SHOWN_CHILDREN).flatMap(child => this._pid(child, row.processes.length > 1)),
      ...(row.processes.some(process => process.reported) ? [trans.__('by the kernel’s own report')] : []),
      ...(more > 0 ? [trans._n('%1 more process', '%1 more processes', more, more)] : []),
      ...(kernel?.executionState ? [kernelState(this._context, kernel)] : [])
    ];
  }

  private _contexts({ count, each }: Contexts, processes: number): string {
    const { trans } = this._context;
    const size = bytesText(this._context, each);
    return trans._n(
      '%1 of %3 processes has little more than a CUDA context (%2)',
      '%1 of %3 processes have little more than a CUDA context (about %2 each)',
      count, // which the texts call %1
      size,
      String(processes)
    );
  }

  private _processDetail(process: ProcessState | undefined): string[] {
    if (!process) {
      return [];
    }
    const { model, trans } = this._context;
    const ageUs = process.startedUs ? (model.state?.timeUs ?? 0) - process.startedUs : null;
    return [
      // Without a name the PID is the title.
      process.name === null || process.pid === 0 ? null : trans.__('PID %1', String(process.pid)),
      this._whose(process),
      process.name === null && process.owner !== 'foreign' ? process.missing.name : null,
      ageUs === null ? null : trans.__('running for %1', formatAge(ageUs / 1e6)),
      process.command === process.name ? null : process.command
    ].filter(word => typeof word === 'string');
  }

  private _whose(process: ProcessState): string | null {
    const { trans } = this._context;
    switch (process.owner) {
      case 'terminal':
        return process.terminal
          ? trans.__('from terminal %1', process.terminal)
          : trans.__('from a terminal of this server');
      case 'orphan':
        return trans.__('its kernel is gone');
      case 'foreign':
        return trans.__('numbered by the host: whose it is cannot be told here');
      default:
        return null;
    }
  }

  private _pid(process: ProcessState, withBytes: boolean): string[] {
    if (process.pid === 0) {
      return [];
    }
    const { trans } = this._context;
    const pid = trans.__('PID %1', String(process.pid));
    const name = process.name ? `${pid} ${process.name}` : pid;
    return [withBytes && process.used !== null ? `${name} ${bytesText(this._context, process.used)}` : name];
  }

  private readonly _bytes: Value;
  private readonly _link: HTMLButtonElement;
  private readonly _more: HTMLButtonElement;
  private readonly _plain = element('span', 'gpumem-plain');
  private readonly _swatch = element('span', 'gpumem-swatch');
  private readonly _sub = element('span', 'gpumem-sub');
  private _row: OwnerRow | null = null;
}

/** What no process of the list holds: not attributed, driver, free. */
class RestView implements ItemView<Segment> {
  readonly node = element('li', 'gpumem-row gpumem-rest');

  constructor(private readonly _context: ViewContext) {
    this._swatch.setAttribute('aria-hidden', 'true');
    this.node.append(this._swatch, this._name, this._bytes);
  }

  update(part: Segment): void {
    const { trans } = this._context;
    paint(this._context, this._swatch, part);
    setText(this._bytes, bytesText(this._context, part.bytes));
    const name = segmentName(this._context, part);
    if (part.kind !== 'unattributed') {
      setText(this._name, name);
    } else if (!this._name.hasAttribute('data-tip')) {
      const hint = trans.__(
        'Used, but by no process that is visible from here: one in another container, one that ended badly, or the driver’s own.'
      );
      this._name.replaceChildren(name, element('span', 'gpumem-spoken', `: ${hint}`));
      setAttribute(this._name, 'data-tip', hint);
      setAttribute(this._name, 'tabindex', '0');
    }
  }

  private readonly _swatch = element('span', 'gpumem-swatch');
  private readonly _name = element('span', 'gpumem-name');
  private readonly _bytes = element('span', 'gpumem-value gpumem-bytes');
}

export class OwnerList {
  readonly node = element('div', 'gpumem-owners');

  constructor(context: ViewContext) {
    const { trans } = context;
    const owners = element('ul', 'gpumem-rows');
    const rest = element('ul', 'gpumem-rows');
    for (const list of [owners, rest]) {
      // Safari drops the role of a list without bullets.
      list.setAttribute('role', 'list');
    }
    this._owners = new FoldedList(
      owners,
      row => row.key,
      () => new OwnerView(context),
      {
        more: count => trans._n('Show %1 more process', 'Show %1 more processes', count, count),
        fewer: trans.__('Show fewer processes')
      }
    );
    this._rest = new KeyedList(
      rest,
      part => part.kind,
      () => new RestView(context)
    );
    this.node.append(owners, this._owners.button, rest);
  }

  /** @param rest Parts of the bar that stand for no row of the list. */
  update(processes: readonly ProcessState[], rest: readonly Segment[]): void {
    const rows = ownerRows(processes);
    // They stand at the end.
    const others = rows.filter(row => row.kind === 'other').length;
    this._owners.sync(rows, rows.length - others + SHOWN_OTHERS);
    this.updateRest(rest);
  }

  /** Between two states only these change. */
  updateRest(rest: readonly Segment[]): void {
    this._rest.sync(rest);
  }

  private readonly _owners: FoldedList<OwnerRow>;
  private readonly _rest: KeyedList<Segment>;
}
