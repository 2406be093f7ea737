/** What the colours and dashes mean; each entry hides or shows its band or line. */

import type { Line } from '../draw/lines';
import { type Colours, DASHES, type LineName, toneColour } from '../draw/palette';
import { formatBytes } from '../format';
import type { Band } from '../model/bands';
import type { Session } from '../session';
import { bdi, button, h, replace } from './dom';

export const LINE_HELP: Record<LineName, string> = {
  allocated: 'Bytes in live tensors',
  reserved: 'What torch’s allocator holds of the device',
  'device used': 'The whole device, by everyone, by the driver',
  'process used': 'This process on the device, by the driver',
  'host used': 'Memory of the host',
  'pinned host': 'Pinned host memory that torch holds for copies; its own tab says who',
  limit: 'The most that this process may reserve',
  'outside torch': 'This process less what torch reserved: context, libraries, NCCL'
};

export class Legend {
  readonly element = h('ul', { class: 'legend', 'aria-label': 'Legend' });
  readonly #session: Session;

  constructor(session: Session) {
    this.#session = session;
  }

  show(colours: Colours, above: readonly Line[]): void {
    const { bands } = this.#session.banding;
    replace(
      this.element,
      // The stack reads from its top down, so does the legend.
      ...[...bands].reverse().map(band => h('li', {}, this.#band(band, colours))),
      ...this.#session.lines.map((line, k) =>
        h('li', { class: k === 0 ? 'apart' : null }, this.#line(line, colours, above.includes(line)))
      )
    );
  }

  #band(band: Band, colours: Colours): HTMLElement {
    const session = this.#session;
    const swatch = h('span', { class: 'swatch' });
    swatch.style.background = toneColour(band.tone, colours);
    const text = h(
      'span',
      { class: 'text' },
      bdi(band.label),
      band.detail === null ? null : bdi(` ${band.detail}`, 'code')
    );
    const element = h(
      'button',
      {
        type: 'button',
        'aria-pressed': String(!session.hiddenBands.has(band.key)),
        title: `${band.label}${(band.detail ?? band.reason ?? '') === '' ? '' : `: ${band.detail ?? band.reason}`}. Click: hide or show. Double click: this one alone.`
      },
      swatch,
      text
    );
    let clicked = 0;
    element.addEventListener('click', event => {
      // One click acts at once unless a second one follows.
      clearTimeout(clicked);
      if (event.detail > 1) session.soloBand(band.key);
      else if (event.detail === 0) session.toggleBand(band.key);
      else clicked = window.setTimeout(() => session.toggleBand(band.key), 220);
    });
    const stress = (on: boolean): void =>
      session.setEmphasis(on && band.groups.length > 0 ? new Set(band.groups) : null);
    element.addEventListener('pointerenter', () => stress(true));
    element.addEventListener('pointerleave', () => stress(false));
    return element;
  }

  #line(line: Line, colours: Colours, above: boolean): HTMLElement {
    const session = this.#session;
    const shown = !session.hiddenLines.has(line.name);
    const label = above && shown ? `${line.name} ${formatBytes(line.most)} ↑` : line.name;
    const hint = above && shown ? ' Above the picture: click to scale up to it.' : ' Click: hide or show.';
    const element = button('', () => session.toggleLine(line.name, above), {
      'aria-pressed': String(shown),
      'data-name': line.name,
      title: `${LINE_HELP[line.name]}.${hint}`
    });
    element.append(stroke(line.name, colours), h('span', { class: 'text' }, label));
    return element;
  }
}

/** A line's dash and colour. */
export function stroke(name: LineName, colours: Colours): SVGSVGElement {
  const namespace = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(namespace, 'svg');
  svg.setAttribute('class', 'stroke');
  svg.setAttribute('viewBox', '0 0 20 10');
  svg.setAttribute('aria-hidden', 'true');
  const line = document.createElementNS(namespace, 'line');
  for (const [key, value] of Object.entries({
    x1: '0',
    x2: '20',
    y1: '5',
    y2: '5',
    stroke: colours.lines[name],
    'stroke-width': '1.8',
    'stroke-dasharray': DASHES[name].join(' ')
  })) {
    line.setAttribute(key, value);
  }
  svg.append(line);
  return svg;
}
