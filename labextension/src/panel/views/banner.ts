/** A message with the command that helps, to be copied. */

import type { Message } from '../messages';
import type { ViewContext } from './context';
import { button, element, setAttribute, setHidden, setSentence, setText } from './dom';

export class Banner {
  readonly node = element('div', 'gpumem-banner');

  constructor(context: ViewContext) {
    const { trans } = context;
    const copy = button('gpumem-copy', trans.__('Copy'), trans.__('Copy the command'), () =>
      context.actions.copy(this._command.textContent ?? '')
    );
    this._line.append(this._command, copy);
    this.node.append(this._text, this._line);
    this.node.setAttribute('role', 'status');
    this.node.hidden = true;
  }

  update(message: Message | null): void {
    setHidden(this.node, message === null);
    setAttribute(this.node, 'data-level', message?.level ?? null);
    setSentence(this._text, message?.text ?? '');
    setText(this._command, message?.command ?? '');
    setHidden(this._line, !message?.command);
  }

  private readonly _text = element('p', 'gpumem-banner-text');
  private readonly _line = element('div', 'gpumem-banner-line');
  private readonly _command = element('code', 'gpumem-command');
}
