/** The way from a view to a cell of the notebook around it. */

import type { CellSpan } from '../document';
import { bdi, button, h } from '../ui/dom';

/** Asks the page around for a cell; false where nobody there can show it. */
export function goToCell(from: Element, cell: CellSpan): boolean {
  // A listener outside (the JupyterLab extension) says by preventDefault that it went there.
  const event = new CustomEvent('gpumem-jump', {
    detail: { cellId: cell.cellId, title: cell.title },
    bubbles: true,
    composed: true,
    cancelable: true
  });
  return cell.cellId !== null && !from.dispatchEvent(event);
}

/** A button that goes to a cell; what to look for where nobody can. Nothing where the cell is not known. */
export function goButton(cell: CellSpan): HTMLElement | null {
  if (cell.cellId === null) return null;
  const go = button(
    'go to it',
    () => {
      if (goToCell(go, cell)) return;
      const where = cell.executionCount === null ? cell.title : `In [${cell.executionCount}]`;
      go.replaceWith(h('span', { class: 'muted', role: 'status' }, 'look for ', bdi(where)));
    },
    { title: `Scroll the notebook to ${cell.title}` }
  );
  return go;
}
