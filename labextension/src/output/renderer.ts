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

export type Rendermime = Pick<NotebookPanel['content']['rendermime'], 'addFactory' | 'createRenderer' | 'getFactory'>;
type Renderer = ReturnType<Rendermime['createRenderer']>;
type MimeModel = Parameters<Renderer['renderModel']>[0];

export class ReportRenderer extends Panel {
  readonly #rendermime: Rendermime;
  readonly #observer: MutationObserver;
  #model: MimeModel | null = null;
  #live: Renderer | null = null;
  #picture: Renderer | null = null;

  constructor(rendermime: Rendermime) {
    super();
    this.#rendermime = rendermime;
    this.#observer = new MutationObserver(() => this.#settle());
  }

  async renderModel(model: MimeModel): Promise<void> {
    this.#clear();
    this.#model = model;
    if (WIDGET in model.data && this.#rendermime.getFactory(WIDGET)) {
      const live = this.#rendermime.createRenderer(WIDGET);
      this.#live = live;
      this.addWidget(live);
      await Promise.race([live.renderModel(model), new Promise(resolve => setTimeout(resolve, GRACE_MS))]);
      if (live !== this.#live) return;
      // ipywidgets draws later when its manager was not ready, and takes the view away when the kernel goes.
      this.#observer.observe(live.node, { childList: true });
    }
    await this.#settle();
  }

  override dispose(): void {
    this.#observer.disconnect();
    super.dispose();
  }

  /** Show what there is: a view inside ipywidgets' element, where else only its message stands. */
  async #settle(): Promise<void> {
    if (this.isDisposed || !this.#model) return;
    const live = this.#live !== null && this.#live.node.childElementCount > 0;
    this.#live?.setHidden(!live);
    if (!live && !this.#picture) {
      this.#picture = this.#rendermime.createRenderer(PICTURE in this.#model.data ? PICTURE : 'text/plain');
      this.addWidget(this.#picture);
      await this.#picture.renderModel(this.#model);
    }
    this.#picture?.setHidden(live);
  }

  #clear(): void {
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
