/** What the picture shows: colouring, axis, scale, search, zoom, saving. */

import { formatBytes, formatCount, formatDuration } from '../format';
import type { Action } from '../input/keys';
import { type ColorBy, usefulModes } from '../model/bands';
import type { Session } from '../session';
import { button, h, replace, toggle } from './dom';
import type { SaveItem } from './exports';

export interface ToolbarActions {
  perform(action: Action): void;
  savePng(): void;
  saveSvg(): void;
  copyTable(): void;
  /** Further files that somebody can write. */
  readonly files: readonly SaveItem[];
}

/** A pause this long in typing starts the search: each one looks at every allocation. */
const TYPING_MS = 150;
/** Signs that hardly ever stand in a path or a line that one looks for as text. */
const LIKE_A_REGEX = /^(?!\/).*(?:[|^$]|\.[*+])/;

export class Toolbar {
  readonly element = h('div', { class: 'toolbar', role: 'toolbar', 'aria-label': 'Picture' });
  readonly #session: Session;
  readonly #actions: ToolbarActions;
  readonly #input = h('input', {
    type: 'search',
    placeholder: 'search',
    'aria-label': 'Search; /…/ is a regular expression',
    title: 'Text, or a regular expression between slashes. Enter: next, Shift+Enter: previous.',
    dir: 'auto'
  });
  readonly #found = h('output', { 'aria-live': 'polite' });
  #typing = 0;

  constructor(session: Session, actions: ToolbarActions) {
    this.#session = session;
    this.#actions = actions;
    this.#input.addEventListener('input', () => {
      clearTimeout(this.#typing);
      this.#typing = window.setTimeout(() => session.setQuery(this.#input.value.trim()), TYPING_MS);
    });
    this.#input.addEventListener('keydown', event => {
      if (event.key === 'Enter') {
        event.preventDefault();
        clearTimeout(this.#typing);
        if ((session.matches?.query ?? '') !== this.#input.value.trim()) session.setQuery(this.#input.value.trim());
        session.nextMatch(event.shiftKey ? -1 : 1);
      } else if (event.key === 'Escape') {
        this.#input.value = '';
        session.setQuery('');
      }
      // Letters typed here are no commands, neither ours nor the notebook's.
      event.stopPropagation();
    });
  }

  dispose(): void {
    clearTimeout(this.#typing);
  }

  focusSearch(): void {
    this.#input.focus();
    this.#input.select();
  }

  show(): void {
    const session = this.#session;
    const modes = usefulModes(session.source.recording);
    const colour = h(
      'select',
      { 'aria-label': 'Colour by' },
      ...modes.map(mode => h('option', { value: mode, selected: mode === session.colorBy }, mode))
    );
    colour.addEventListener('change', () => session.setColorBy(colour.value as ColorBy));
    const idle = session.folds.reduce((sum, fold) => sum + fold.toUs - fold.fromUs, 0);
    const axis = h('select', {
      'aria-label': 'Axis',
      title: idle > 0 ? `${formatDuration(idle)} without any change can be folded` : null
    });
    const option = (value: string, text: string, on: boolean): void =>
      void axis.append(h('option', { value, selected: on }, text));
    const time = session.axisKind === 'time';
    option('time', session.folds.length > 0 ? 'time, folded' : 'time', time && session.fold);
    if (session.folds.length > 0) option('wall', 'time, whole', time && !session.fold);
    option('event', 'per change', !time);
    axis.addEventListener('change', () =>
      session.setAxis(axis.value === 'event' ? 'event' : 'time', axis.value !== 'wall')
    );
    const menu = this.#saveMenu();
    replace(
      this.element,
      h('label', {}, 'colour', colour),
      h('label', {}, 'axis', axis),
      toggle('log', session.log, on => session.setLog(on), { title: 'Logarithmic bytes (L): shows small ones' }),
      toggle('hide unchanging', session.hideStatic, on => session.setHideStatic(on), {
        title: 'Leave out what was there before and never left (H)'
      }),
      h('span', { class: 'gap' }),
      this.#search(),
      h(
        'span',
        { class: 'zoom', role: 'group', 'aria-label': 'Zoom' },
        button('−', () => this.#actions.perform('zoomOut'), { 'aria-label': 'Zoom out', title: 'Zoom out (S)' }),
        button('⤢', () => this.#actions.perform('fit'), {
          'aria-label': 'Show everything',
          title: 'Show everything (0)'
        }),
        button('+', () => this.#actions.perform('zoomIn'), { 'aria-label': 'Zoom in', title: 'Zoom in (W)' })
      ),
      menu,
      button('?', () => this.#actions.perform('help'), {
        'aria-label': 'Keys and gestures',
        title: 'Keys and gestures (?)'
      })
    );
    this.showMatches();
  }

  #search(): HTMLElement {
    const session = this.#session;
    return h(
      'span',
      { class: 'search', role: 'search' },
      this.#input,
      this.#found,
      button('‹', () => session.nextMatch(-1), {
        'aria-label': 'Previous match',
        title: 'Previous match (Shift+Enter)'
      }),
      button('›', () => session.nextMatch(1), { 'aria-label': 'Next match', title: 'Next match (Enter)' }),
      toggle('only', session.onlyMatches, on => session.setOnlyMatches(on), { title: 'Show matches only' })
    );
  }

  /** The result of a search beside its field. */
  showMatches(): void {
    const { matches, matchAt } = this.#session;
    this.#found.title = '';
    this.#found.className = matches?.problem != null ? 'error' : '';
    if (matches === null) {
      this.#found.textContent = '';
    } else if (matches.problem !== null) {
      this.#found.textContent = matches.problem;
    } else if (matches.count === 0) {
      this.#found.textContent = LIKE_A_REGEX.test(matches.query) ? `no such text; try /${matches.query}/` : 'no match';
    } else {
      const place = matchAt < 0 ? '' : `${formatCount(matchAt + 1)} of `;
      this.#found.textContent = `${place}${formatCount(matches.count)}, ${formatBytes(matches.peak)} at most`;
      this.#found.title = `${formatBytes(matches.bytes)} in all; at most ${formatBytes(matches.peak)} at once`;
    }
  }

  #saveMenu(): HTMLElement {
    const items = h('div', { role: 'menu' });
    const open = (on: boolean): void => {
      items.classList.toggle('open', on);
      trigger.setAttribute('aria-expanded', String(on));
      // In a narrow view the menu's own side has no room for it.
      items.style.insetInlineEnd = '';
      const over = this.element.getBoundingClientRect().left - items.getBoundingClientRect().left;
      if (on && over > 0) items.style.insetInlineEnd = `${-over}px`;
    };
    const trigger = button('save', () => open(!items.classList.contains('open')), {
      'aria-haspopup': 'menu',
      'aria-expanded': 'false'
    });
    const item = (label: string, act: () => void, refused: string | null = null): HTMLElement =>
      button(
        refused === null ? label : `${label} (${refused})`,
        () => {
          open(false);
          act();
        },
        { role: 'menuitem', disabled: refused !== null }
      );
    items.append(
      item('Picture as PNG', () => this.#actions.savePng()),
      item('Picture as SVG', () => this.#actions.saveSvg()),
      item('Copy the table', () => this.#actions.copyTable()),
      ...this.#actions.files.map(({ label, act, refused }) => item(label, act, refused))
    );
    const menu = h('span', { class: 'menu' }, trigger, items);
    menu.addEventListener('focusout', event => {
      if (!menu.contains(event.relatedTarget as Node | null)) open(false);
    });
    menu.addEventListener('keydown', event => {
      if (event.key !== 'Escape') return;
      open(false);
      trigger.focus();
      event.stopPropagation();
    });
    return menu;
  }
}
