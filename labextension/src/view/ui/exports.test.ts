import { expect, test } from 'vitest';
import { encode, makeDevice, makeGroup, makeHeader, randomTruth, timelineArrays } from '../../testing/documents';
import type { AskChannel } from '../ask';
import { parse } from '../decode';
import { Session } from '../session';
import { Exports } from './exports';

function session(mapped: boolean): Session {
  const truth = randomTruth(5, 20, 1);
  const device = makeDevice(truth, [makeGroup(0)], { mapped });
  return new Session(parse(encode(makeHeader([device]), timelineArrays(truth))));
}

const refusals = (exports: Exports): Record<string, string | null> =>
  Object.fromEntries(exports.items.map(item => [item.label, item.refused ?? null]));

test('a kernel writes every file, torch’s only where its allocator was recorded', () => {
  const asked: unknown[] = [];
  const channel = { send: (question: unknown) => asked.push(question) > 0, onReply: () => () => {} } as AskChannel;
  const gpu = new Exports(session(true), channel, false, () => {});
  expect(Object.values(refusals(gpu))).toEqual([null, null, null, null, null]);
  for (const item of gpu.items) item.act();
  expect(asked).toEqual(
    ['html', 'bare', 'snapshot', 'perfetto', 'speedscope'].map(what => expect.objectContaining({ what }))
  );
  expect(refusals(new Exports(session(false), channel, false, () => {}))).toEqual({
    'Report as HTML': null,
    'Report without source, to share': null,
    'Recording for torch’s viewer': 'only from events of a GPU’s allocator',
    'Trace for Perfetto': null,
    'Flame graphs for speedscope': null
  });
});

test('a page of its own says who writes what it cannot', () => {
  expect(refusals(new Exports(session(true), null, true, () => {}))).toEqual({
    'Report without source, to share': null,
    'Trace for Perfetto': 'by gpumem-magic export FILE --to perfetto',
    'Flame graphs for speedscope': 'by gpumem-magic export FILE --to speedscope'
  });
});
