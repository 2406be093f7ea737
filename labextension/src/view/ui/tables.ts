/** The tables under the picture: at the peak, stayed, here, this stretch. They are the picture's accessible twin. */

import { goButton } from '../cells/jump';
import type { Held, Row } from '../document';
import type { Colours } from '../draw/palette';
import { formatBytes, formatCount, formatShare } from '../format';
import { type IcicleNode, liveTree } from '../model/icicle';
import { sumRange } from '../model/live';
import type { Session } from '../session';
import { allocationCard } from './card';
import { lengthText, momentText } from './describe';
import { bdi, button, h, replace, toggle } from './dom';
import { withCode } from './header';
import { icicle } from './icicle';
import { bytesCell, drawTable, type TableRow, type TableSpec, tableText } from './rows';
import { treeTable, treeText } from './treetable';

export type Tab = 'peak' | 'stayed' | 'here' | 'range';

/** A tab that another room fills. It owns its element, and is told when it is on screen. */
export interface ExtraTab {
  readonly name: string;
  readonly label: string;
  readonly title: string;
  readonly element: HTMLElement;
  /** A click in the picture moves it, instead of opening the "Here" table. */
  readonly followsHere: boolean;
  /** There is something to show for the device that is looked at. */
  available(): boolean;
  /** The tab is on screen: for the first time, or after the session or the theme changed. */
  show(colours: Colours): void;
  /** What "copy the table" gives. */
  text(): string;
}

let nextId = 0;

/** What was sampled has no blocks. */
const blocksText = (count: number): string => (count === 0 ? '' : formatCount(count));

/** Owner → "held by losses[0] and 2 more". */
export function holderTexts(held: readonly Held[]): Map<number, string> {
  const paths = new Map<number, string[]>();
  for (const row of held) paths.set(row.group, [...(paths.get(row.group) ?? []), row.path]);
  return new Map(
    [...paths].map(([group, all]) => [group, `held by ${all[0]}${all.length > 1 ? ` and ${all.length - 1} more` : ''}`])
  );
}

export class Tables {
  readonly element = h('section');
  tab: Tab | ExtraTab = 'peak';
  readonly #session: Session;
  readonly #tabs = h('div', { class: 'tabs', role: 'tablist', 'aria-label': 'Tables' });
  readonly #panel: HTMLElement;
  readonly #pinned = new Set<number>();
  readonly #id = `gm-panel-${nextId++}`;
  #asTree = false;
  #tree: IcicleNode | null = null;
  #spec: TableSpec | null = null;
  #colours: Colours;
  readonly #extras: readonly ExtraTab[];

  constructor(session: Session, colours: Colours, extras: readonly ExtraTab[] = []) {
    this.#session = session;
    this.#colours = colours;
    this.#extras = extras;
    this.#panel = h('div', { class: 'panel', role: 'tabpanel', id: this.#id });
    this.element.append(this.#tabs, this.#panel);
    this.#tabs.addEventListener('keydown', event => this.#moveTab(event));
  }

  setColours(colours: Colours): void {
    this.#colours = colours;
    this.show();
  }

  /** Another device: nothing of the old one stays selected. */
  reset(): void {
    this.#pinned.clear();
    const gone = typeof this.tab === 'string' ? this.tab === 'here' || this.tab === 'range' : !this.tab.available();
    if (gone) this.tab = 'peak';
    this.show();
  }

  /** After a click or a drag in the picture: show what it asked for. */
  follow(): void {
    const { here, range } = this.#session;
    const before = { here: this.tab === 'here', range: this.tab === 'range' };
    const follows = typeof this.tab !== 'string' && this.tab.followsHere;
    if (this.#lastHere !== here && here !== null) this.tab = follows ? this.tab : 'here';
    else if (this.#lastRange !== range && range !== null) this.tab = 'range';
    else if ((before.here && here === null) || (before.range && range === null)) this.tab = 'peak';
    this.#lastHere = here;
    this.#lastRange = range;
    this.show();
  }

  #lastHere: Session['here'] = null;
  #lastRange: Session['range'] = null;

  get text(): string {
    if (typeof this.tab !== 'string') return this.tab.text();
    if (this.#tree !== null) return treeText(this.#tree);
    return this.#spec === null ? '' : tableText(this.#spec);
  }

  show(): void {
    this.#showTabs();
    const { tab } = this;
    this.#panel.classList.toggle('extra', typeof tab !== 'string');
    if (typeof tab !== 'string') {
      this.#spec = null;
      // Only when it is not there yet: what has the focus would lose it.
      if (this.#panel.firstChild !== tab.element) replace(this.#panel, tab.element);
      this.#panel.setAttribute('aria-label', tab.title);
      tab.show(this.#colours);
      return;
    }
    const parts = this.#content(tab);
    replace(this.#panel, ...parts);
    this.#panel.setAttribute('aria-label', this.#spec?.caption ?? 'Table');
  }

  #showTabs(): void {
    const { here, range, viewport } = this.#session;
    const tab = (name: Tab | ExtraTab, label: string, enabled: boolean, title: string): HTMLElement | null =>
      enabled
        ? button(
            label,
            () => {
              this.tab = name;
              this.show();
            },
            {
              role: 'tab',
              'aria-selected': String(this.tab === name),
              'aria-controls': this.#id,
              tabindex: this.tab === name ? 0 : -1,
              title
            }
          )
        : null;
    const at =
      here === null
        ? ''
        : ` (${momentText(this.#session.source, here.us, Math.max(1, viewport.axis.kind === 'time' ? viewport.spanU / 500 : 1))})`;
    const length =
      range === null
        ? ''
        : ` (${lengthText(this.#session.source, viewport.axis.usOfU(range.fromU), viewport.axis.usOfU(range.toU))})`;
    replace(
      this.#tabs,
      tab('peak', 'At the peak', true, 'Who was alive when the most was allocated'),
      tab('stayed', 'Stayed', true, 'Who was alive at the end'),
      tab('here', `Here${at}`, here !== null, 'Who is alive at the moment that you clicked'),
      tab('range', `This stretch${length}`, range !== null, 'What happened in the range that you dragged'),
      ...this.#extras.map(extra => tab(extra, extra.label, extra.available(), extra.title)),
      h('span', { class: 'gap' }),
      this.tab === 'here'
        ? toggle(
            'tree',
            this.#asTree,
            on => {
              this.#asTree = on;
              this.show();
            },
            { title: 'As nested bars, and rows that open: cell, line, module, stack' }
          )
        : null
    );
    if (here === null && range === null) {
      this.#tabs.append(
        h(
          'span',
          { class: 'muted', style: 'font-size:11px;align-self:center' },
          'click the picture: who is alive there · drag: what happened'
        )
      );
    }
  }

  #moveTab(event: KeyboardEvent): void {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    const tabs = [...this.#tabs.querySelectorAll<HTMLElement>('[role=tab]')];
    const at = tabs.findIndex(tab => tab.getAttribute('aria-selected') === 'true');
    const next = (at + step + tabs.length) % tabs.length;
    tabs[next]?.click();
    this.#tabs.querySelectorAll<HTMLElement>('[role=tab]')[next]?.focus();
    event.stopPropagation();
  }

  #content(tab: Tab): (Node | null)[] {
    const session = this.#session;
    const { device } = session.source.recording;
    this.#spec = null;
    this.#tree = null;
    switch (tab) {
      case 'peak':
        return this.#rows(device.peak, device.headline.allocatedPeak, 'at the peak', 'Nothing was allocated.');
      case 'stayed':
        return this.#rows(
          device.end,
          device.headline.allocatedAfter,
          'alive at the end',
          'Nothing stayed.',
          holderTexts(device.held ?? [])
        );
      case 'here':
        return this.#here();
      case 'range':
        return this.#range();
    }
  }

  #draw(spec: TableSpec): HTMLElement {
    this.#spec = spec;
    return drawTable(this.#session, spec, this.#colours, this.#pinned);
  }

  #rows(
    rows: readonly Row[],
    whole: number | null,
    what: string,
    nothing: string,
    holders: ReadonlyMap<number, string> = new Map()
  ): (Node | null)[] {
    if (rows.length === 0) return [h('p', {}, nothing)];
    const total = rows.reduce((sum, row) => sum + row.bytes, 0);
    const spec = this.#liveSpec(rows, total, what);
    spec.rows = spec.rows.map(row => ({ ...row, note: row.note ?? holders.get(row.group ?? -1) ?? null }));
    // Both numbers come from the same document; should they ever differ, the reader must know.
    const differs = whole !== null && whole !== total;
    return [
      this.#draw(spec),
      differs
        ? h(
            'p',
            {},
            `torch counted ${formatBytes(whole)} (${formatCount(whole)} bytes); the rows hold ${formatCount(total)}.`
          )
        : null
    ];
  }

  #liveSpec(rows: readonly Row[], total: number, what: string): TableSpec {
    const most = rows.reduce((a, row) => Math.max(a, row.bytes), 0);
    return {
      caption: `Who was ${what}`,
      heads: ['bytes', 'share', 'blocks'],
      rows: rows.map(row => ({
        ...this.#where(row.group),
        cells: [bytesCell(row.bytes, true), { text: formatShare(row.bytes, total) }, { text: blocksText(row.blocks) }],
        bar: most > 0 ? row.bytes / most : 0
      })),
      total: {
        label: what,
        cells: [
          bytesCell(total),
          { text: total > 0 ? '100 %' : '' },
          { text: blocksText(rows.reduce((sum, row) => sum + row.blocks, 0)) }
        ]
      }
    };
  }

  #where(index: number): Pick<TableRow, 'group' | 'label' | 'source' | 'note' | 'cell'> {
    const group = this.#session.source.recording.device.groups[index];
    if (group === undefined)
      return { group: null, label: 'rounding and unsplit remainders', source: null, note: null, cell: null };
    return {
      group: group.kind === 'rounding' ? null : index,
      label: group.label,
      source: group.source,
      note: group.reason,
      cell: group.cell
    };
  }

  #here(): (Node | null)[] {
    const session = this.#session;
    const { here } = session;
    if (here === null) return [h('p', {}, 'Click the picture to see who is alive at that moment.')];
    const card = here.lifetime === null ? null : allocationCard(session, here.source, here.lifetime);
    if (this.#asTree) {
      this.#tree = liveTree(here.source, here.moment);
      return [card, icicle(session, this.#tree, this.#colours), treeTable(session, this.#tree, this.#colours)];
    }
    const table = here.source.live.at(here.moment);
    const rows: Row[] = table.rows.map(row => ({
      ...row,
      group: this.#ownGroup(here.source.recording.device.groups[row.group])
    }));
    if (table.rounding !== 0) rows.push({ group: -1, bytes: table.rounding, blocks: 0 });
    const when = momentText(session.source, here.us, 1);
    return [
      card,
      rows.length === 0
        ? h('p', {}, `Nothing was allocated at ${when}.`)
        : this.#draw(this.#liveSpec(rows, table.allocated, `alive at ${when}`)),
      table.summed > 0
        ? h(
            'p',
            {},
            `${formatBytes(table.summed)} of it are small allocations that this report keeps as sums; they are exact at the end of each stretch of the sums, the last one before this moment.`
          )
        : null
    ];
  }

  /** Index of a group of a detail document among this document's groups. */
  #ownGroup(group: { kind: string; label: string; line: number | null; file: string | null } | undefined): number {
    const { groups } = this.#session.source.recording.device;
    return groups.findIndex(
      own => own.kind === group?.kind && own.label === group.label && own.line === group.line && own.file === group.file
    );
  }

  #range(): (Node | null)[] {
    const session = this.#session;
    const { range } = session;
    if (range === null) return [h('p', {}, 'Drag over the picture to see what happened in a stretch.')];
    const { axis, recording } = session.source;
    const sums = sumRange(recording, axis.momentBefore(range.fromU), axis.momentAt(range.toU));
    const most = sums.rows.reduce((a, row) => Math.max(a, row.allocated, row.freed), 0);
    const cells = (row: { allocated: number; freed: number; retained: number; transient: number; blocks: number }) => [
      bytesCell(row.allocated, true),
      bytesCell(row.freed),
      bytesCell(row.retained),
      bytesCell(row.transient),
      { text: formatCount(row.blocks) }
    ];
    const cell = session.selectedCell;
    const between = `${momentText(session.source, axis.usOfU(range.fromU), 1)} to ${momentText(session.source, axis.usOfU(range.toU), 1)}`;
    const intro = h(
      'p',
      {},
      `${between}: ${formatBytes(sums.change, true)} allocated over the stretch. Kept: made in it and alive at its end. Passing: made and freed in it. `,
      button('Zoom to it (F)', () => session.setViewport(session.viewport.around(range.fromU, range.toU, 0))),
      ' ',
      button('Clear (Esc)', () => session.setRange(null))
    );
    if (cell !== null) {
      intro.prepend(
        h('span', {}, h('b', {}, bdi(cell.title)), ' ', ...withCode(cell.sentence), ' ', goButton(cell)),
        h('br')
      );
    }
    const summed =
      sums.summed === 0
        ? null
        : h(
            'p',
            {},
            `${formatBytes(sums.summed, true)} of the change are small allocations that this report keeps as sums.`
          );
    if (sums.rows.length === 0) return [intro, h('p', {}, 'Nothing was allocated or freed in this stretch.'), summed];
    const spec: TableSpec = {
      caption: `What happened from ${between}`,
      heads: ['allocated', 'freed', 'kept', 'passing', 'blocks'],
      rows: sums.rows.map(row => ({
        ...this.#where(row.group),
        cells: cells(row),
        bar: most > 0 ? Math.max(row.allocated, row.freed) / most : 0
      })),
      total: { label: 'in this stretch', cells: cells(sums.total) }
    };
    return [intro, this.#draw(spec), summed];
  }
}
