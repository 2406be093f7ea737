/** One frame: everything that lies under the cursor layer. The same for screen, PNG and SVG. */

import type { Viewport } from '../axis/viewport';
import type { Marker } from '../document';
import { formatBytes } from '../format';
import { type Columns, sampleColumns, widenToEnvelope } from '../model/columns';
import type { Curves } from '../model/curves';
import type { LiveIndex } from '../model/live';
import { findSingles, type Single } from '../model/singles';
import { drawGrid, drawMarkers, drawRegions, drawRuler, type PlacedRegion } from './frame';
import { Labels, plate, plateOf } from './labels';
import { type Layout, layOut } from './layout';
import { drawLine, type Line, mostInView } from './lines';
import type { Colours, LineName } from './palette';
import { drawPeak, peakPoint, peakSign } from './peak';
import type { Pen } from './pen';
import { Scale } from './scale';
import { drawSingles, LEAST_HEIGHT_PX } from './singles';
import { drawStack } from './stack';

export interface Scene {
  curves: Curves;
  live: LiveIndex;
  viewport: Viewport;
  lines: readonly Line[];
  regions: readonly PlacedRegion[];
  regionRows: number;
  markers: readonly Marker[];
  /** The peak's place along the axis; null where it is not known, or other sums than all are on show. */
  peakU: number | null;
  startUs: number;
  log: boolean;
  /** Sums of all allocations are on show, so that the exact envelope applies. */
  unfiltered: boolean;
  /** Lines that the scale must reach, however far up they are. */
  reach: ReadonlySet<LineName>;
  colours: Colours;
  emphasis: ReadonlySet<number> | null;
  /** Pixel columns per CSS pixel: the screen's density. */
  density: number;
  /** Bytes that the scale reaches, agreed with a second picture; 0 where there is none. */
  floor: number;
}

/** What hit tests need of a frame. */
export interface Frame {
  layout: Layout;
  scale: Scale;
  columns: Columns;
  viewport: Viewport;
  curves: Curves;
  singles: Single[] | null;
  /** Lines above the top of the scale. */
  above: Line[];
}

/** A line further up than this many times the stack would flatten the stack, so it is only named at the top. */
const REACH = 2.2;
const MOST_COLUMNS = 2400;

export function drawPicture(pen: Pen, width: number, height: number, scene: Scene): Frame {
  const { curves, viewport, colours } = scene;
  const layout = layOut(width, height, scene.regionRows);
  const { plot } = layout;
  const columns = sampleColumns(curves, viewport, Math.min(MOST_COLUMNS, Math.round(plot.width * scene.density)));
  if (scene.unfiltered) widenToEnvelope(columns, curves, viewport);
  const { most, above } = reachOf(scene, columns.most, scene.floor);
  const scale = new Scale(most, plot, scene.log);
  pen.fillStyle = colours.background;
  pen.fillRect(0, 0, width, height);
  drawGrid(pen, layout, scale, colours);
  pen.save();
  pen.beginPath();
  pen.rect(plot.x, plot.y, plot.width, plot.height);
  pen.clip();
  drawStack(pen, plot, scale, curves, columns, { colours, emphasis: scene.emphasis, density: scene.density });
  const singles = outlines(scene, scale, plot.height);
  if (singles !== null) drawSingles(pen, plot, scale, viewport, singles, colours);
  for (const line of scene.lines) if (!above.includes(line)) drawLine(pen, plot, scale, viewport, line, colours);
  pen.restore();
  drawRegions(pen, layout, viewport, scene.regions, colours);
  drawRuler(pen, layout, viewport, colours);
  const labels = new Labels(plot);
  const peak = scene.peakU === null ? null : peakPoint(scene.peakU, plot, viewport, columns, scale);
  if (peak !== null) labels.take(peakSign(peak));
  drawAbove(pen, layout, above, labels, colours);
  drawMarkers(pen, layout, viewport, scene.markers, scene.startUs, labels, colours);
  if (peak !== null) drawPeak(pen, plot, peak, labels, colours);
  return { layout, scale, columns, viewport, curves, singles, above };
}

/**
 * Bytes that the scale reaches for a stack of a height, and the lines that lie above that. Where two pictures share a
 * scale, `shared` is what they agreed on, over 0: then no line of one of them lifts that one alone.
 */
export function reachOf(
  scene: Pick<Scene, 'lines' | 'reach' | 'viewport'>,
  stack: number,
  shared = 0
): { most: number; above: Line[] } {
  const above: Line[] = [];
  let most = Math.max(stack, shared);
  for (const line of shared > 0 ? [] : scene.lines) {
    const value = mostInView(line, scene.viewport);
    if (scene.reach.has(line.name) || stack === 0 || value <= stack * REACH) most = Math.max(most, value);
  }
  for (const line of scene.lines) if (mostInView(line, scene.viewport) > most) above.push(line);
  return { most, above };
}

function outlines(scene: Scene, scale: Scale, height: number): Single[] | null {
  const { viewport, curves } = scene;
  const from = viewport.axis.momentBefore(viewport.fromU);
  const to = viewport.axis.momentAt(viewport.toU);
  return findSingles(curves, scene.live, from, to, (scale.top / height) * LEAST_HEIGHT_PX);
}

/** What lies above the top is named there, with its value, so that its absence is no riddle. */
function drawAbove(pen: Pen, layout: Layout, above: readonly Line[], labels: Labels, colours: Colours): void {
  if (above.length === 0) return;
  const { plot } = layout;
  const label = `↑ ${above.map(line => `${line.name} ${formatBytes(line.most)}`).join(' · ')}`;
  // On the left, where memory has not yet grown and the fewest markers are, unless the peak is there.
  const left = plateOf(pen, label, plot.x + 1, plot.y + 9);
  const at = labels.place([left, { ...left, x: plot.x + plot.width - left.width - 1 }]) ?? left;
  labels.take(at);
  plate(pen, label, at, colours.muted, colours);
}
