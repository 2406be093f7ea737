import { expect, test } from 'vitest';
import { makeDevice, makeGroup, randomTruth } from '../../testing/documents';
import type { Device } from '../document';
import { missingList } from './header';

const REASON = 'no caching allocator here';

function device(kind: Device['kind'], missing: Record<string, string>): Device {
  return { ...makeDevice(randomTruth(5, 20, 1), [makeGroup(0)]), kind, missing };
}

test('what a host does not have at all is not called unknown', () => {
  const missing = { reserved_before: REASON, reserved_peak: REASON, reserved_after: REASON, headroom: REASON };
  expect(missingList(device('cpu', missing))).toBeNull();
  expect(missingList(device('cpu', { ...missing, stayed: 'lost' }))?.textContent).toBe('Not known: stayedstayed: lost');
  expect(missingList(device('cuda', missing))?.querySelector('summary')?.textContent).toBe(
    'Not known: reserved before, reserved peak, reserved after, headroom'
  );
});
