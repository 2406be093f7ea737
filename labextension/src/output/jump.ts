/** From a view in an output to another cell of the same notebook, and back. */

import { Notification } from '@jupyterlab/apputils';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';

/** How long the way back is offered. */
const BACK_MS = 20_000;

function scrollTo(panel: NotebookPanel, index: number): void {
  panel.content.activeCellIndex = index;
  void panel.content.scrollToItem(index, 'smart');
}

/** Answer views that ask for a cell: `gpumem-jump` with the cell's id. */
export function followJumps(tracker: INotebookTracker): void {
  document.addEventListener('gpumem-jump', event => {
    const { detail, target } = event as CustomEvent<{ cellId?: unknown; title?: unknown }>;
    const panel = tracker.find(candidate => candidate.node.contains(target as Node));
    if (panel === undefined) return;
    const cells = panel.content.widgets;
    const to = cells.findIndex(cell => cell.model.id === detail.cellId);
    if (to < 0) return;
    event.preventDefault();
    const from = cells.find(cell => cell.node.contains(target as Node))?.model.id;
    // Not before the gesture is over: the notebook itself makes the cell that was double-clicked the active one.
    setTimeout(() => scrollTo(panel, to));
    Notification.info(String(detail.title), {
      autoClose: BACK_MS,
      actions: [
        {
          label: 'Back to the timeline',
          callback: () => {
            const back = panel.content.widgets.findIndex(cell => cell.model.id === from);
            if (back >= 0) scrollTo(panel, back);
          }
        }
      ]
    });
  });
}
