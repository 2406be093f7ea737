/** One allocation: size, line, stack and life. */

import { nextId } from '../ask';
import { formatBytes } from '../format';
import type { Session, Source } from '../session';
import { lifeOf, lifeText, sinceText, stackList } from './describe';
import { bdi, button, h, replace } from './dom';
import { stepNeighbour } from './travel';

const STACK_PARTS = 24;

/** Which segment it lies in, and who had these addresses before and after. */
function placeFacts(session: Session, source: Source, lifetime: number): HTMLElement | null {
  const place = session.placeOf(lifetime, source);
  if (place === null) return null;
  const { segment } = place;
  const where =
    segment === null
      ? h('span', {}, 'in a segment that the recording does not name')
      : h(
          'span',
          { title: `segment at 0x${segment.base.toString(16)}` },
          'in a segment of ',
          h('b', {}, formatBytes(segment.size)),
          ` (${segment.pool}), `,
          h('b', {}, formatBytes(place.address - segment.base)),
          ' after its start'
        );
  // With sums of small ones, or for a stretch, others may have been there that are not known singly.
  const some = source.recording.rest === null && source.stretch === null ? '' : ' known singly';
  const before = other(session, source, 'before it there', place.before, some);
  const after = other(session, source, 'after it there', place.after, some);
  if (some !== '') askKernel(session, source, lifetime, place.address, { before, after });
  return h(
    'div',
    { class: 'facts' },
    h('span', {}, 'address ', h('code', {}, `0x${place.address.toString(16)}`)),
    where,
    before,
    after
  );
}

interface Told {
  bytes: number;
  label: string;
  cell: string | null;
  fromUs: number | null;
  toUs: number | null;
}

/** The kernel knows every allocation; what it says takes the place of what this document holds. */
function askKernel(
  session: Session,
  source: Source,
  lifetime: number,
  address: number,
  parts: { before: HTMLElement; after: HTMLElement }
): void {
  const { ask } = session;
  if (ask === null) return;
  const id = nextId();
  const { fromUs } = lifeOf(source, lifetime);
  const { device } = session.source.recording;
  const end = ask.onReply(answer => {
    if (answer.kind !== 'place' || answer.id !== id) return;
    end();
    if (answer.error !== null) return;
    for (const side of ['before', 'after'] as const) {
      const told = answer[side] as Told | null;
      replace(
        parts[side],
        `${side} it there `,
        told === null ? h('b', {}, 'nobody') : h('b', {}, tellOther(told, session.source))
      );
    }
  });
  const start = fromUs === null ? null : Math.round(device.startUs + fromUs);
  if (!ask.send({ kind: 'place', id, device: session.deviceIndex, address, startUs: start })) end();
}

function tellOther({ bytes, label, cell, fromUs, toUs }: Told, source: Source): string {
  const from = fromUs === null ? 'before the recording' : sinceText(source, fromUs);
  const to = toUs === null ? 'its end' : sinceText(source, toUs);
  return `${formatBytes(bytes)} ${cell === null ? '' : `${cell} `}${label}, from ${from} to ${to}`;
}

function other(session: Session, source: Source, when: string, lifetime: number | null, some: string): HTMLElement {
  if (lifetime === null) return h('span', {}, `${when} `, h('b', {}, `nobody${some}`));
  const life = lifeOf(source, lifetime);
  const group = source.recording.device.groups[source.recording.lifetimes.group[lifetime] as number];
  const go = button(
    `${formatBytes(life.bytes)} ${group?.cell == null ? '' : `${group.cell} `}${group?.label ?? ''}`,
    () => {
      session.select(lifetime, source);
      session.showLifetime(lifetime, false, source);
    },
    { class: 'fold', title: `${lifeText(life, source)}. Click: select it` }
  );
  return h('span', {}, `${when} `, go);
}

const NO_STACKS = 'CPU memory is shown by line only';

export function allocationCard(session: Session, source: Source, lifetime: number): HTMLElement {
  const life = lifeOf(source, lifetime);
  const { recording } = source;
  const group = recording.device.groups[recording.lifetimes.group[lifetime] as number];
  const canRecord = recording.device.kind !== 'cpu';
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
        button('F', () => session.showLifetime(lifetime, true, source), {
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
    placeFacts(session, source, lifetime),
    stackList(source, recording.lifetimes.stack[lifetime] as number, STACK_PARTS, true) ??
      h('div', { class: 'muted' }, `No stack was recorded; ${canRecord ? '--stacks python records them' : NO_STACKS}.`)
  );
}
