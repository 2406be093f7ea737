/** The tables beside the map: who pins memory, and every segment. */

import { formatBytes, formatCount, formatShare } from '../format';
import type { Session } from '../session';
import { bdi, h } from '../ui/dom';
import { bytesCell, type TableSpec } from '../ui/rows';
import { pinsOf, type Segment } from './model';

const MOST_PINS = 12;

/** The owners in these segments, by the free memory that stays because of them. */
export function pinSpec(session: Session, segments: readonly Segment[]): TableSpec {
  const pins = pinsOf(segments);
  const most = pins[0]?.pinned ?? 0;
  const { groups } = session.source.recording.device;
  const total = pins.reduce((sum, pin) => ({ bytes: sum.bytes + pin.bytes, blocks: sum.blocks + pin.blocks }), {
    bytes: 0,
    blocks: 0
  });
  const wasted = segments.reduce((sum, segment) => sum + segment.waste, 0);
  const rest = pins.length - MOST_PINS;
  return {
    caption: 'Who keeps free memory from going back',
    heads: ['pins', 'with', 'blocks', 'segments'],
    rows: pins.slice(0, MOST_PINS).map(pin => {
      const group = pin.group === null ? undefined : groups[pin.group];
      return {
        group: pin.group,
        label: group?.label ?? 'unknown owner',
        source: group?.source ?? null,
        note: group?.reason ?? null,
        cell: group?.cell ?? null,
        cells: [
          bytesCell(pin.pinned, true),
          bytesCell(pin.bytes),
          { text: formatCount(pin.blocks) },
          { text: formatCount(pin.segments) }
        ],
        bar: most > 0 ? pin.pinned / most : 0
      };
    }),
    total: {
      label: `free and pinned, in all${rest > 0 ? `; ${formatCount(rest)} more owners` : ''}`,
      cells: [
        bytesCell(wasted),
        bytesCell(total.bytes),
        { text: formatCount(total.blocks) },
        { text: formatCount(segments.length) }
      ]
    }
  };
}

/** Every segment in a row, for those who cannot see the map. */
export function segmentTable(segments: readonly Segment[], nameOf: (group: number | null) => string): HTMLElement {
  const rows = segments.map(segment => {
    const pin = pinsOf([segment])[0];
    const most = pin === undefined ? 'nothing' : nameOf(pin.group);
    const n = (text: string): HTMLElement => h('td', { class: 'n' }, text);
    return h(
      'tr',
      {},
      h('td', { class: 'code' }, segment.address),
      n(formatBytes(segment.mapped)),
      n(formatBytes(segment.active)),
      n(formatShare(segment.active, segment.mapped)),
      n(formatBytes(segment.waste)),
      n(formatBytes(segment.returnable)),
      h(
        'td',
        {},
        `${segment.small ? 'small' : 'large'}${segment.expandable ? ', expandable' : ''}${segment.private ? ', private' : ''}${segment.stream === 0 ? '' : `, stream ${segment.stream}`}`
      ),
      h('td', {}, bdi(most))
    );
  });
  const heads = ['segment', 'size', 'in use', 'share', 'pinned free', 'returnable', 'kind', 'most of it by'];
  return h(
    'div',
    { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'All segments' },
    h(
      'table',
      {},
      h(
        'thead',
        {},
        h('tr', {}, ...heads.map((head, k) => h('th', { scope: 'col', class: k > 0 && k < 6 ? 'n' : null }, head)))
      ),
      h('tbody', {}, ...rows)
    )
  );
}
