import { expect, test } from 'vitest';
import { encode, makeDevice, makeGroup, makeHeader, randomTruth, timelineArrays } from '../../testing/documents';
import { parse } from '../decode';
import type { Header } from '../document';
import { bareHeader } from './bare';

function bare(more: Partial<Header>, cell: string | null = null): Header {
  const truth = randomTruth(3, 50, 1);
  const device = makeDevice(truth, [makeGroup(0, { label: 'train.py:7 step', cell })]);
  return bareHeader(parse(encode(makeHeader([device], more), timelineArrays(truth))).header);
}

test('a copy to share names no variable, and its sentence stays one', () => {
  const sentence = 'Peak 1 GiB at `y = net(x)`, held at train.py:7 step `z = net(y)` and line 3 `w = z`.';
  expect(bare({ sentence }).sentence).toBe('Peak 1 GiB at `…`, held at train.py:7 step and line 3.');
});

test('of its notes those stay that say something without a name', () => {
  const notes: Header['notes'] = [
    { level: 'info', text: 'Why: asked for 2 GiB; `net` holds the rest' },
    { level: 'info', text: 'Do 1: run `%gpumem_free` and `torch.cuda.empty_cache()`' },
    { level: 'info', text: 'Do: drop what is no longer needed from `kept`, or call kept.clear()' },
    { level: 'info', text: "`ckpt` duplicates 100% of `net`'s parameters: if it is a checkpoint, del ckpt" },
    { level: 'warning', text: 'the search stopped at `net`' }
  ];
  expect(bare({ notes }).notes.map(note => note.text)).toEqual([
    'Why: asked for 2 GiB; `…` holds the rest',
    'Do 1: run `%gpumem_free` and `torch.cuda.empty_cache()`',
    'the search stopped at `…`'
  ]);
});

test('cells have their numbers in the place of labels', () => {
  const title = 'secret (In [3])';
  const span = { title, executionCount: 3, cellId: null, startUs: 1, endUs: 2, sentence: 'Peak 1 GiB.' };
  const header = bare({ sentence: `Peak 1 GiB, reached by ${title}, line 5.`, cells: [span] }, title);
  expect(header.sentence).toBe('Peak 1 GiB, reached by In [3], line 5.');
  expect(header.devices[0]?.groups[0]?.cell).toBe('In [3]');
  expect(JSON.stringify(header)).not.toContain('secret');
});
