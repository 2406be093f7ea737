/** What other allocator settings would have done, as `gpumem_magic/report/whatif/words.py` writes it. Bytes. */

export type Verdict = 'fits' | 'oom' | 'oom_unless_fallback' | 'fits_unless_delayed' | 'fits_unless_emptied';

export interface WhatIfRow {
  /** The setting; '' for torch's defaults. */
  conf: string;
  /** What its options do, one line each. */
  meaning: string;
  /** Peak reserved bytes, until the end or until the program dies: the point, and the range. */
  low: number;
  expected: number;
  high: number;
  /** expected − recorded peak. */
  change: number;
  /** The range in words; '' when it is one number. */
  spread: string;
  verdict: Verdict;
  /** The verdict does not depend on where the driver puts segments. */
  unanimous: boolean;
  /** The verdict in words, with the line that fails. */
  outcome: string;
  retries: number;
  /** The setting that was in force. */
  recorded: boolean;
  /** Why it was not replayed. */
  inert: string | null;
  diesBytes: number | null;
  diesAt: string | null;
  /** What the peak depends on besides the setting; absent in older documents, as the next. */
  doubts?: string[];
  /** Share of what unseen calls of empty_cache() may have been with which the point holds; null: not known. */
  agreement?: number | null;
}

export interface WhatIf {
  device: string;
  conf: string;
  reservedPeak: number;
  events: number;
  /** The model repeats the recording, address by address. */
  exact: boolean;
  /** How certain all this is, in words. */
  confidence: string;
  livePeak: number;
  packedPeak: number;
  cap: { bytes: number; why: string; collects: boolean } | null;
  rows: WhatIfRow[];
  /** `conf` of the row worth changing to. */
  best: string | null;
  recordedDies: boolean;
  conclusion: string;
  paste: { where: string; text: string }[];
  warnings: string[];
  /** Why there are ranges, a sentence for each cause. */
  ranges?: string[];
  /** Every call of empty_cache() is known, also those that left no event. */
  callsKnown?: boolean;
}

/** What the kernel says while it works. */
export interface WhatIfMessage {
  state: 'running' | 'done' | 'problem' | 'stopped';
  done?: number;
  total?: number;
  row?: WhatIfRow;
  answer?: WhatIf;
  message?: string;
  /** The corrected setting. */
  fix?: string | null;
  conf?: string;
  at?: number;
}
