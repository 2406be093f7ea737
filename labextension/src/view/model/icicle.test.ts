/** The tree of live bytes: every node is the sum of its children, and modules stand between line and stack. */

import { expect, test } from 'vitest';
import {
  bruteTotals,
  encode,
  makeDevice,
  makeGroup,
  makeHeader,
  randomTruth,
  timelineArrays
} from '../../testing/documents';
import { parse } from '../decode';
import { Session } from '../session';
import { type IcicleNode, liveTree } from './icicle';

test.each([1, 2, 3])('seed %i', seed => {
  const truth = randomTruth(seed, 90, 3);
  const device = makeDevice(
    truth,
    [0, 1, 2].map(k => makeGroup(k))
  );
  const names = ['', 'model.encoder', 'model.head'];
  device.categories = {
    kinds: ['activation'],
    names: ['activations'],
    peak: [],
    end: [],
    modules: [],
    moduleNames: names,
    backward: [],
    reason: null
  };
  const arrays = timelineArrays(truth);
  const modules = truth.lives.map((_, k) => k % 3);
  arrays['d0.module'] = ['u2', modules];
  arrays['d0.category'] = ['u1', truth.lives.map(() => 0)];
  const { source } = new Session(parse(encode(makeHeader([device]), arrays)), 0);
  const totals = bruteTotals(truth);
  const moment = totals.indexOf(Math.max(...totals));
  const tree = liveTree(source, moment);
  expect(tree.bytes).toBe(totals[moment]);
  const held = new Map<string, number>();
  const check = (node: IcicleNode): void => {
    if (node.children.length > 0) {
      const inside = node.children.reduce((sum, child) => sum + child.bytes, 0);
      // A stack that ends where another goes on holds the difference itself.
      expect(inside).toBeLessThanOrEqual(node.bytes);
    }
    if (names.includes(node.label)) held.set(node.label, (held.get(node.label) ?? 0) + node.bytes);
    for (const child of node.children) check(child);
  };
  check(tree);
  for (const [k, name] of names.entries()) {
    if (k === 0) continue;
    const expected = truth.lives
      .filter((life, i) => modules[i] === k && life.born < moment && (life.dead < 0 || life.dead >= moment))
      .reduce((sum, life) => sum + life.requested, 0);
    expect(held.get(name) ?? 0).toBe(expected);
  }
});
