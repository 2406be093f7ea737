/** A pen that writes SVG. */

import type { Pen } from './pen';

/** A text is about this wide in the fonts that `FONT` asks for; only plates behind labels depend on it. */
const CHARACTER_PX = 6.2;

interface State {
  fillStyle: string;
  strokeStyle: string;
  lineWidth: number;
  globalAlpha: number;
  font: string;
  textAlign: CanvasTextAlign;
  textBaseline: CanvasTextBaseline;
  dash: number[];
  clips: number;
}

export class SvgPen implements Pen {
  fillStyle = '#000000';
  strokeStyle = '#000000';
  lineWidth = 1;
  globalAlpha = 1;
  font = '11px sans-serif';
  textAlign: CanvasTextAlign = 'left';
  textBaseline: CanvasTextBaseline = 'alphabetic';
  readonly width: number;
  readonly height: number;
  readonly #out: string[] = [];
  readonly #stack: State[] = [];
  #path = '';
  #dash: number[] = [];
  #clips = 0;
  #clipCount = 0;

  constructor(width: number, height: number) {
    this.width = width;
    this.height = height;
  }

  beginPath(): void {
    this.#path = '';
  }

  moveTo(x: number, y: number): void {
    this.#path += `M${round(x)} ${round(y)}`;
  }

  lineTo(x: number, y: number): void {
    this.#path += `L${round(x)} ${round(y)}`;
  }

  closePath(): void {
    this.#path += 'Z';
  }

  rect(x: number, y: number, width: number, height: number): void {
    this.#path += `M${round(x)} ${round(y)}h${round(width)}v${round(height)}h${round(-width)}Z`;
  }

  fill(): void {
    this.#out.push(`<path d="${this.#path}" fill="${this.fillStyle}"${this.#opacity()}/>`);
  }

  stroke(): void {
    const dash = this.#dash.length > 0 ? ` stroke-dasharray="${this.#dash.join(' ')}"` : '';
    this.#out.push(
      `<path d="${this.#path}" fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}"${dash}${this.#opacity()}/>`
    );
  }

  fillRect(x: number, y: number, width: number, height: number): void {
    this.beginPath();
    this.rect(x, y, width, height);
    this.fill();
  }

  strokeRect(x: number, y: number, width: number, height: number): void {
    this.beginPath();
    this.rect(x, y, width, height);
    this.stroke();
  }

  fillText(text: string, x: number, y: number): void {
    const anchor = this.textAlign === 'center' ? 'middle' : this.textAlign === 'right' ? 'end' : 'start';
    const shift = this.textBaseline === 'middle' ? ' dominant-baseline="central"' : '';
    this.#out.push(
      `<text x="${round(x)}" y="${round(y)}" text-anchor="${anchor}"${shift} fill="${this.fillStyle}"${this.#opacity()}>${escapeXml(text)}</text>`
    );
  }

  measureText(text: string): TextMetrics {
    return { width: text.length * CHARACTER_PX } as TextMetrics;
  }

  setLineDash(segments: number[]): void {
    this.#dash = segments;
  }

  clip(): void {
    this.#clipCount += 1;
    const id = `clip${this.#clipCount}`;
    this.#out.push(`<clipPath id="${id}"><path d="${this.#path}"/></clipPath><g clip-path="url(#${id})">`);
    this.#clips += 1;
  }

  save(): void {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline } = this;
    this.#stack.push({
      fillStyle,
      strokeStyle,
      lineWidth,
      globalAlpha,
      font,
      textAlign,
      textBaseline,
      dash: this.#dash,
      clips: this.#clips
    });
    this.#clips = 0;
  }

  restore(): void {
    const state = this.#stack.pop();
    if (state === undefined) return;
    this.#out.push('</g>'.repeat(this.#clips));
    const { dash, clips, ...plain } = state;
    Object.assign(this, plain);
    this.#dash = dash;
    this.#clips = clips;
  }

  toString(): string {
    const size = `width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}"`;
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="system-ui, sans-serif" font-size="11">${this.#out.join('')}</svg>`;
  }

  #opacity(): string {
    return this.globalAlpha === 1 ? '' : ` opacity="${this.globalAlpha}"`;
  }
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}

function escapeXml(text: string): string {
  return text.replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`);
}
