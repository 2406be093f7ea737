/** History of memory (area) and utilisation (line) on one axis of percent; gaps are drawn as gaps. */

import { formatAge, formatClock, formatPercent } from '../format';
import type { Point, Series } from '../series';
import { bytesText, type ViewContext } from './context';
import { button, element, setAttribute, setText } from './dom';

/** Drawing space; the browser stretches it to the card, strokes keep their width. */
const WIDTH = 240;
const HEIGHT = 48;
const SVG = 'http://www.w3.org/2000/svg';

export interface GraphData {
  memory: Series;
  /** Bytes of a full graph; null draws no memory. */
  total: number | null;
  utilization: Series | null;
  nowUs: number;
  spanUs: number;
}

function path(className: string): SVGPathElement {
  const node = document.createElementNS(SVG, 'path');
  node.setAttribute('class', className);
  return node;
}

/** Position of a point: x by time, y by share. */
function place(point: Point, startUs: number, spanUs: number, full: number): string {
  const x = ((point.timeUs - startUs) / spanUs) * WIDTH;
  const y = HEIGHT - Math.min(1, Math.max(0, point.value / full)) * HEIGHT;
  return `${x.toFixed(1)} ${y.toFixed(1)}`;
}

/** Path data of lines; a run of one sample is a dot. */
export function linePath(runs: readonly Point[][], startUs: number, spanUs: number, full: number): string {
  return runs
    .map(run => `M${run.map(point => place(point, startUs, spanUs, full)).join('L')}${run.length === 1 ? 'h0.1' : ''}`)
    .join('');
}

/** Path data of the areas under lines. */
export function areaPath(runs: readonly Point[][], startUs: number, spanUs: number, full: number): string {
  return runs
    .map(run => {
      const floor = (point: Point | undefined): string =>
        place({ timeUs: point?.timeUs ?? 0, value: 0 }, startUs, spanUs, full);
      return `M${floor(run[0])}L${run.map(point => place(point, startUs, spanUs, full)).join('L')}L${floor(run[run.length - 1])}Z`;
    })
    .join('');
}

export class GraphView {
  readonly node = element('div', 'gpumem-graph');

  constructor(private readonly _context: ViewContext) {
    const { trans } = _context;
    const svg = document.createElementNS(SVG, 'svg');
    svg.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute('preserveAspectRatio', 'none');
    svg.setAttribute('aria-hidden', 'true');
    svg.append(this._area, this._line, this._busy);
    this._plot.append(svg, this._cursor);
    this._plot.setAttribute('role', 'img');
    this._plot.tabIndex = 0;
    this._cursor.hidden = true;
    this._range = button('gpumem-range', '', null, () => this._context.actions.ranges(this._range));
    this._range.setAttribute('aria-haspopup', 'menu');
    const caption = element(
      'div',
      'gpumem-caption',
      element('span', 'gpumem-span', this._range),
      element('span', 'gpumem-key gpumem-key-memory', trans.__('memory')),
      this._busyKey
    );
    setText(this._busyKey, trans.__('utilisation'));
    this.node.append(this._plot, caption);
    this._plot.addEventListener('pointermove', event => this._point(event));
    this._plot.addEventListener('pointerleave', () => this._leave());
    this._plot.addEventListener('focus', () => this._speak());
    this._speak();
  }

  /** @param force Draw even if nothing visible can have changed since the last drawing. */
  update(data: GraphData, force: boolean): void {
    const columnUs = data.spanUs / WIDTH;
    // A graph of an hour has columns of 15 s: redrawing it each second would show nothing new.
    if (!force && this._data?.spanUs === data.spanUs && data.nowUs - this._drawnUs < 0.8 * columnUs) {
      this._data = data;
      return;
    }
    this._data = data;
    this._drawnUs = data.nowUs;
    const startUs = data.nowUs - data.spanUs;
    const memory = data.total ? data.memory.runs(startUs, columnUs, 'max') : [];
    setAttribute(this._area, 'd', areaPath(memory, startUs, data.spanUs, data.total ?? 1));
    setAttribute(this._line, 'd', linePath(memory, startUs, data.spanUs, data.total ?? 1));
    const busy = data.utilization?.runs(startUs, columnUs, 'mean') ?? [];
    setAttribute(this._busy, 'd', linePath(busy, startUs, data.spanUs, 100));
    this._busyKey.hidden = data.utilization === null;
    const { trans } = this._context;
    setText(this._range, trans.__('last %1', formatAge(data.spanUs / 1e6)));
    setAttribute(this._range, 'aria-label', `${this._range.textContent}. ${trans.__('Show another time')}`);
  }

  private _point(event: PointerEvent): void {
    const data = this._data;
    if (!data) {
      return;
    }
    const box = this._plot.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const timeUs = data.nowUs - data.spanUs * (1 - share);
    this._cursor.hidden = false;
    this._cursor.style.transform = `translateX(${Math.round(share * box.width)}px)`;
    this._context.tip.show(`${formatClock(timeUs)}  ${this._describe(timeUs)}`, event.clientX, box.bottom + 6);
  }

  private _describe(timeUs: number): string {
    const { trans } = this._context;
    const memory = this._data?.memory.at(timeUs);
    const busy = this._data?.utilization?.at(timeUs);
    const words = [
      ...(memory ? [bytesText(this._context, memory.value)] : []),
      ...(busy ? [trans.__('%1 busy', formatPercent(busy.value / 100))] : [])
    ];
    return words.join(' · ') || trans.__('not recorded');
  }

  private _leave(): void {
    this._cursor.hidden = true;
    this._context.tip.hide();
  }

  /** The graph in words, made when somebody asks for it. */
  private _speak(): void {
    const { trans } = this._context;
    const data = this._data;
    let highest = 0;
    for (const { timeUs, value } of data?.memory.entries() ?? []) {
      highest = timeUs >= (data?.nowUs ?? 0) - (data?.spanUs ?? 0) ? Math.max(highest, value ?? 0) : highest;
    }
    const words = data
      ? trans.__(
          'History of the last %1: now %2, most memory %3',
          formatAge(data.spanUs / 1e6),
          this._describe(data.nowUs),
          bytesText(this._context, highest)
        )
      : trans.__('History of memory and utilisation');
    setAttribute(this._plot, 'aria-label', words);
  }

  private readonly _plot = element('div', 'gpumem-plot');
  private readonly _cursor = element('div', 'gpumem-cursor');
  private readonly _range: HTMLButtonElement;
  private readonly _busyKey = element('span', 'gpumem-key gpumem-key-busy');
  private readonly _area = path('gpumem-area');
  private readonly _line = path('gpumem-line');
  private readonly _busy = path('gpumem-busy');
  private _data: GraphData | null = null;
  private _drawnUs = 0;
}
