/** torch's own numbers for one device: a bar up to the limit, and the figures under it. */

import { formatPercent } from '../format';
import type { TorchNumbers } from '../kernelNumbers';
import { bytesText, type ViewContext } from './context';
import { element, type ItemView, setAttribute, setHidden, setText } from './dom';

type Field = 'allocated' | 'reserved' | 'peak' | 'limit' | 'outside';

/** A device that torch uses in the kernel of the notebook in front. */
export class TorchBlock implements ItemView<TorchNumbers> {
  readonly node = element('div', 'gpumem-torch');

  constructor(private readonly _context: ViewContext) {
    const { trans } = _context;
    const names: [Field, string, string][] = [
      ['allocated', trans.__('allocated'), trans.__('Held by tensors now')],
      ['reserved', trans.__('reserved'), trans.__('Taken from the device by torch: allocated and its cache')],
      [
        'peak',
        trans.__('peak'),
        trans.__('The most that was allocated; torch’s own counter, never reset by this panel')
      ],
      ['limit', trans.__('limit'), trans.__('What torch may reserve')],
      ['outside', trans.__('outside torch'), trans.__('Held by the process beyond torch: context, libraries, NCCL')]
    ];
    const figures = element('dl', 'gpumem-figures');
    for (const [field, name, hint] of names) {
      const value = element('dd', 'gpumem-value');
      const term = element('dt', '', name);
      term.dataset.tip = hint;
      const pair = element('div', 'gpumem-pair', term, value);
      figures.append(pair);
      this._figures.set(field, { pair, value });
    }
    this._bar.setAttribute('role', 'img');
    this._bar.append(this._allocated, this._cached, this._outside, this._peak);
    this.node.append(this._name, this._bar, figures);
  }

  update(numbers: TorchNumbers): void {
    setText(this._name, numbers.key);
    for (const [field, { pair, value }] of this._figures) {
      const bytes = numbers[field];
      setHidden(pair, bytes === null);
      setText(value, bytes === null ? '' : bytesText(this._context, bytes));
    }
    this._draw(numbers);
  }

  private _draw({ allocated, limit, outside, peak, reserved }: TorchNumbers): void {
    const whole = limit ?? 0;
    setHidden(this._bar, allocated === null || whole <= 0);
    if (allocated === null || whole <= 0) {
      return;
    }
    const width = (node: HTMLElement, bytes: number): void => {
      const text = `${(Math.min(1, Math.max(0, bytes / whole)) * 100).toFixed(2)}%`;
      if (node.style.width !== text) {
        node.style.width = text;
      }
    };
    width(this._allocated, allocated);
    width(this._cached, (reserved ?? allocated) - allocated);
    width(this._outside, outside ?? 0);
    setHidden(this._peak, peak === null);
    const at = `${(Math.min(1, (peak ?? 0) / whole) * 100).toFixed(2)}%`;
    if (this._peak.style.insetInlineStart !== at) {
      this._peak.style.insetInlineStart = at;
    }
    const share = formatPercent(Math.min(1, (reserved ?? allocated) / whole));
    setAttribute(this._bar, 'aria-label', this._context.trans.__('%1 of the limit is reserved', share));
  }

  private readonly _figures = new Map<Field, { pair: HTMLElement; value: HTMLElement }>();
  private readonly _name = element('div', 'gpumem-torch-name');
  private readonly _bar = element('div', 'gpumem-bar gpumem-torch-bar');
  private readonly _allocated = element('span', 'gpumem-part gpumem-torch-allocated');
  private readonly _cached = element('span', 'gpumem-part gpumem-torch-cached');
  private readonly _outside = element('span', 'gpumem-part gpumem-torch-outside');
  private readonly _peak = element('span', 'gpumem-torch-peak');
}
