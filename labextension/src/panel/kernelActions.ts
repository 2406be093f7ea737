/** What can be done with a kernel from the panel. Nothing here touches a process that is not a kernel of this server. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog, type ISessionContext, showDialog, showErrorMessage } from '@jupyterlab/apputils';
import { KernelAPI } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import { formatBytes } from './format';
import type { MonitorModel } from './model';
import { heldBy } from './owners';

async function agree(trans: TranslationBundle, title: string, body: string, verb: string): Promise<boolean> {
  const buttons = [Dialog.cancelButton({ label: trans.__('Cancel') }), Dialog.warnButton({ label: verb })];
  return (await showDialog({ title, body, buttons, defaultButton: 0 })).button.accept;
}

export class KernelActions {
  constructor(
    private readonly _app: JupyterFrontEnd,
    private readonly _model: MonitorModel,
    private readonly _trans: TranslationBundle
  ) {}

  async open(kernelId: string): Promise<void> {
    const [first] = this._model.kernel(kernelId)?.notebooks ?? [];
    if (!first) {
      return;
    }
    const command = first.type === 'console' ? 'console:open' : 'docmanager:open';
    if (this._app.commands.hasCommand(command)) {
      await this._app.commands.execute(command, { path: first.path });
    }
  }

  async interrupt(kernelId: string): Promise<void> {
    const trans = this._trans;
    const title = trans.__('Interrupt the kernel of %1?', this._name(kernelId));
    const body = trans.__('The cell that runs in it is stopped; its variables stay.');
    // In a list of notebooks the row beside the meant one may be somebody's night of training.
    if (await agree(trans, title, body, trans.__('Interrupt'))) {
      await this._try(trans.__('The kernel was not interrupted'), () =>
        KernelAPI.interruptKernel(kernelId, this._app.serviceManager.serverSettings)
      );
    }
  }

  async restart(kernelId: string): Promise<void> {
    const title = this._trans.__('Restart the kernel of %1?', this._name(kernelId));
    if (await agree(this._trans, title, this._loss(kernelId), this._trans.__('Restart'))) {
      await this._try(this._trans.__('The kernel was not restarted'), async () => {
        const context = this._session(kernelId);
        if (context) {
          await context.restartKernel();
        } else {
          await KernelAPI.restartKernel(kernelId, this._app.serviceManager.serverSettings);
        }
      });
    }
  }

  async shutdown(kernelId: string): Promise<void> {
    const title = this._trans.__('Shut down the kernel of %1?', this._name(kernelId));
    if (await agree(this._trans, title, this._loss(kernelId), this._trans.__('Shut Down'))) {
      await this._try(this._trans.__('The kernel was not shut down'), async () => {
        const { kernels, sessions } = this._app.serviceManager;
        await sessions.refreshRunning();
        const mine = [...sessions.running()].filter(session => session.kernel?.id === kernelId);
        // Ending the session ends its kernel and tells open notebooks; a kernel without one is ended by itself.
        await (mine.length > 0
          ? Promise.all(mine.map(session => sessions.shutdown(session.id)))
          : kernels.shutdown(kernelId));
      });
    }
  }

  private _name(kernelId: string): string {
    return this._model.labels.get(kernelId) ?? this._trans.__('an unnamed kernel');
  }

  /** The open document that runs on a kernel, so that it follows a restart by itself. */
  private _session(kernelId: string): ISessionContext | null {
    for (const widget of this._app.shell.widgets('main')) {
      const { sessionContext: context } = widget as unknown as { sessionContext?: ISessionContext };
      if (context?.session?.kernel?.id === kernelId) {
        return context;
      }
    }
    return null;
  }

  /** What ending a kernel's process costs, and gives. */
  private _loss(kernelId: string): string {
    const { reports, state } = this._model;
    const held = (state?.devices ?? []).reduce((sum, device) => sum + (heldBy(kernelId, device, reports) ?? 0), 0);
    return held > 0
      ? this._trans.__(
          'Its variables are lost, and %1 of device memory become free.',
          formatBytes(held, this._model.settings.units)
        )
      : this._trans.__('Its variables are lost.');
  }

  private async _try(title: string, act: () => Promise<unknown>): Promise<void> {
    try {
      await act();
    } catch (error) {
      await showErrorMessage(title, error instanceof Error ? error : String(error));
    }
  }
}
