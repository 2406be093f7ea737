import { expect, test } from 'vitest';
import { randomDocument } from '../../testing/documents';
import { timeAxis } from '../axis/axis';
import { Viewport } from '../axis/viewport';
import { makeBanding } from '../model/bands';
import { Curves } from '../model/curves';
import { LiveIndex } from '../model/live';
import { readRecording } from '../model/steps';
import { LIGHT } from './palette';
import { drawPicture } from './picture';
import { SvgPen } from './svg';

const { document } = randomDocument(5, 1000);
const recording = readRecording(document, 0);

function draw(zoom: number): string {
  const viewport = new Viewport(timeAxis(recording.steps.time, recording.spanUs, [])).zoom(zoom, 0.5);
  const pen = new SvgPen(900, 320);
  const banding = makeBanding(recording, document.header, 'line');
  const region = { name: '<b> & "шаг"', fromUs: 0, toUs: recording.spanUs, row: 0, cell: null };
  drawPicture(pen, 900, 320, {
    curves: new Curves(recording, banding),
    live: new LiveIndex(recording),
    viewport,
    lines: [],
    regions: [region],
    regionRows: 1,
    markers: [{ timeUs: recording.device.startUs + 50, kind: 'oom', text: 'x' }],
    startUs: recording.device.startUs,
    log: false,
    unfiltered: true,
    reach: new Set(),
    colours: LIGHT,
    emphasis: null,
    density: 1,
    floor: 0
  });
  return pen.toString();
}

test.each([1, 40])('a picture at zoom %i is well-formed XML with the same shapes as on screen', zoom => {
  const parsed = new DOMParser().parseFromString(draw(zoom), 'image/svg+xml');
  expect(parsed.querySelector('parsererror')).toBeNull();
  expect(parsed.documentElement.getAttribute('viewBox')).toBe('0 0 900 320');
  expect([...parsed.querySelectorAll('text')].map(text => text.textContent)).toContain('<b> & "шаг"');
  expect(parsed.querySelectorAll('path').length).toBeGreaterThan(10);
  expect(parsed.querySelectorAll('path').length).toBeLessThan(10_000);
  expect(draw(zoom)).not.toContain('NaN');
});
