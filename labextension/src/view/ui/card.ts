/** One allocation: size, line, stack and life. */

import { formatBytes } from '../format';
import type { Session, Source } from '../session';
import { lifeOf, lifeText, stackList } from './describe';
import { bdi, button, h } from './dom';
import { stepNeighbour } from './picture';

const STACK_PARTS = 24;

export function allocationCard(session: Session, source: Source, lifetime: number): HTMLElement {
  const life = lifeOf(source, lifetime);
  const { recording } = source;
  const group = recording.device.groups[recording.lifetimes.group[lifetime] as number];
  const fact = (name: string, value: string): HTMLElement => h('span', {}, `${name} `, h('b', {}, value));
  return h(
    'div',
    { class: 'card' },
    h(
      'h4',
      {},
      `${formatBytes(life.bytes)} `,
      group?.cell == null ? null : bdi(`${group.cell} `),
      bdi(group?.label ?? ''),
      ' ',
      group?.source == null ? null : bdi(group.source, 'code')
    ),
    h(
      'div',
      { class: 'facts' },
      fact('asked for', formatBytes(life.requested)),
      fact('alive', lifeText(life, source)),
      fact('stream', life.stream === 0 ? 'default' : String(life.stream)),
      h(
        'span',
        {},
        button('F', () => session.showLifetime(lifetime, true), {
          title: 'Zoom to it (F)',
          'aria-label': 'Zoom to this allocation'
        }),
        ' ',
        button('‹', () => stepNeighbour(session, -1), {
          title: 'Previous of this line (,)',
          'aria-label': 'Previous allocation of this line'
        }),
        ' ',
        button('›', () => stepNeighbour(session, 1), {
          title: 'Next of this line (.)',
          'aria-label': 'Next allocation of this line'
        })
      )
    ),
    stackList(source, recording.lifetimes.stack[lifetime] as number, STACK_PARTS, true) ??
      h('div', { class: 'muted' }, 'No stack was recorded; --stacks python records them.')
  );
}
