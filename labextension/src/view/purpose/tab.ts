/** What memory was for: categories at the peak and at the end, and the modules that it belongs to. */

import type { Categories, CategoryRow, ModuleRow } from '../document';
import { type Colours, toneColour } from '../draw/palette';
import { formatBytes, formatCount, formatShare } from '../format';
import { categoryTone } from '../model/bands';
import type { Session } from '../session';
import { bdi, h, replace, toggle } from '../ui/dom';
import type { ExtraTab } from '../ui/tables';

const MODULES_SHOWN = 40;

export class PurposeTab implements ExtraTab {
  readonly name = 'purpose';
  readonly label = 'What for';
  readonly title = 'What memory was for: parameters, activations and so on, and their modules';
  readonly element = h('div');
  readonly followsHere = false;
  readonly #session: Session;
  #atEnd = false;

  constructor(session: Session) {
    this.#session = session;
  }

  available(): boolean {
    return this.#categories !== null;
  }

  get #categories(): Categories | null {
    return this.#session.source.recording.device.categories ?? null;
  }

  show(colours: Colours): void {
    const categories = this.#categories;
    if (categories === null) return;
    const rows = this.#atEnd ? categories.end : categories.peak;
    replace(
      this.element,
      h(
        'p',
        {},
        toggle(
          'at the end',
          this.#atEnd,
          on => {
            this.#atEnd = on;
            this.show(colours);
          },
          { title: 'Alive at the end, instead of at the peak' }
        ),
        ' ',
        'Seen: a look at live tensors found it by its storage. Inferred: from phase, line and size.'
      ),
      categoryTable(categories, rows, this.#atEnd ? 'at the end' : 'at the peak', colours),
      categories.modules.length > 0 ? moduleTable(categories, colours) : null,
      categories.reason === null ? null : h('p', {}, bdi(categories.reason))
    );
  }

  text(): string {
    const categories = this.#categories;
    if (categories === null) return '';
    const line = (row: CategoryRow): string =>
      [row.bytes, row.inferred, row.blocks, categories.names[row.category] ?? ''].join('\t');
    return ['bytes\tinferred\tblocks\tcategory', ...(this.#atEnd ? categories.end : categories.peak).map(line)].join(
      '\n'
    );
  }
}

function bytes(value: number, className = 'n'): HTMLElement {
  return h('td', { class: className, title: `${formatCount(value)} bytes` }, formatBytes(value));
}

function head(...names: string[]): HTMLElement {
  return h(
    'thead',
    {},
    h('tr', {}, ...names.map((name, k) => h('th', { class: k < names.length - 2 ? 'n' : null, scope: 'col' }, name)))
  );
}

function bar(share: number, colour: string): HTMLElement {
  const element = h('i', { 'aria-hidden': 'true' });
  element.style.width = `${share * 100}%`;
  element.style.background = colour;
  return h('td', { class: 'bar' }, element);
}

function colourOf(categories: Categories, category: number, colours: Colours): string {
  return toneColour(categoryTone(categories.kinds[category] ?? '', category), colours);
}

function categoryTable(
  categories: Categories,
  rows: readonly CategoryRow[],
  when: string,
  colours: Colours
): HTMLElement {
  const total = rows.reduce((sum, row) => sum + row.bytes, 0);
  const most = rows.reduce((sum, row) => Math.max(sum, row.bytes), 1);
  const body = rows.map(row => {
    const colour = colourOf(categories, row.category, colours);
    const swatch = h('span', { class: 'swatch', 'aria-hidden': 'true' });
    swatch.style.background = colour;
    return h(
      'tr',
      {},
      bytes(row.bytes, 'n strong'),
      h('td', { class: 'n' }, formatShare(row.bytes, total)),
      h('td', { class: 'n muted' }, row.inferred === 0 ? '' : formatShare(row.inferred, row.bytes)),
      h('td', { class: 'n' }, row.blocks === 0 ? '' : formatCount(row.blocks)),
      bar(row.bytes / most, colour),
      h('td', { class: 'where' }, swatch, bdi(categories.names[row.category] ?? ''))
    );
  });
  return h(
    'table',
    { class: 'plain' },
    h('caption', { class: 'sr' }, `What memory was for ${when}`),
    head('bytes', 'share', 'inferred', 'blocks', '', 'category'),
    h('tbody', {}, ...body),
    h('tfoot', {}, h('tr', {}, bytes(total), h('td', { colspan: 4 }), h('td', {}, when)))
  );
}

function moduleTable(categories: Categories, colours: Colours): HTMLElement {
  const shown = categories.modules.slice(0, MODULES_SHOWN);
  const most = shown.reduce((sum, row) => Math.max(sum, row.bytes), 1);
  const body = shown.map((row: ModuleRow) => {
    const parts = row.byCategory.map(([category, held]) => {
      const part = h('i', { title: `${categories.names[category] ?? ''}: ${formatBytes(held)}` });
      part.style.width = `${(held / most) * 100}%`;
      part.style.background = colourOf(categories, category, colours);
      part.style.display = 'inline-block';
      return part;
    });
    return h(
      'tr',
      {},
      bytes(row.bytes, 'n strong'),
      h('td', { class: 'n muted' }, row.inferred === 0 ? '' : formatShare(row.inferred, row.bytes)),
      h('td', { class: 'n' }, formatCount(row.blocks)),
      h('td', { class: 'bar parts' }, ...parts),
      h('td', { class: 'where' }, bdi(categories.moduleNames[row.module] ?? ''))
    );
  });
  const rest = categories.modules.length - shown.length;
  return h(
    'table',
    { class: 'plain' },
    h('caption', { class: 'sr' }, 'Modules at the peak'),
    head('bytes', 'inferred', 'blocks', '', 'module, at the peak'),
    h('tbody', {}, ...body),
    rest > 0 ? h('tfoot', {}, h('tr', {}, h('td', { colspan: 5 }, `${formatCount(rest)} more modules`))) : null
  );
}
