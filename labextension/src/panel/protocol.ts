/**
 * What the server tells the panel. Version 1.
 *
 * `GET {base}gpumem-magic/state` answers one `State`; `GET {base}gpumem-magic/history?seconds=N` one `History`;
 * the WebSocket `{base}gpumem-magic/feed` sends `FeedMessage`s: a full state first and after every structural change
 * (devices, processes, kernels), deltas in between. The client sends `{"type": "visible", "visible": bool}` so that
 * nothing is polled while nobody looks. Sizes in bytes, times in Unix microseconds; null means unknown, and `missing`
 * says why under the same name.
 */

export interface State {
  protocol: 1;
  /** Version of the Python package on the server. */
  package: string;
  timeUs: number;
  intervalMs: number;
  driver: string | null;
  /** One sentence with the next step when there is no usable GPU, driver or permission; else null. */
  problem: string | null;
  host: Host;
  devices: DeviceState[];
  /** Kernels that this server runs, whether or not they hold device memory. */
  kernels: KernelState[];
}

export interface Host {
  name: string;
  memoryTotal: number | null;
  memoryUsed: number | null;
  missing: Record<string, string>;
}

export interface DeviceState {
  index: number;
  uuid: string | null;
  name: string | null;
  memoryTotal: number | null;
  /** By processes; the driver's own part is `memoryReserved` and not counted in it. */
  memoryUsed: number | null;
  memoryReserved: number | null;
  memoryFree: number | null;
  /** Percent, 0 to 100. */
  utilization: number | null;
  temperatureC: number | null;
  powerW: number | null;
  powerLimitW: number | null;
  /** Why clocks are held back, in words; empty when they are not. */
  throttle: string[];
  /** Memory is the host's own (GB10, Jetson). */
  unified: boolean;
  /** The host's NUMA node that the device's memory is, too (GH200); null or absent for nearly every device. */
  numaNode?: number | null;
  processes: ProcessState[];
  /** memoryUsed − Σ processes, or null when a process's memory is unknown. */
  unattributed: number | null;
  mig: MigState[];
  missing: Record<string, string>;
  /** Trouble in words: "2 uncorrected ECC errors since boot", "Xid 79 at 14:03". */
  health?: string[];
}

export interface MigState {
  index: number;
  uuid: string | null;
  name: string | null;
  memoryTotal: number | null;
  memoryUsed: number | null;
  processes: ProcessState[];
  missing: Record<string, string>;
}

export interface ProcessState {
  pid: number;
  /** Bytes on this device; null when the driver does not tell. */
  used: number | null;
  name: string | null;
  /** Whose it is. 'kernel': of this server; 'orphan': child of a kernel that is gone; 'foreign': another PID namespace. */
  owner: 'kernel' | 'terminal' | 'server' | 'orphan' | 'other' | 'foreign';
  kernelId: string | null;
  missing: Record<string, string>;
  /** Command line, as far as this user may see it. */
  command?: string | null;
  /** When the process started. */
  startedUs?: number | null;
  /** Paths of the kernel's notebooks; of an orphan: those that its kernel had. */
  notebooks?: string[];
  /** The terminal's name when the owner is one. */
  terminal?: string | null;
  /** Not sent: `used` is what the kernel itself says (reports.ts). */
  reported?: boolean;
}

export interface KernelState {
  id: string;
  name: string;
  pid: number | null;
  /** "idle", "busy", … as the server knows it. */
  executionState: string | null;
  /** Resident host memory of the kernel and its children. */
  hostMemory: number | null;
  notebooks: { path: string; name: string; type: string }[];
  missing: Record<string, string>;
  /** Version of gpumem_magic in the kernel's own environment; null: not installed there; absent: not looked up. */
  package?: string | null;
  /** The kernel's interpreter, so that the panel can name where to install. */
  python?: string | null;
  /** Since when it is idle, so that kernels that hold memory and do nothing are seen as such; null while it works. */
  lastActivityUs?: number | null;
  /** Whether the kernel or a child has the device open; only told where PIDs cannot be matched (containers). */
  opensDevice?: boolean | null;
}

/** What the client sends on the feed. The shortest interval asked for counts; a day of history is kept in any case. */
export type ClientMessage =
  | { type: 'visible'; visible: boolean }
  | { type: 'configure'; intervalMs: number; recordInBackground: boolean };

export type FeedMessage =
  | { type: 'state'; state: State }
  | {
      type: 'delta';
      timeUs: number;
      devices: {
        index: number;
        memoryUsed: number | null;
        memoryReserved: number | null;
        memoryFree: number | null;
        utilization: number | null;
        temperatureC: number | null;
        powerW: number | null;
      }[];
      host: { memoryUsed: number | null };
    };

/**
 * Kept by the server so that a reload loses nothing; a null value is a gap. Thinned to 1,200 points of highest memory
 * and mean utilisation, or to as many as `&points=N` asks for.
 */
export interface History {
  timeUs: number[];
  devices: { uuid: string | null; index: number; memoryUsed: (number | null)[]; utilization: (number | null)[] }[];
  host: { memoryUsed: (number | null)[] };
}
