import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';

/** The sidebar's plugins. */
const plugins: JupyterFrontEndPlugin<void>[] = [
  {
    id: 'gpumem-magic:panel',
    description: 'GPU memory beside the notebook.',
    autoStart: true,
    activate: (_app: JupyterFrontEnd): void => undefined
  }
];

export default plugins;
