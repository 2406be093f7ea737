/** The JupyterLab and Notebook 7 plugin: wires model, feed and views to the application. */

import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Clipboard, ICommandPalette, Notification } from '@jupyterlab/apputils';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator, type TranslationBundle } from '@jupyterlab/translation';
import output from '../output/index';
import { Alarm } from './alarm';
import { Command } from './commands';
import { download, historyCsv } from './export';
import { Feed } from './feed';
import { formatAge, formatPair, formatPercent } from './format';
import { gpuMemoryIcon } from './icon';
import { KernelActions } from './kernelActions';
import { KernelListener } from './kernelNumbers';
import { MonitorModel } from './model';
import { GpuMemoryPanel, PANEL_ID } from './panel';
import { fullness } from './segments';
import { readSettings } from './settings';
import { StatusItem } from './views/statusItem';

const PLUGIN_ID = 'gpumem-magic:panel';
/** Third parties' ranks are 501 to 899. */
const RANK = 700;
const WARNING_MS = 10_000;

interface Parts {
  app: JupyterFrontEnd;
  model: MonitorModel;
  feed: Feed;
  panel: GpuMemoryPanel;
  trans: TranslationBundle;
  /** Null where the application keeps none, or the schema is not installed (a partial copy of the extension). */
  settings: Promise<ISettingRegistry.ISettings | null>;
}

/** How far back the graphs reach: at once on this page, and kept as a setting where there are some. */
async function setRange({ feed, model, settings }: Parts, minutes: number): Promise<void> {
  model.settings = { ...model.settings, historySeconds: minutes * 60 };
  feed.configure();
  try {
    await (await settings)?.set('historyMinutes', minutes);
  } catch {
    // They cannot be written: it holds until the page is reloaded.
  }
}

function addCommands(parts: Parts): void {
  const { app, feed, model, panel, trans } = parts;
  const { commands } = app;
  const kernels = new KernelActions(app, model, trans);
  const kernelId = (args: { [name: string]: unknown }): string => String(args.kernelId ?? '');
  const known = (args: { [name: string]: unknown }): boolean => model.kernel(kernelId(args)) !== null;
  const stamp = (): string => new Date().toISOString().slice(0, 19).replaceAll(':', '');
  commands.addCommand(Command.open, {
    label: trans.__('Show GPU Memory'),
    caption: trans.__('Which notebook holds the GPU’s memory'),
    icon: gpuMemoryIcon,
    execute: () => app.shell.activateById(PANEL_ID)
  });
  commands.addCommand(Command.openNotebook, {
    label: trans.__('Open Notebook'),
    isEnabled: args => (model.kernel(kernelId(args))?.notebooks.length ?? 0) > 0,
    execute: args => kernels.open(kernelId(args))
  });
  commands.addCommand(Command.interrupt, {
    label: trans.__('Interrupt Kernel…'),
    isEnabled: known,
    execute: args => kernels.interrupt(kernelId(args))
  });
  commands.addCommand(Command.restart, {
    label: trans.__('Restart Kernel…'),
    isEnabled: known,
    execute: args => kernels.restart(kernelId(args))
  });
  commands.addCommand(Command.shutdown, {
    label: trans.__('Shut Down Kernel…'),
    isEnabled: known,
    execute: args => kernels.shutdown(kernelId(args))
  });
  commands.addCommand(Command.copy, {
    label: args => String(args.label ?? trans.__('Copy')),
    execute: args => Clipboard.copyToSystem(String(args.text ?? ''))
  });
  commands.addCommand(Command.exportCsv, {
    label: trans.__('Save GPU Memory History as CSV'),
    isEnabled: () => model.state !== null,
    execute: async () => {
      await feed.requestAll();
      download(`gpu-memory-${stamp()}.csv`, 'text/csv', historyCsv(model));
    }
  });
  commands.addCommand(Command.exportHtml, {
    label: trans.__('Save GPU Memory Panel as HTML'),
    isEnabled: () => model.state !== null && panel.isVisible,
    execute: () => download(`gpu-memory-${stamp()}.html`, 'text/html', panel.toHtml())
  });
  commands.addCommand(Command.range, {
    label: args => trans.__('Last %1', formatAge(60 * Number(args.minutes))),
    isToggled: args => model.settings.historySeconds === 60 * Number(args.minutes),
    execute: args => setRange(parts, Number(args.minutes))
  });
  commands.addCommand(Command.settings, {
    label: trans.__('GPU Memory Settings…'),
    isEnabled: () => commands.hasCommand('settingeditor:open'),
    execute: () => commands.execute('settingeditor:open', { query: 'GPU memory' })
  });
}

/** Bring a cell into view; several notebooks may share the kernel that told its id. */
function jump(app: JupyterFrontEnd, notebooks: NotebookPanel[], cellId: string): void {
  for (const notebook of notebooks) {
    const at = notebook.content.widgets.findIndex(cell => cell.model.id === cellId);
    if (at >= 0) {
      app.shell.activateById(notebook.id);
      notebook.content.activeCellIndex = at;
      void notebook.content.scrollToItem(at, 'smart');
      return;
    }
  }
}

/** Hear every open notebook's kernel, and show the one in front. */
function followNotebooks({ app, model, panel }: Parts, tracker: INotebookTracker): void {
  const listeners = new Map<NotebookPanel, KernelListener>();
  const kernelOf = (notebook: NotebookPanel): Kernel.IKernelConnection | null =>
    notebook.sessionContext.session?.kernel ?? null;
  const show = (): void => {
    const notebook = tracker.currentWidget;
    const others = [...listeners.keys()].filter(other => other !== notebook);
    panel.active = notebook && {
      name: notebook.title.label,
      kernelId: kernelOf(notebook)?.id ?? null,
      numbers: listeners.get(notebook)?.numbers ?? null,
      jump: cellId => jump(app, [notebook, ...others], cellId)
    };
  };
  const follow = (notebook: NotebookPanel): void => {
    if (listeners.has(notebook)) {
      return;
    }
    const listener = new KernelListener();
    listeners.set(notebook, listener);
    let known: string | null = null;
    listener.changed.connect(() => {
      const id = kernelOf(notebook)?.id ?? null;
      if (known !== null && known !== id) {
        model.report(known, null);
      }
      known = id;
      if (id !== null) {
        model.report(id, listener.numbers);
      }
      if (notebook === tracker.currentWidget) {
        show();
      }
    });
    const attach = (): void => listener.attach(kernelOf(notebook));
    notebook.sessionContext.kernelChanged.connect(attach);
    notebook.title.changed.connect(show);
    notebook.disposed.connect(() => {
      listener.attach(null);
      listeners.delete(notebook);
      show();
    });
    attach();
  };
  tracker.forEach(follow);
  tracker.widgetAdded.connect((_, notebook) => follow(notebook));
  tracker.currentChanged.connect(show);
  show();
}

function watchThreshold(app: JupyterFrontEnd, model: MonitorModel, trans: TranslationBundle): void {
  const alarm = new Alarm();
  model.changed.connect((_, change) => {
    if (change !== 'tick' && change !== 'structure') {
      return;
    }
    for (const device of alarm.check(model.devices, model.settings.warnAt)) {
      const used = (device.memoryUsed ?? 0) + (device.memoryReserved ?? 0);
      const [part, whole] = formatPair(used, device.memoryTotal ?? 0, model.settings.units);
      const share = formatPercent(fullness(device) ?? 0);
      Notification.warning(trans.__('GPU %1 is %2 full: %3 of %4.', String(device.index), share, part, whole), {
        autoClose: WARNING_MS,
        actions: [{ label: trans.__('Show'), callback: () => void app.commands.execute(Command.open) }]
      });
    }
  });
}

function addStatusItem(
  app: JupyterFrontEnd,
  bar: IStatusBar,
  model: MonitorModel,
  feed: Feed,
  trans: TranslationBundle
): void {
  const item = new StatusItem(model, trans, () => void app.commands.execute(Command.open));
  bar.registerStatusItem(`${PLUGIN_ID}-status`, {
    item,
    align: 'left',
    rank: 100,
    isActive: () => item.active,
    activeStateChanged: item.activeChanged
  });
  // Without devices there is nothing to look at, and nothing is polled for it.
  const look = (): void => {
    const hopeless = model.state !== null && model.devices.length === 0;
    feed.look('status', model.settings.showStatusItem && !hopeless);
  };
  model.changed.connect((_, change) => {
    if (change === 'structure') {
      look();
    }
  });
  look();
}

async function followSettings({ feed, model, settings: loading }: Parts): Promise<void> {
  const settings = await loading;
  if (!settings) {
    return;
  }
  const read = (): void => {
    model.settings = readSettings(settings.composite);
    feed.configure();
  };
  settings.changed.connect(read);
  read();
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: 'GPU memory by notebook: a panel for the right side area and an item for the status bar.',
  autoStart: true,
  // ILabShell and IStatusBar do not exist in Notebook 7: nothing of JupyterLab's own may be required.
  optional: [ITranslator, ISettingRegistry, ILayoutRestorer, ICommandPalette, INotebookTracker, IStatusBar],
  activate: async (
    app: JupyterFrontEnd,
    translator: ITranslator | null,
    registry: ISettingRegistry | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null,
    tracker: INotebookTracker | null,
    statusBar: IStatusBar | null
  ): Promise<void> => {
    const trans = (translator ?? nullTranslator).load('gpumem_magic');
    const model = new MonitorModel();
    const feed = new Feed(model, app.serviceManager.serverSettings);
    const panel = new GpuMemoryPanel({
      model,
      trans,
      commands: app.commands,
      look: visible => feed.look('panel', visible)
    });
    const settings = registry?.load(PLUGIN_ID).catch(() => null) ?? Promise.resolve(null);
    const parts: Parts = { app, model, feed, panel, trans, settings };
    addCommands(parts);
    app.shell.add(panel, 'right', { rank: RANK, type: 'GPU Memory' });
    restorer?.add(panel, PANEL_ID);
    palette?.addItem({ command: Command.open, category: trans.__('GPU memory') });
    palette?.addItem({ command: Command.exportCsv, category: trans.__('GPU memory') });
    if (tracker) {
      followNotebooks(parts, tracker);
    }
    await followSettings(parts);
    watchThreshold(app, model, trans);
    if (statusBar) {
      addStatusItem(app, statusBar, model, feed, trans);
    }
  }
};

export default [plugin, output];
