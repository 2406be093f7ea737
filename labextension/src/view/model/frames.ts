/** A stack as a person reads it: the cell's own frame first in rank, library frames folded. */

import type { Header } from '../document';

export interface FrameText {
  file: string;
  line: number;
  name: string;
  library: boolean;
}

export type StackPart = { kind: 'frame'; frame: FrameText; cell: boolean } | { kind: 'folded'; frames: FrameText[] };

const LIBRARY =
  /[\\/](site-packages|dist-packages|lib[\\/]python\d[\d.]*)[\\/]|\\Lib\\|^<frozen |[\\/]torch[\\/](nn|optim|autograd|utils|_\w+)[\\/]/;
const CELL = /^In \[|^<ipython-input-|[\\/]ipykernel_\d+[\\/]|^<cell/;

export function isCellFile(file: string): boolean {
  return CELL.test(file);
}

/** Frames of a stack, innermost first. */
export function framesOf(header: Header, stack: number): FrameText[] {
  return (header.stacks[stack] ?? []).map(index => {
    const [file, line, name] = header.frames[index] as [number, number, number];
    const path = header.strings[file] ?? '';
    // Frames of C++ come without a file, or with one that is no Python.
    const library = LIBRARY.test(path) || path === '' || path === '??' || /\.(cpp|cc|cu|c|h|hpp|so)(\.|$)/.test(path);
    return { file: path, line, name: header.strings[name] ?? '', library: library && !isCellFile(path) };
  });
}

/** Runs of library frames become one part each; a lone one stays, for it costs no more room than its fold. */
export function foldStack(frames: readonly FrameText[]): StackPart[] {
  const parts: StackPart[] = [];
  let run: FrameText[] = [];
  const flush = (): void => {
    if (run.length === 1) parts.push({ kind: 'frame', frame: run[0] as FrameText, cell: false });
    else if (run.length > 1) parts.push({ kind: 'folded', frames: run });
    run = [];
  };
  for (const frame of frames) {
    if (frame.library) {
      run.push(frame);
      continue;
    }
    flush();
    parts.push({ kind: 'frame', frame, cell: isCellFile(frame.file) });
  }
  flush();
  return parts;
}

export function frameLabel(frame: FrameText): string {
  const file = isCellFile(frame.file) ? frame.file : (frame.file.split(/[\\/]/).at(-1) ?? frame.file);
  const where = frame.line > 0 ? `${file}:${frame.line}` : file;
  return frame.name === '' ? where : where === '' ? frame.name : `${where} ${frame.name}`;
}

/** "5 frames in torch/nn": the folder that most of the run shares. */
export function foldLabel(frames: readonly FrameText[]): string {
  const names = new Map<string, number>();
  for (const { file } of frames) {
    const parts = file.split(/[\\/]/);
    const at = parts.findLastIndex(part => /^(site-packages|dist-packages|python\d[\d.]*)$/.test(part));
    const name = at >= 0 && at + 1 < parts.length ? (parts[at + 1] as string) : 'native code';
    names.set(name, (names.get(name) ?? 0) + 1);
  }
  const most = [...names].sort((a, b) => b[1] - a[1])[0]?.[0] ?? '';
  return `${frames.length} frames in ${most}`;
}
