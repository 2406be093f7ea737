/** Which key does what. One table feeds the key handler and the `?` sheet, so that they cannot disagree. */

export type Action =
  | 'zoomIn'
  | 'zoomOut'
  | 'panLeft'
  | 'panRight'
  | 'fit'
  | 'toStart'
  | 'toEnd'
  | 'focusSelection'
  | 'next'
  | 'previous'
  | 'peak'
  | 'here'
  | 'stretch'
  | 'axis'
  | 'log'
  | 'static'
  | 'search'
  | 'help'
  | 'escape';

interface Binding {
  action: Action;
  /** `KeyboardEvent.code` for keys meant by their place (WASD on any keyboard layout), else `KeyboardEvent.key`. */
  codes?: string[];
  keys?: string[];
  /** Works wherever the focus is inside the view, not only in the picture. */
  everywhere?: boolean;
  shown: string[];
  help: string;
}

export const BINDINGS: readonly Binding[] = [
  {
    action: 'zoomIn',
    codes: ['KeyW'],
    keys: ['+', '=', 'ArrowUp'],
    shown: ['W', '+', '↑'],
    help: 'zoom in about the mouse'
  },
  { action: 'zoomOut', codes: ['KeyS'], keys: ['-', '_', 'ArrowDown'], shown: ['S', '−', '↓'], help: 'zoom out' },
  { action: 'panLeft', codes: ['KeyA'], keys: ['ArrowLeft'], shown: ['A', '←'], help: 'earlier' },
  { action: 'panRight', codes: ['KeyD'], keys: ['ArrowRight'], shown: ['D', '→'], help: 'later' },
  { action: 'fit', keys: ['0'], shown: ['0'], help: 'show everything' },
  { action: 'toStart', keys: ['Home'], shown: ['Home'], help: 'to the beginning' },
  { action: 'toEnd', keys: ['End'], shown: ['End'], help: 'to the end' },
  { action: 'peak', keys: ['p', 'P'], shown: ['P'], help: 'go to the peak and show who is alive there' },
  { action: 'here', keys: ['Enter', ' '], shown: ['Enter'], help: 'who is alive here: at the mouse, or in the middle' },
  { action: 'stretch', codes: ['KeyR'], shown: ['R'], help: 'what happened in what is in view, as a selected range' },
  { action: 'focusSelection', codes: ['KeyF'], shown: ['F'], help: 'zoom to the selected allocation or range' },
  { action: 'next', keys: ['.'], shown: ['.'], help: 'next allocation of the same line' },
  { action: 'previous', keys: [','], shown: [','], help: 'previous allocation of the same line' },
  { action: 'axis', keys: ['t', 'T'], shown: ['T'], help: 'wall clock or one step per change' },
  { action: 'log', keys: ['l', 'L'], shown: ['L'], help: 'logarithmic bytes' },
  { action: 'static', keys: ['h', 'H'], shown: ['H'], help: 'hide what never changes' },
  { action: 'search', keys: ['/'], everywhere: true, shown: ['/'], help: 'search' },
  { action: 'help', keys: ['?'], everywhere: true, shown: ['?'], help: 'this sheet' },
  { action: 'escape', keys: ['Escape'], everywhere: true, shown: ['Esc'], help: 'close, or clear the selection' }
];

export const GESTURES: readonly [string[], string][] = [
  [['Wheel'], 'zoom about the mouse; sideways or with Shift: pan'],
  [['Drag'], 'pan; when everything is in view: select a range'],
  [['Shift', 'Drag'], 'select a range: what was allocated, freed and kept in it'],
  [['Click'], 'who is alive at this moment, and the allocation under the mouse'],
  [['Double click'], 'show everything; inside a selected range: zoom to it'],
  [['Drag on the overview'], 'move the window; beside it: choose a new one']
];

type KeyLike = Pick<KeyboardEvent, 'key' | 'code' | 'ctrlKey' | 'metaKey' | 'altKey'>;

/** The action of a key press; null for keys that belong to somebody else. */
export function actionOf(event: KeyLike, inPicture: boolean): Action | null {
  if (event.ctrlKey || event.metaKey || event.altKey) return null;
  const binding = BINDINGS.find(
    candidate =>
      (inPicture || candidate.everywhere === true) &&
      (candidate.codes?.includes(event.code) === true || candidate.keys?.includes(event.key) === true)
  );
  return binding?.action ?? null;
}
