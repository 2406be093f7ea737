/**
 * torch's own numbers, as a kernel pushes them while cells run. The kernel opens a comm to the target `gpumem_magic`
 * and sends one `KernelNumbers` a message; nothing is executed in the kernel for it.
 */

import type { Kernel } from '@jupyterlab/services';
import { type ISignal, Signal } from '@lumino/signaling';

export const COMM_TARGET = 'gpumem_magic';
/** A ledger is read, not mined: older cells are in the notebook itself. */
const MOST_CELLS = 50;

export interface KernelNumbers {
  protocol: 1;
  timeUs: number;
  devices: TorchNumbers[];
  /** Measured cells, the last one first. */
  cells?: CellEntry[];
}

/** One measured cell, for the ledger. Bytes; null where they are unknown. */
export interface CellEntry {
  /** The cell's id in the notebook (`metadata.cellId` of its execute request); null when the front end sent none. */
  cellId: string | null;
  /** "In [7]", or the label that the user gave. */
  title: string;
  peak: number | null;
  /** What the cell left behind; negative when it freed more than it allocated. */
  stayed: number | null;
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
    cells: (Array.isArray(message.cells) ? message.cells : []).slice(0, MOST_CELLS).map(cell => ({
      cellId: typeof cell.cellId === 'string' ? cell.cellId : null,
      title: String(cell.title),
      peak: bytes(cell.peak),
      stayed: bytes(cell.stayed)
    }))
  };
}

/** Listens to the kernel of the active notebook. */
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
    if (this._kernel && !this._kernel.isDisposed) {
      this._kernel.removeCommTarget(COMM_TARGET, this._onOpen);
    }
    this._kernel = kernel;
    this._numbers = null;
    kernel?.registerCommTarget(COMM_TARGET, this._onOpen);
    this._changed.emit();
  }

  private readonly _onOpen = (comm: Kernel.IComm): void => {
    comm.onMsg = message => {
      const numbers = parseKernelNumbers(message.content.data);
      if (numbers) {
        this._numbers = numbers;
        this._changed.emit();
      }
    };
  };

  private readonly _changed = new Signal<this, void>(this);
  private _kernel: Kernel.IKernelConnection | null = null;
  private _numbers: KernelNumbers | null = null;
}
