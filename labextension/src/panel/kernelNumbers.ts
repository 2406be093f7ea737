/**
 * torch's own numbers, as a kernel pushes them while cells run; nothing is executed in the kernel for it. A kernel with
 * the extension has one comm, whose id is fixed, and sends one `KernelNumbers` a message on it. No comm is opened from
 * here: a kernel without the extension would log an error for it, and one that has subshells would start one.
 */

import { type Kernel, KernelMessage } from '@jupyterlab/services';
import { type ISignal, Signal } from '@lumino/signaling';

export const COMM_TARGET = 'gpumem_magic';
/** gpumem_magic/magics/kernel_feed.py. */
export const COMM_ID = 'gpumem_magic';
/** A ledger is read, not mined: older cells are in the notebook itself. */
const MOST_CELLS = 50;
const MOST_ROWS = 20;
const MOST_NAMES = 3;

export interface KernelNumbers {
  protocol: 1;
  timeUs: number;
  devices: TorchNumbers[];
  /** Measured runs of cells, the last one first. */
  cells: CellEntry[];
  /** What is alive since the last cell ended, by the cell that made it; empty until one was measured. */
  alive: AliveOnDevice[];
}

/** One measured run of a cell, for the ledger. Bytes; null where they are unknown. */
export interface CellEntry {
  /** The cell's id in the notebook (`metadata.cellId` of its execute request); null when the front end sent none. */
  cellId: string | null;
  /** "In [7]", or the label that the user gave. */
  title: string;
  peak: number | null;
  /** What the cell left behind; negative when it freed more than it allocated. */
  stayed: number | null;
  /** Of what was there before, what it let go of. */
  freed: number | null;
  seconds: number | null;
  /** "ok", "error", "out of memory" or "interrupted". */
  outcome: string | null;
  /** The cell's first line of code, to tell cells apart. */
  line: string | null;
  /** This is run number `run` of `runs` measured runs of the same cell. */
  run: number | null;
  runs: number | null;
  /** One sentence, when that run left something behind that the next one does again. */
  leak: string | null;
}

/** Device memory that is alive, by the cell that made it. */
export interface AliveOnDevice {
  /** torch's notation, "cuda:0" or "cpu". */
  key: string;
  /** What torch counts, and the rows add up to; null where it does not count (CPU). */
  total: number | null;
  /** Bytes whose end nobody reported (CPU); in no row. */
  unsure: number;
  rows: AliveRow[];
}

export interface AliveRow {
  cellId: string | null;
  /** Null: made before the ledger began, or by cells that were not measured. */
  title: string | null;
  line: string | null;
  bytes: number;
  blocks: number | null;
  /** Python's names for what holds it, the largest first. */
  names: string[];
  /** "In [9]": the last cell that mentioned one of the names. */
  lastUsed: string | null;
}

/** Bytes; null where torch does not tell. */
export interface TorchNumbers {
  /** torch's notation, "cuda:0". */
  key: string;
  /** NVML's UUID, by which the device is found among the monitor's (CUDA_VISIBLE_DEVICES reorders). */
  uuid: string | null;
  allocated: number | null;
  reserved: number | null;
  peak: number | null;
  limit: number | null;
  /** Device memory of the process that torch does not account for: context, libraries, NCCL. */
  outside: number | null;
}

function bytes(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

function text(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}

function list<T>(value: unknown, most: number, each: (item: Partial<Record<string, unknown>>) => T): T[] {
  return (Array.isArray(value) ? value : []).slice(0, most).map(item => each((item ?? {}) as Record<string, unknown>));
}

function cellEntry(cell: Partial<Record<string, unknown>>): CellEntry {
  return {
    cellId: text(cell.cellId),
    title: text(cell.title) ?? '?',
    peak: bytes(cell.peak),
    stayed: bytes(cell.stayed),
    freed: bytes(cell.freed),
    seconds: bytes(cell.seconds),
    outcome: text(cell.outcome),
    line: text(cell.line),
    run: bytes(cell.run),
    runs: bytes(cell.runs),
    leak: text(cell.leak)
  };
}

function aliveRow(row: Partial<Record<string, unknown>>): AliveRow {
  return {
    cellId: text(row.cellId),
    title: text(row.title),
    line: text(row.line),
    bytes: bytes(row.bytes) ?? 0,
    blocks: bytes(row.blocks),
    names: list(row.names, MOST_NAMES, name => String(name)),
    lastUsed: text(row.lastUsed)
  };
}

/** Null when it is not a message of this protocol. */
export function parseKernelNumbers(data: unknown): KernelNumbers | null {
  const message = data as Partial<KernelNumbers> | null;
  if (message?.protocol !== 1 || !Array.isArray(message.devices)) {
    return null;
  }
  return {
    protocol: 1,
    timeUs: bytes(message.timeUs) ?? 0,
    devices: message.devices.map(device => ({
      key: String(device.key),
      uuid: typeof device.uuid === 'string' ? device.uuid : null,
      allocated: bytes(device.allocated),
      reserved: bytes(device.reserved),
      peak: bytes(device.peak),
      limit: bytes(device.limit),
      outside: bytes(device.outside)
    })),
    cells: list(message.cells, MOST_CELLS, cellEntry),
    alive: list(message.alive, Number.POSITIVE_INFINITY, device => ({
      key: text(device.key) ?? '?',
      total: bytes(device.total),
      unsure: bytes(device.unsure) ?? 0,
      rows: list(device.rows, MOST_ROWS, aliveRow)
    }))
  };
}

/** Listens to one kernel. */
export class KernelListener {
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The last numbers of the kernel that is listened to; null when it sent none. */
  get numbers(): KernelNumbers | null {
    return this._numbers;
  }

  /** Listen to another kernel, or to none. */
  attach(kernel: Kernel.IKernelConnection | null): void {
    if (kernel === this._kernel) {
      return;
    }
    this._kernel?.iopubMessage.disconnect(this._onMessage);
    this._kernel?.statusChanged.disconnect(this._onStatus);
    this._kernel = kernel;
    this._numbers = null;
    this._sessions.clear();
    this._ended.clear();
    kernel?.iopubMessage.connect(this._onMessage);
    kernel?.statusChanged.connect(this._onStatus);
    if (kernel) {
      void this._ask(kernel);
    }
    this._changed.emit();
  }

  /** Ask a kernel that has the extension for its present state. Others are only asked for their comms. */
  private async _ask(kernel: Kernel.IKernelConnection): Promise<void> {
    try {
      const { content } = await kernel.requestCommInfo({ target_name: COMM_TARGET });
      if (content.status !== 'ok' || !(COMM_ID in content.comms) || kernel !== this._kernel) {
        return;
      }
      const { username, clientId: session } = kernel;
      const question = { comm_id: COMM_ID, data: {} };
      const message = { msgType: 'comm_msg', channel: 'shell', username, session, content: question } as const;
      kernel.sendShellMessage(KernelMessage.createMessage(message), false, true);
    } catch {
      // The kernel went away meanwhile: another one will be attached.
    }
  }

  private readonly _onMessage = (_: unknown, message: KernelMessage.IIOPubMessage): void => {
    const { session } = message.header;
    if (this._ended.has(session)) {
      return;
    }
    this._sessions.add(session);
    if (!KernelMessage.isCommMsgMsg(message) || message.content.comm_id !== COMM_ID) {
      return;
    }
    const numbers = parseKernelNumbers(message.content.data);
    if (numbers) {
      this._numbers = numbers;
      this._changed.emit();
    }
  };

  private readonly _onStatus = (_: unknown, status: Kernel.Status): void => {
    if (status !== 'restarting' && status !== 'autorestarting' && status !== 'dead') {
      return;
    }
    // What the ending process still has to say comes after this, and is not the next one's.
    for (const session of this._sessions) {
      this._ended.add(session);
    }
    this._sessions.clear();
    if (this._numbers) {
      this._numbers = null;
      this._changed.emit();
    }
  };

  private readonly _changed = new Signal<this, void>(this);
  private _kernel: Kernel.IKernelConnection | null = null;
  private _numbers: KernelNumbers | null = null;
  /** Each process of a kernel has one of its own: of the present process, and of those that ended. */
  private readonly _sessions = new Set<string>();
  private readonly _ended = new Set<string>();
}
