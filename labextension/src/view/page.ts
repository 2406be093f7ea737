/** What stands on a view's page: the report of one recording, or a comparison of two. */

import type { Action } from './input/keys';

export interface Page {
  dispose(): void;
  /** `onPaper`: for what is about to be printed. */
  setTheme(dark: boolean, onPaper: boolean): void;
  perform(action: Action): void;
  /** A picture has the focus, so that single letters are its keys. */
  hasFocus(): boolean;
  /** Give the focus to a picture. */
  focus(): void;
}
