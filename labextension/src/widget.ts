/** The notebook widget: wires a model of anywidget to the view. Knows nothing of what is drawn. */

import type { Answer, AskChannel, Question } from './view/ask';
import type { DetailReply, DetailRequest } from './view/document';
import type { DetailChannel } from './view/ui/detail';
import { View } from './view/view';

/** What is used of anywidget's model. */
interface Model {
  get(name: 'document'): DataView | undefined;
  get(name: 'can_detail'): boolean | undefined;
  send(content: DetailRequest | Question): void;
  on(event: string, callback: (...args: never[]) => void): void;
  off(event: string, callback: (...args: never[]) => void): void;
}

function channelOf(model: Model): DetailChannel {
  return {
    send: request => {
      if (model.get('can_detail') !== false) model.send(request);
    },
    onReply: listener => {
      const receive = (content: DetailReply, buffers: DataView[]): void => listener(content, buffers[0] ?? null);
      model.on('msg:custom', receive);
      return () => model.off('msg:custom', receive);
    }
  };
}

function askChannelOf(model: Model): AskChannel {
  return {
    send: question => {
      if (model.get('can_detail') === false) return false;
      model.send(question);
      return true;
    },
    onReply: listener => {
      const receive = (content: Answer, buffers: DataView[]): void => listener(content, buffers[0] ?? null);
      model.on('msg:custom', receive);
      return () => model.off('msg:custom', receive);
    }
  };
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const host = document.createElement('div');
  // Single letters are the picture's keys here, not the notebook's commands.
  host.dataset.lmSuppressShortcuts = 'true';
  el.append(host);
  const view = new View(host, { detail: channelOf(model), ask: askChannelOf(model) });
  const show = (): void => {
    const data = model.get('document');
    if (data !== undefined && data.byteLength > 0) {
      void view.show(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    }
  };
  model.on('change:document', show);
  show();
  return () => {
    model.off('change:document', show);
    view.dispose();
    host.remove();
  };
}

export default { render };
