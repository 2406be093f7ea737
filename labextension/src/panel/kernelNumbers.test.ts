import { Signal } from '@lumino/signaling';
import { describe, expect, it } from 'vitest';
import { COMM_ID, KernelListener } from './kernelNumbers';

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

  push(commId: string, allocated: number): void {
    const data = { protocol: 1, devices: [{ key: 'cuda:0', allocated }] };
    this.iopubMessage.emit({ header: { msg_type: 'comm_msg' }, content: { comm_id: commId, data } });
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
