/** The measured cells of a notebook as a table: the bands above the picture for the keyboard, and the way to a cell. */

import type { Colours } from '../draw/palette';
import { formatBytes, formatCount, formatDuration } from '../format';
import type { Session } from '../session';
import { button, h, replace } from '../ui/dom';
import { withCode } from '../ui/header';
import type { ExtraTab } from '../ui/tables';
import { goButton } from './jump';

export class CellsTab implements ExtraTab {
  readonly name = 'cells';
  readonly label = 'Cells';
  readonly title = 'Every measured cell: its peak, and what of it is left';
  readonly element = h('div');
  readonly followsHere = false;
  readonly #session: Session;
  #rows: string[][] = [];

  constructor(session: Session) {
    this.#session = session;
  }

  available(): boolean {
    return this.#session.cells.length > 0;
  }

  show(_colours: Colours): void {
    const session = this.#session;
    this.#rows = [];
    const left = leftBy(session);
    const rows = session.cells.map(cell => {
      const range = session.rangeOf(cell);
      const peak = session.mostIn(range.fromU, range.toU);
      const stays = left?.get(cell.title) ?? 0;
      const took = formatDuration(cell.endUs - cell.startUs);
      this.#rows.push([formatBytes(peak), left === null ? '?' : formatBytes(stays), took, cell.title, cell.sentence]);
      const looks = (): void => session.setRange(range);
      const row = h(
        'tr',
        {},
        h('td', { class: 'n strong', title: `${formatCount(peak)} bytes` }, formatBytes(peak)),
        left === null
          ? h('td', { class: 'n muted', title: 'On the CPU nobody tells when a tensor of an earlier cell goes' }, '?')
          : h('td', { class: 'n', title: `${formatCount(stays)} bytes` }, formatBytes(stays)),
        h('td', { class: 'n' }, took),
        h('td', { class: 'where' }, button(cell.title, looks, { class: 'fold', title: 'What happened in this cell' })),
        h('td', { class: 'source' }, ...withCode(cell.sentence)),
        h('td', {}, goButton(cell))
      );
      return row;
    });
    replace(
      this.element,
      h(
        'table',
        {},
        h('caption', { class: 'sr' }, 'Measured cells'),
        h(
          'thead',
          {},
          h(
            'tr',
            {},
            ...['most', 'left of it', 'took'].map(head => h('th', { class: 'n', scope: 'col' }, head)),
            ...['cell', 'what its own report says', ''].map(head => h('th', { scope: 'col' }, head))
          )
        ),
        h('tbody', {}, ...rows)
      )
    );
  }

  text(): string {
    return [['most', 'left of it', 'took', 'cell', 'report'], ...this.#rows].map(row => row.join('\t')).join('\n');
  }
}

/** Bytes that are left at the end, by the cell that allocated them; null where that is not known. */
function leftBy(session: Session): Map<string, number> | null {
  const { device } = session.source.recording;
  if (device.kind === 'cpu') return null;
  const sums = new Map<string, number>();
  for (const row of device.end) {
    const cell = device.groups[row.group]?.cell;
    if (cell != null) sums.set(cell, (sums.get(cell) ?? 0) + row.bytes);
  }
  return sums;
}
