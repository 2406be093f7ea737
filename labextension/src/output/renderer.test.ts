import { Widget } from '@lumino/widgets';
import { expect, test, vi } from 'vitest';
import { drawReports, RANK, REPORT, type Rendermime, ReportRenderer, WIDGET } from './renderer';

// Lumino looks for it when it is loaded; jsdom has none.
vi.hoisted(() => {
  globalThis.DragEvent ??= class extends MouseEvent {} as typeof DragEvent;
});

/** What ipywidgets and JupyterLab draw, as far as the renderer can tell them apart. */
class Drawn extends Widget {
  constructor(
    readonly mime: string,
    readonly draw: (node: HTMLElement) => Promise<void>
  ) {
    super();
  }
  renderModel = async (): Promise<void> => this.draw(this.node);
}

const model = (...mimes: string[]): never =>
  ({ trusted: true, data: Object.fromEntries(mimes.map(mime => [mime, mime])) }) as never;

function registry(widget: ((node: HTMLElement) => Promise<void>) | null): Rendermime & { made: Drawn[] } {
  const made: Drawn[] = [];
  return {
    made,
    addFactory: vi.fn(),
    getFactory: (mime: string) => (mime === WIDGET && !widget ? undefined : ({} as never)),
    createRenderer: (mime: string) => {
      const text = async (node: HTMLElement): Promise<void> => {
        node.textContent = mime;
      };
      made.push(new Drawn(mime, mime === WIDGET && widget ? widget : text));
      return made.at(-1) as never;
    }
  };
}

const missing = async (node: HTMLElement): Promise<void> => {
  node.textContent = 'Error displaying widget: model not found';
};
const present = async (node: HTMLElement): Promise<void> => {
  node.replaceChildren(document.createElement('canvas'));
};
const shown = (renderer: ReportRenderer): string[] =>
  renderer.widgets.filter(part => !part.isHidden).map(part => (part as Drawn).mime);

test('a live widget is shown alone', async () => {
  const rendermime = registry(present);
  const renderer = new ReportRenderer(rendermime);
  await renderer.renderModel(model(REPORT, WIDGET, 'text/html'));
  expect(shown(renderer)).toEqual([WIDGET]);
  expect(rendermime.made).toHaveLength(1);
});

test('a widget whose kernel is gone gives way to the picture', async () => {
  const renderer = new ReportRenderer(registry(missing));
  await renderer.renderModel(model(REPORT, WIDGET, 'text/html'));
  expect(shown(renderer)).toEqual(['text/html']);
});

test('a widget that comes late replaces the picture, and the picture comes back when it goes', async () => {
  const rendermime = registry(missing);
  const renderer = new ReportRenderer(rendermime);
  await renderer.renderModel(model(REPORT, WIDGET, 'text/html'));
  const widget = rendermime.made[0] as Drawn;
  await present(widget.node);
  await vi.waitFor(() => expect(shown(renderer)).toEqual([WIDGET]));
  widget.node.replaceChildren();
  await vi.waitFor(() => expect(shown(renderer)).toEqual(['text/html']));
  renderer.dispose();
  expect(rendermime.made.every(part => part.isDisposed)).toBe(true);
});

test('a notebook that is opened again shows the widget once ipywidgets knows the kernel', async () => {
  const standIn = {} as never;
  const made: string[] = [];
  let factory = standIn;
  const rendermime: Rendermime = {
    addFactory: vi.fn(),
    getFactory: () => factory,
    createRenderer: mime => {
      made.push(mime);
      const isStandIn = mime === WIDGET && factory === standIn;
      // The stand-in waits for a manager that nobody gives it.
      return new Drawn(mime, isStandIn ? () => new Promise(() => {}) : present) as never;
    }
  };
  vi.useFakeTimers();
  try {
    const renderer = new ReportRenderer(rendermime);
    const drawn = renderer.renderModel(model(REPORT, WIDGET, 'text/html'));
    await vi.advanceTimersByTimeAsync(3500);
    await drawn;
    expect(shown(renderer)).toEqual(['text/html']);
    factory = {} as never;
    await vi.advanceTimersByTimeAsync(500);
    expect(shown(renderer)).toEqual([WIDGET]);
    expect(made).toEqual([WIDGET, 'text/html', WIDGET]);
    // What is shown is not looked for any more, nor what was closed.
    expect(vi.getTimerCount()).toBe(1);
    renderer.dispose();
    await vi.advanceTimersByTimeAsync(200_000);
    expect(made).toHaveLength(3);
  } finally {
    vi.useRealTimers();
  }
});

test('without ipywidgets, and without a picture, the text is shown', async () => {
  const renderer = new ReportRenderer(registry(null));
  await renderer.renderModel(model(REPORT, WIDGET, 'text/plain'));
  expect(shown(renderer)).toEqual(['text/plain']);
});

test('it comes before ipywidgets, and only in trusted notebooks', () => {
  const rendermime = registry(present);
  drawReports(rendermime);
  expect(rendermime.addFactory).toHaveBeenCalledWith(
    expect.objectContaining({ mimeTypes: [REPORT], safe: false }),
    RANK
  );
  expect(RANK).toBeLessThan(-10);
});
