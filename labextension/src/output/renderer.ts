/**
 * Draws a report's output in a notebook: the live widget while there is one, else the picture that the output carries.
 *
 * JupyterLab gives a trusted notebook's widget view to ipywidgets, which writes "model not found" when the kernel that
 * made it is gone, and leaves the picture beside it unused. This renderer asks ipywidgets first and falls back.
 */

import type { NotebookPanel } from '@jupyterlab/notebook';
import { Panel } from '@lumino/widgets';

/** Marks an output as ours; `gpumem_magic/widget.py` writes it. */
export const REPORT = 'application/vnd.gpumem.report+json';
export const WIDGET = 'application/vnd.jupyter.widget-view+json';
const PICTURE = 'text/html';

/** Before ipywidgets' own, which is -10. */
export const RANK = -20;

/** A widget that loads longer than this has its picture shown meanwhile. */
const GRACE_MS = 3000;
/**
 * In a notebook that is opened again ipywidgets first registers a stand-in, which draws nothing, and its own renderer
 * once the kernel is known; it hands the stand-ins that it finds what they miss, but ours lies deeper than it looks.
 */
const LOOK_MS = 400;
const LONGEST_LOOK_MS = 120_000;

export type Rendermime = Pick<NotebookPanel['content']['rendermime'], 'addFactory' | 'createRenderer' | 'getFactory'>;
type Renderer = ReturnType<Rendermime['createRenderer']>;
type MimeModel = Parameters<Renderer['renderModel']>[0];

export class ReportRenderer extends Panel {
  readonly #rendermime: Rendermime;
  readonly #observer: MutationObserver;
  #model: MimeModel | null = null;
  #live: Renderer | null = null;
  #picture: Renderer | null = null;
  #looking = 0;

  constructor(rendermime: Rendermime) {
    super();
    this.#rendermime = rendermime;
    this.#observer = new MutationObserver(() => this.#settle());
  }

  async renderModel(model: MimeModel): Promise<void> {
    this.#clear();
    this.#model = model;
    if (WIDGET in model.data && this.#rendermime.getFactory(WIDGET)) {
      this.#lookForManager(model, this.#rendermime.getFactory(WIDGET), Date.now());
      if (!(await this.#drawLive(model))) return;
    }
    await this.#settle();
  }

  /** Let ipywidgets draw; false when something else was to be drawn meanwhile. */
  async #drawLive(model: MimeModel): Promise<boolean> {
    const live = this.#rendermime.createRenderer(WIDGET);
    this.#observer.disconnect();
    this.#live?.dispose();
    this.#live = live;
    live.setHidden(this.#picture !== null);
    this.addWidget(live);
    await Promise.race([live.renderModel(model), new Promise(resolve => setTimeout(resolve, GRACE_MS))]);
    if (live !== this.#live) return false;
    // ipywidgets draws later when its manager was not ready, and takes the view away when the kernel goes.
    this.#observer.observe(live.node, { childList: true });
    return true;
  }

  #lookForManager(model: MimeModel, standIn: unknown, since: number): void {
    this.#looking = window.setTimeout(async () => {
      if (this.#isLive || Date.now() - since > LONGEST_LOOK_MS) return;
      const factory = this.#rendermime.getFactory(WIDGET);
      if (factory === undefined || factory === standIn) this.#lookForManager(model, standIn, since);
      else if (await this.#drawLive(model)) await this.#settle();
    }, LOOK_MS);
  }

  get #isLive(): boolean {
    return this.#live !== null && this.#live.node.childElementCount > 0;
  }

  override dispose(): void {
    clearTimeout(this.#looking);
    this.#observer.disconnect();
    super.dispose();
  }

  /** Show what there is: a view inside ipywidgets' element, where else only its message stands. */
  async #settle(): Promise<void> {
    if (this.isDisposed || !this.#model) return;
    const live = this.#isLive;
    this.#live?.setHidden(!live);
    if (!live && !this.#picture) {
      this.#picture = this.#rendermime.createRenderer(PICTURE in this.#model.data ? PICTURE : 'text/plain');
      this.addWidget(this.#picture);
      await this.#picture.renderModel(this.#model);
    }
    this.#picture?.setHidden(live);
  }

  #clear(): void {
    clearTimeout(this.#looking);
    this.#observer.disconnect();
    this.#live?.dispose();
    this.#picture?.dispose();
    this.#live = this.#picture = null;
  }
}

/** Let the outputs of one notebook be drawn by `ReportRenderer`. */
export function drawReports(rendermime: Rendermime): void {
  rendermime.addFactory(
    // Not safe: an untrusted notebook starts no widget; it gets the sanitised picture by JupyterLab's own rules.
    { safe: false, mimeTypes: [REPORT], createRenderer: () => new ReportRenderer(rendermime) },
    RANK
  );
}
