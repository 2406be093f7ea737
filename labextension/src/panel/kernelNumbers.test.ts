import { Signal } from '@lumino/signaling';
import { describe, expect, it } from 'vitest';
import { COMM_ID, KernelListener, parseKernelNumbers } from './kernelNumbers';

/** A kernel's connection as far as the listener uses it. */
class Connection {
  username = 'me';
  clientId = 'page';
  sent: { header: { msg_type: string }; content: unknown }[] = [];
  iopubMessage = new Signal<this, unknown>(this);
  statusChanged = new Signal<this, string>(this);

  constructor(private readonly _comms: Record<string, unknown>) {}

  requestCommInfo(): Promise<unknown> {
    return Promise.resolve({ content: { status: 'ok', comms: this._comms } });
  }

  sendShellMessage(message: Connection['sent'][0]): void {
    this.sent.push(message);
  }

  push(commId: string, allocated: number, session = 'first process'): void {
    const data = { protocol: 1, devices: [{ key: 'cuda:0', allocated }] };
    this.iopubMessage.emit({ header: { msg_type: 'comm_msg', session }, content: { comm_id: commId, data } });
  }
}

async function listen(kernel: Connection): Promise<KernelListener> {
  const listener = new KernelListener();
  listener.attach(kernel as never);
  await new Promise(resolve => setTimeout(resolve));
  return listener;
}

describe('the listener', () => {
  it('asks a kernel that has the extension, and only that', async () => {
    const [with_, without] = [new Connection({ [COMM_ID]: {} }), new Connection({ widget: {} })];
    await listen(with_);
    await listen(without);
    expect(with_.sent.map(message => [message.header.msg_type, message.content])).toEqual([
      ['comm_msg', { comm_id: COMM_ID, data: {} }]
    ]);
    expect(without.sent).toEqual([]);
  });

  it('reads the messages of that comm, also of a kernel that loads the extension later', async () => {
    const kernel = new Connection({});
    const listener = await listen(kernel);
    kernel.push('another', 1);
    expect(listener.numbers).toBeNull();
    kernel.push(COMM_ID, 5);
    expect(listener.numbers?.devices[0]?.allocated).toBe(5);
  });

  it('forgets at a restart and with another kernel', async () => {
    const [first, second] = [new Connection({}), new Connection({})];
    const listener = await listen(first);
    first.push(COMM_ID, 5);
    first.statusChanged.emit('restarting');
    expect(listener.numbers).toBeNull();
    listener.attach(second as never);
    first.push(COMM_ID, 6);
    expect(listener.numbers).toBeNull();
  });
});

describe('after a restart', () => {
  it('what the former process still says is not taken for the next one’s', async () => {
    const kernel = new Connection({});
    const listener = await listen(kernel);
    // The restart may come before any number; a message of another kind has told the process.
    kernel.push('another', 1);
    kernel.statusChanged.emit('restarting');
    kernel.push(COMM_ID, 5);
    expect(listener.numbers).toBeNull();
    kernel.push(COMM_ID, 6, 'second process');
    expect(listener.numbers?.devices[0]?.allocated).toBe(6);
    kernel.statusChanged.emit('autorestarting');
    for (const session of ['first process', 'second process']) {
      kernel.push(COMM_ID, 7, session);
    }
    expect(listener.numbers).toBeNull();
    kernel.push(COMM_ID, 8, 'third process');
    expect(listener.numbers?.devices[0]?.allocated).toBe(8);
  });
});

describe('a kernel’s message', () => {
  const numbers = { protocol: 1, timeUs: 4, devices: [{ key: 'cuda:0', allocated: 5, reserved: 'x' }] };

  it('gives what torch tells, and unknown for the rest', () => {
    expect(parseKernelNumbers(numbers)?.devices[0]).toMatchObject({ key: 'cuda:0', allocated: 5, reserved: null });
    expect(parseKernelNumbers(numbers)).toMatchObject({ cells: [], alive: [] });
    expect(parseKernelNumbers({ protocol: 2, devices: [] })).toBeNull();
    expect(parseKernelNumbers(null)).toBeNull();
  });

  it('gives the measured runs, also of a kernel that tells less', () => {
    const cells = [
      { cellId: 'c1', title: 'In [7]', peak: 9, stayed: -2, run: 2, runs: 3, leak: 'grows' },
      { cellId: 4 },
      5
    ];
    const nothing = { freed: null, leak: null, line: null, outcome: null, run: null, runs: null, seconds: null };
    const empty = { ...nothing, cellId: null, title: '?', peak: null, stayed: null };
    expect(parseKernelNumbers({ ...numbers, cells })?.cells).toEqual([
      { ...nothing, cellId: 'c1', title: 'In [7]', peak: 9, stayed: -2, run: 2, runs: 3, leak: 'grows' },
      empty,
      empty
    ]);
  });

  it('gives what is alive', () => {
    const rows = [
      { cellId: 'c1', title: 'In [4]', bytes: 8, blocks: 2, names: ['x', 'y', 'z', 'w'], lastUsed: 'In [9]' }
    ];
    const alive = [
      { key: 'cuda:0', total: 9, rows },
      { key: 'cpu', total: null, unsure: 3, rows: null }
    ];
    expect(parseKernelNumbers({ ...numbers, alive })?.alive).toEqual([
      {
        key: 'cuda:0',
        total: 9,
        unsure: 0,
        rows: [
          { cellId: 'c1', title: 'In [4]', line: null, bytes: 8, blocks: 2, names: ['x', 'y', 'z'], lastUsed: 'In [9]' }
        ]
      },
      { key: 'cpu', total: null, unsure: 3, rows: [] }
    ]);
  });
});
