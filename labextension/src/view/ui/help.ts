/** The `?` sheet. */

import { BINDINGS, GESTURES } from '../input/keys';
import { button, h } from './dom';

export function helpSheet(onClose: () => void): HTMLElement {
  const keys = (shown: readonly string[]): HTMLElement =>
    h('dt', {}, ...shown.flatMap(key => [h('kbd', {}, key), ' ']));
  return h(
    'div',
    { class: 'sheet', role: 'dialog', 'aria-label': 'Keys and gestures', tabindex: -1 },
    h('h3', {}, 'Mouse'),
    h('dl', {}, ...GESTURES.flatMap(([shown, help]) => [keys(shown), h('dd', {}, help)])),
    h('h3', {}, 'Keys'),
    h('dl', {}, ...BINDINGS.flatMap(({ shown, help }) => [keys(shown), h('dd', {}, help)])),
    h(
      'p',
      { class: 'muted' },
      'A column of the picture shows its fullest moment; what is not there all through it is paler. ' +
        'Tables: arrow keys move, Enter keeps the row’s bands stressed, Ctrl+C copies the row.'
    ),
    button('Close', onClose)
  );
}
