import { expect, test } from 'vitest';
import { randomDocument } from '../../testing/documents';
import { type Axis, eventAxis, timeAxis } from '../axis/axis';
import { Viewport } from '../axis/viewport';
import { makeBanding } from '../model/bands';
import { Curves } from '../model/curves';
import { LiveIndex } from '../model/live';
import { readRecording } from '../model/steps';
import type { Line } from './lines';
import { LIGHT } from './palette';
import { drawPicture, type Frame, type Scene } from './picture';
import { SvgPen } from './svg';

const { document } = randomDocument(5, 1000);
const recording = readRecording(document, 0);

const banding = makeBanding(recording, document.header, 'line');
const line = (value: number): Line => ({
  name: 'reserved',
  shape: 'constant',
  times: new Float64Array(1),
  values: Float64Array.of(value),
  most: value
});

function frame(
  axis: Axis,
  zoom: number,
  more: Partial<Scene> = {},
  pen = new SvgPen(900, 320)
): { drawn: Frame; svg: string } {
  const viewport = new Viewport(axis).zoom(zoom, 0.5);
  const region = { name: '<b> & "шаг"', fromUs: 0, toUs: recording.spanUs, row: 0, cell: null };
  const drawn = drawPicture(pen, pen.width, pen.height, {
    curves: new Curves(recording, banding),
    live: new LiveIndex(recording),
    viewport,
    lines: [],
    regions: [region],
    regionRows: 1,
    markers: [{ timeUs: recording.device.startUs + 50, kind: 'oom', text: 'x' }],
    peakU: null,
    startUs: recording.device.startUs,
    log: false,
    unfiltered: true,
    reach: new Set(),
    colours: LIGHT,
    emphasis: null,
    density: 1,
    floor: 0,
    ...more
  });
  return { drawn, svg: pen.toString() };
}

const time = timeAxis(recording.steps.time, recording.spanUs, []);
const draw = (zoom: number): string => frame(time, zoom).svg;

test.each([1, 40])('a picture at zoom %i is well-formed XML with the same shapes as on screen', zoom => {
  const parsed = new DOMParser().parseFromString(draw(zoom), 'image/svg+xml');
  expect(parsed.querySelector('parsererror')).toBeNull();
  expect(parsed.documentElement.getAttribute('viewBox')).toBe('0 0 900 320');
  expect([...parsed.querySelectorAll('text')].map(text => text.textContent)).toContain('<b> & "шаг"');
  expect(parsed.querySelectorAll('path').length).toBeGreaterThan(10);
  expect(parsed.querySelectorAll('path').length).toBeLessThan(10_000);
  expect(draw(zoom)).not.toContain('NaN');
});

test('two pictures of one scale have one scale, however far up a line of one of them is', () => {
  const { most } = frame(time, 1).drawn.columns;
  // Within reach of the other's line, though not of the stack: it may not lift this picture alone.
  const shared = most * 2;
  const a = frame(time, 1, { lines: [line(most * 2)], floor: shared }).drawn;
  const b = frame(time, 1, { lines: [line(most * 4)], floor: shared }).drawn;
  expect(b.scale.top).toBe(a.scale.top);
  expect([a.above.length, b.above.length]).toEqual([0, 1]);
});

test('the axis of changes is labelled at every zoom', () => {
  const axis = eventAxis(recording.steps.time, recording.spanUs);
  const closest = new Viewport(axis).zoom(1e6, 0.5);
  // Half a change wide: one of the two has no whole number in it.
  for (const viewport of [new Viewport(axis), new Viewport(axis).zoom(500, 0.5), closest, closest.pan(1)]) {
    const parsed = new DOMParser().parseFromString(frame(axis, 1, { viewport }).svg, 'image/svg+xml');
    const texts = [...parsed.querySelectorAll('text')].map(text => text.textContent ?? '');
    expect(texts.filter(text => /^(change 0|[\d,]+)$/.test(text))).not.toEqual([]);
  }
});

test.each([1, 1e3, 1e9])('no two ticks of a zoom of %i have one name', zoom => {
  const { svg } = frame(timeAxis(recording.steps.time, recording.spanUs, []), zoom);
  const ticks = [...svg.matchAll(/>(\d[\d.]* (?:µs|ms|s))</g)].map(match => match[1]);
  expect(ticks.length).toBeGreaterThan(0);
  expect(new Set(ticks).size).toBe(ticks.length);
});

/** Notes where the names within the plot stand: they are the centred ones that are not the ruler's. */
class NamesPen extends SvgPen {
  readonly names: { text: string; left: number; right: number; y: number }[] = [];

  override fillText(text: string, x: number, y: number): void {
    const half = this.measureText(text).width / 2;
    if (/peak|exception|reserved/.test(text)) this.names.push({ text, left: x - half, right: x + half, y });
    super.fillText(text, x, y);
  }
}

test.each([320, 900])('in %i pixels no name of peak, error or line stands on another, wherever the peak is', width => {
  const lines = [line(frame(time, 1).drawn.columns.most * 40)];
  for (let k = 0; k <= 40; k++) {
    const us = (recording.spanUs * k) / 40;
    const pen = new NamesPen(width, 240);
    const markers = [{ timeUs: recording.device.startUs + us, kind: 'exception' as const, text: 'x' }];
    frame(time, 1, { lines, markers, peakU: time.uOfUs(us) }, pen);
    expect(pen.names.map(name => name.text.slice(0, 6)).sort()).toEqual(['except', 'peak', '↑ rese']);
    for (const a of pen.names)
      for (const b of pen.names)
        if (a !== b) expect(a.right <= b.left || b.right <= a.left || Math.abs(a.y - b.y) >= 12).toBe(true);
  }
});

test('a saved picture marks the peak', () => {
  const names = (peakU: number | null): number => frame(time, 1, { peakU }).svg.split('>peak<').length - 1;
  expect(names(time.uOfUs(recording.spanUs / 2))).toBe(1);
  expect(names(null)).toBe(0);
});
