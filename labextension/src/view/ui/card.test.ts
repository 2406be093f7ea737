/** The card of one allocation: what the document knows, and what a kernel adds. */

import { expect, test } from 'vitest';
import { encode, makeDevice, makeGroup, makeHeader, type Truth, timelineArrays } from '../../testing/documents';
import type { Answer, Question } from '../ask';
import { parse } from '../decode';
import { Session } from '../session';
import { allocationCard } from './card';

/** Three allocations at one address, one after the other. */
function threeInTurn(startUs?: number): Session {
  const life = (born: number, dead: number, group: number): Truth['lives'][number] => ({
    born,
    dead,
    bytes: 1 << 20,
    requested: 1 << 20,
    group,
    stack: 0,
    stream: 0
  });
  const truth: Truth = { lives: [life(0, 1, 0), life(2, 3, 1), life(4, -1, 2)], times: [10, 20, 30, 40, 50] };
  const device = makeDevice(
    truth,
    [0, 1, 2].map(k => makeGroup(k))
  );
  if (startUs !== undefined) device.startUs = startUs;
  device.timeline.pools = ['large blocks, default stream'];
  const arrays = timelineArrays(truth);
  arrays['d0.addr'] = ['u4', [1, 1, 1]];
  arrays['d0.addrs'] = ['u4', [0, 4096]];
  arrays['d0.seg.base'] = ['f8', [1 << 20]];
  arrays['d0.seg.size'] = ['f8', [20 << 20]];
  arrays['d0.seg.from'] = ['f8', [-1]];
  arrays['d0.seg.to'] = ['f8', [-1]];
  arrays['d0.seg.pool'] = ['u1', [0]];
  return new Session(parse(encode(makeHeader([device]), arrays)), 0);
}

test('segment, pool, and who was there before and after', () => {
  const session = threeInTurn();
  const card = allocationCard(session, session.source, 1);
  expect(card.textContent).toContain(
    'in a segment of 20.0 MiB (large blocks, default stream), 1.00 MiB after its start'
  );
  const [before, after] = [...card.querySelectorAll<HTMLElement>('.facts .fold')];
  expect(before?.textContent).toBe('1.00 MiB In [3] line 1');
  expect(after?.textContent).toBe('1.00 MiB In [3] line 3');
  after?.click();
  expect(session.here?.lifetime).toBe(2);
  expect(allocationCard(session, session.source, 2).textContent).toContain('after it there nobody');
});

test('a kernel answers where the document holds a part only', () => {
  const session = threeInTurn();
  const asked: Question[] = [];
  let listener: (answer: Answer, buffer: DataView | null) => void = () => {};
  session.ask = {
    send: question => {
      asked.push(question);
      return true;
    },
    onReply: listen => {
      listener = listen;
      return () => {
        listener = () => {};
      };
    }
  };
  const part = { ...session.source, stretch: { fromUs: 0, toUs: 100 } };
  const card = allocationCard(session, part, 0);
  expect(card.textContent).toContain('before it there nobody known singly');
  const [question] = asked as [Question];
  expect(question).toMatchObject({ kind: 'place', device: 0, address: 4096 * 512 });
  expect(question.startUs).toBe(session.source.recording.device.startUs + 10);
  const told = { bytes: 2048, label: 'line 9', cell: 'In [1]', fromUs: null, toUs: 5 };
  listener({ kind: 'place', id: question.id + 1, error: null, before: null, after: null }, null);
  expect(card.textContent).toContain('nobody known singly');
  listener({ kind: 'place', id: question.id, error: null, before: told, after: null }, null);
  expect(card.textContent).toContain('before it there 2.00 KiB In [1] line 9, from before the recording to 5');
  expect(card.textContent).toContain('after it there nobody');
});

test('what the document holds whole is not asked for', () => {
  const session = threeInTurn();
  session.ask = {
    send: () => {
      throw new Error('asked');
    },
    onReply: () => () => {}
  };
  allocationCard(session, session.source, 0);
});

test('a recording without times tells places in its order, not times of its own making', () => {
  const session = threeInTurn(0);
  const card = allocationCard(session, session.source, 1);
  expect(card.textContent).toContain('alive from change 3 to change 4 (1 change)');
  expect(card.innerHTML).not.toContain('µs');
});
