/** The panel as a lumino widget: knows when it is on screen, and opens the menus. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { TranslationBundle } from '@jupyterlab/translation';
import { MenuSvg } from '@jupyterlab/ui-components';

import type { Message } from '@lumino/messaging';
import { type Menu, Widget } from '@lumino/widgets';
import { Command } from './commands';
import { panelHtml } from './export';
import { browserStorage, Folds } from './folds';
import { gpuMemoryIcon } from './icon';
import type { MonitorModel } from './model';
import type { Actions } from './views/context';
import type { ActiveNotebook } from './views/notebookSection';
import { PanelView } from './views/panelView';
import { Tip } from './views/tip';

export const PANEL_ID = 'gpumem-magic-panel';
/** What the graphs' menu offers; the setting takes any number up to a day. */
const RANGES_MIN = [1, 5, 10, 30, 60, 6 * 60, 24 * 60];

export interface PanelOptions {
  model: MonitorModel;
  trans: TranslationBundle;
  commands: JupyterFrontEnd['commands'];
  /** Called when the panel comes on screen or leaves it. */
  look: (visible: boolean) => void;
}

export class GpuMemoryPanel extends Widget {
  constructor(private readonly _options: PanelOptions) {
    super({ node: document.createElement('div') });
    const { model, trans } = _options;
    this.id = PANEL_ID;
    this.title.icon = gpuMemoryIcon;
    this.title.caption = trans.__('GPU memory');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('GPU memory'));
    this._tip = new Tip(this.node);
    const actions: Actions = {
      open: kernelId => this._run(Command.openNotebook, { kernelId }),
      copy: text => this._run(Command.copy, { text }),
      menu: (anchor, subject) => this._kernelMenu(anchor, subject),
      ranges: anchor =>
        this._popup(
          anchor,
          RANGES_MIN.map(minutes => ({ command: Command.range, args: { minutes } }))
        )
    };
    this._view = new PanelView(
      this.node,
      { model, trans, actions, tip: this._tip, folds: new Folds(browserStorage()) },
      anchor => this._panelMenu(anchor)
    );
  }

  set active(value: ActiveNotebook | null) {
    this._view.active = value;
  }

  /** The panel as a document of its own. */
  toHtml(): string {
    const { model, trans } = this._options;
    this._view.drawAll();
    return panelHtml(this.node, trans.__('GPU memory'), model.state?.timeUs ?? 0);
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this._options.look(false);
      this._view.dispose();
      this._tip.dispose();
      super.dispose();
    }
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._see(this.isVisible);
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._see(true);
  }

  protected override onBeforeHide(message: Message): void {
    super.onBeforeHide(message);
    this._see(false);
  }

  protected override onBeforeDetach(message: Message): void {
    super.onBeforeDetach(message);
    this._see(false);
  }

  private _see(visible: boolean): void {
    if (!visible) {
      this._tip.hide();
    }
    this._view.visible = visible;
    this._options.look(visible);
  }

  private _run(command: string, args: { [name: string]: string }): void {
    void this._options.commands.execute(command, args);
  }

  private _kernelMenu(anchor: HTMLElement, { kernelId, pids }: { kernelId: string | null; pids: number[] }): void {
    const items: Menu.IItemOptions[] = [];
    if (kernelId !== null) {
      const args = { kernelId };
      for (const command of [Command.openNotebook, Command.interrupt, Command.restart, Command.shutdown]) {
        items.push({ command, args });
      }
    }
    for (const pid of pids) {
      items.push({
        command: Command.copy,
        args: { text: String(pid), label: this._options.trans.__('Copy PID %1', String(pid)) }
      });
    }
    this._popup(anchor, items);
  }

  private _panelMenu(anchor: HTMLElement): void {
    this._popup(
      anchor,
      [Command.exportCsv, Command.exportHtml, Command.settings].map(command => ({ command }))
    );
  }

  private _popup(anchor: HTMLElement, items: Menu.IItemOptions[]): void {
    const { commands } = this._options;
    const menu = new MenuSvg({ commands });
    for (const item of items) {
      menu.addItem(item);
    }
    const box = anchor.getBoundingClientRect();
    menu.aboutToClose.connect(() => {
      anchor.setAttribute('aria-expanded', 'false');
      anchor.focus({ preventScroll: true });
      // The chosen command runs after this signal; the menu may go only then.
      window.setTimeout(() => menu.dispose(), 0);
    });
    anchor.setAttribute('aria-expanded', 'true');
    this._tip.hide();
    menu.open(box.left, box.bottom, { horizontalAlignment: 'left' });
    menu.activeIndex = 0;
  }

  private readonly _tip: Tip;
  private readonly _view: PanelView;
}
