/** The plugin of outputs: keeps a report readable in a notebook whose kernel is gone, and leads from one cell to another. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { followJumps } from './jump';
import { drawReports } from './renderer';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'gpumem-magic:output',
  description: 'Shows the picture of a report where its live view is not to be had, and goes to the cells it names.',
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_app: JupyterFrontEnd, tracker: INotebookTracker): void => {
    // Each notebook has renderers of its own, a copy of the application's; ipywidgets adds its there, too.
    tracker.forEach(panel => {
      drawReports(panel.content.rendermime);
    });
    followJumps(tracker);
    tracker.widgetAdded.connect((_sender, panel) => drawReports(panel.content.rendermime));
  }
};

export default plugin;
