/** Questions to a kernel that a tab asks: one message out, one or more answers with the same id. */

/** Messages of the widget's comm; `kind` and `id` of an answer are those of its question. */
export interface Question {
  kind: string;
  id: number;
  [field: string]: unknown;
}

export interface Answer {
  kind: string;
  id: number;
  error: string | null;
  [field: string]: unknown;
}

export interface AskChannel {
  /** False when nobody answers any more; the reader is told by `GONE`. */
  send(question: Question): boolean;
  /** Returns what ends the subscription. */
  onReply(listener: (answer: Answer, buffer: DataView | null) => void): () => void;
}

export const GONE = 'This report no longer answers: run its cell again.';
/** A kernel that runs a cell answers after it, when it is an older one (ipykernel 6). */
export const SILENT =
  'The kernel has not answered yet: it is busy with a cell, or gone. If it was restarted, run the cell again.';

/** Several tabs and views share a channel. */
let lastId = 0;

export function nextId(): number {
  lastId += 1;
  return lastId;
}
