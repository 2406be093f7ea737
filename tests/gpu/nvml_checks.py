"""Our readings of a real NVIDIA driver against ``nvidia-smi`` and torch.

Each ``check_*`` takes nothing, asserts, and returns a line of what was measured.
"""

from __future__ import annotations

import asyncio
import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem_magic import nvml
from gpumem_magic.nvml.faults import Absence
from gpumem_magic.nvml.pids import DEVICE_FILES
from gpumem_magic.nvml.reader import Reader
from gpumem_magic.nvml.sampling import default_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


def smi(query: str, what: str = "gpu") -> list[list[str]]:
    command = ["nvidia-smi", f"--query-{what}={query}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def run_python(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def microseconds(call: Callable[[], object], times: int = 200) -> float:
    walls = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        walls.append(time.perf_counter() - began)
    return 1e6 * statistics.median(walls)


def check_numbers_equal_nvidia_smi() -> str:
    rows = smi("index,uuid,name,memory.total,memory.reserved,memory.used,memory.free,temperature.gpu,driver_version")
    reading = nvml.read_all()
    assert reading.problem is None
    assert len(reading.devices) == len(rows)
    worst = 0.0
    for device, row in zip(reading.devices, rows, strict=True):
        memory = device.memory
        assert memory is not None, device.missing
        assert [str(device.index), device.uuid, device.name, reading.driver] == [row[0], row[1], row[2], row[8]]
        assert memory.reserved is not None
        assert memory.total == memory.used + memory.reserved + memory.free
        ours = (memory.total, memory.reserved, memory.used, memory.free)
        for value, text in zip(ours, row[3:7], strict=True):
            worst = max(worst, abs(value / MIB - float(text)))
        assert device.temperature_c is not None
        assert abs(device.temperature_c - int(row[7])) <= 2
    assert worst <= 1.0, f"{worst} MiB apart"
    return f"{len(rows)} device(s), at most {worst:.2f} MiB from nvidia-smi"


def check_own_process_is_found_with_its_memory() -> str:
    import torch

    torch.zeros(1, device="cuda")
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    (before,) = nvml.readings(uuid)
    assert before.process_used is not None, before.missing
    held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    (after,) = nvml.readings(uuid)
    assert after.process_used is not None
    grown = after.process_used - before.process_used
    assert grown == 1 << 30, grown
    outside = after.process_used - torch.cuda.memory_reserved()
    assert 0 < outside < 2 << 30
    apps = {int(row[0]): float(row[1]) for row in smi("pid,used_memory", "compute-apps") if row[1].isdigit()}
    told = apps.get(os.getpid())
    del held
    if told is None:
        return f"grew by 1 GiB exactly, outside torch {outside / MIB:.0f} MiB; nvidia-smi does not list this PID"
    assert abs(told - after.process_used / MIB) <= 1.0
    return f"grew by 1 GiB exactly, outside torch {outside / MIB:.0f} MiB, nvidia-smi says the same"


def check_reading_starts_no_cuda() -> str:
    program = """
import os, gpumem_magic.nvml as n
before = n.process_used()
for _ in range(3): n.read_all(); n.readings()
assert n.process_used() == before == {}, "reading made a context"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch
assert not torch.cuda.is_initialized()
assert torch.cuda.device_count() == 0, "CUDA was initialised before the variable was set"
print("ok")
"""
    assert run_python(program) == "ok"
    program = """
import os, gpumem_magic.nvml as n
n.readings()
child = os.fork()
if child == 0:
    import torch
    ok = float(torch.ones(3, device="cuda").sum()) == 3 and n.readings()[0].memory is not None
    os._exit(0 if ok else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_python(program) == "0"
    return "no context, a late CUDA_VISIBLE_DEVICES counts, a forked child uses CUDA and NVML"


def check_uuid_join_when_devices_are_reordered() -> str:
    count = len(nvml.read_all().devices)
    order = "1,0" if count >= 2 else "0"
    program = """
import torch, gpumem_magic.nvml as n
held = torch.empty(512 << 20, dtype=torch.uint8, device="cuda:0")
torch.cuda.synchronize()
(reading,) = n.readings(str(torch.cuda.get_device_properties(0).uuid))
others = [r.process_used for r in n.readings() if r.index != reading.index]
assert reading.process_used >= 512 << 20, reading
assert all(used == 0 for used in others), others
print(reading.index)
"""
    found = run_python(program, CUDA_VISIBLE_DEVICES=order)
    assert found == order.split(",", maxsplit=1)[0]
    return f'CUDA_VISIBLE_DEVICES="{order}": torch device 0 is NVML device {found} of {count}'


def check_processes_are_attributed_to_their_kernels() -> str:
    from gpumem_magic.server.attribution import Attributor, Directory, KernelEntry

    count = len(nvml.read_all().devices)
    program = (
        "import sys, torch; x = torch.empty(256 << 20, dtype=torch.uint8, device=sys.argv[1]);"
        "torch.cuda.synchronize(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
    )
    # A kernel whose own process holds the memory, and one whose child does.
    in_child = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[2], sys.argv[1]])"
    devices = ["cuda:0", f"cuda:{1 if count > 1 else 0}"]
    commands = [[program, devices[0]], [in_child, devices[1], program]]
    kernels = [
        subprocess.Popen(
            [sys.executable, "-c", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for words in commands
    ]
    try:
        for kernel in kernels:
            assert kernel.stdout is not None
            assert kernel.stdout.readline() == "ready\n"
        attributor = Attributor()
        attributor.update(
            Directory(tuple(KernelEntry(str(place), "python3", kernel.pid) for place, kernel in enumerate(kernels))),
        )
        reading = nvml.read_all()
        held: dict[str, dict[int, int]] = {}
        for device in reading.devices:
            for process in device.processes or ():
                owner = attributor.owner(process.pid)
                if owner.owner == "kernel":
                    assert process.used is not None
                    held.setdefault(owner.kernel_id or "", {})[device.index] = process.used
        assert held.keys() == {"0", "1"}, held
        assert list(held["0"]) == [0]
        assert list(held["1"]) == [int(devices[1][-1])]
        assert all(used >= 256 * MIB for place in held.values() for used in place.values())
    finally:
        for kernel in kernels:
            kernel.communicate("")
    return f"two kernels on {len(set(devices))} device(s), one by its child"


# Holds memory, then keeps a cell running, so that the kernel speaks for itself meanwhile.
HOLD = """
%load_ext gpumem_magic
import torch
held = torch.empty(256 << 20, dtype=torch.uint8, device="cuda:0")
torch.cuda.synchronize()
"""
WORK = "import time\nmore = torch.empty(128 << 20, dtype=torch.uint8, device='cuda:0')\ntime.sleep(4)"


async def _state_of(pids: Mapping[str, int | None]) -> Mapping[str, Any]:
    """Let a server's monitor look once at these kernels, by notebook."""
    from gpumem_magic.server.attribution import Directory, KernelEntry
    from gpumem_magic.server.monitor import Monitor

    entries = tuple(
        KernelEntry(path, "python3", pid, notebooks=({"path": path, "name": path, "type": "notebook"},))
        for path, pid in pids.items()
    )

    async def directory() -> Directory:
        return Directory(entries)

    monitor = Monitor(
        directory,
        interval=1.0,
        record=False,
        device_files=DEVICE_FILES,
        root_dir=None,
        package="0",
        describe_kernel=lambda _pid: {},
        log=logging.getLogger("nvml_checks"),
    )
    monitor.start()
    try:
        return await monitor.fresh_state()
    finally:
        monitor.stop()


def check_two_real_kernels_in_the_monitor() -> str:
    """Two notebooks' kernels, the second with reordered devices: owners by the monitor, numbers by the kernel."""
    from jupyter_client.manager import start_new_kernel

    uuids = [device.uuid for device in nvml.read_all().devices]
    order = "1,0" if len(uuids) > 1 else "0"
    places = {"train.ipynb": 0, "eval.ipynb": int(order[0])}
    site = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    kernels = {}
    try:
        for path, env in (("train.ipynb", {}), ("eval.ipynb", {"CUDA_VISIBLE_DEVICES": order})):
            # A kernel speaks for itself only where a Jupyter server started it.
            session = {**os.environ, "PYTHONPATH": site, "JPY_SESSION_NAME": path}
            kernels[path] = start_new_kernel(kernel_name="python3", env={**session, **env})
            reply = kernels[path][1].execute_interactive(HOLD, timeout=60, output_hook=lambda _message: None)
            assert reply["content"]["status"] == "ok", reply["content"]
        pids = {path: getattr(manager.provisioner, "pid", None) for path, (manager, _client) in kernels.items()}
        state = asyncio.run(_state_of(pids))
        held = {
            (process["notebooks"][0], device["index"]): process["used"]
            for device in state["devices"]
            for process in device["processes"]
            if process["owner"] == "kernel"
        }
        assert held.keys() == set(places.items()), held
        assert all(used >= 256 * MIB for used in held.values()), held
        told: list[dict[str, Any]] = []

        def listen(message: dict[str, Any]) -> None:
            if message["msg_type"] == "comm_msg" and message["content"]["comm_id"] == "gpumem_magic":
                told.append(message["content"]["data"])

        reply = kernels["eval.ipynb"][1].execute_interactive(WORK, timeout=60, output_hook=listen)
        assert reply["content"]["status"] == "ok", reply["content"]
        rows = [row for numbers in told for row in numbers["devices"]]
        busy = [row for row in rows if row["allocated"] == 384 * MIB]
        # The last is sent after the cell; the others beside it.
        assert len(busy) >= 2, told
        mine = uuids[places["eval.ipynb"]] or ""
        assert mine.endswith(busy[-1]["uuid"]), (mine, busy[-1])
    finally:
        for manager, client in kernels.values():
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    return (
        f"two kernels on {len(set(places.values()))} device(s) by notebook, the second with CUDA_VISIBLE_DEVICES="
        f'"{order}"; it pushed its own numbers {len(busy)} times in a cell of 4 s'
    )


def check_cost_of_each_reading() -> str:
    reader = Reader(default_session())
    (uuid, *_others) = [device.uuid or "" for device in reader.read(0).devices]
    ticks = iter(range(1, 1 << 30))
    costs = {
        "memory": microseconds(lambda: nvml.readings(uuid, processes=False)),
        "memory and process": microseconds(lambda: nvml.readings(uuid)),
        "a tick of all devices": microseconds(lambda: reader.read(next(ticks))),
        "everything": microseconds(lambda: reader.read(None)),
    }
    return ", ".join(f"{name} {cost:.0f} µs" for name, cost in costs.items())


def check_xid_events_can_be_watched() -> str:
    session = default_session()
    slots = session.slots()
    events = session.ask(None, "nvmlEventSetCreate")
    assert not isinstance(events, Absence), events
    for slot in slots:
        assert slot.handle is not None
        began = time.perf_counter()
        registered = session.ask(None, "nvmlDeviceRegisterEvents", slot.handle.raw, 8, events)
        seconds = time.perf_counter() - began
        assert not isinstance(registered, Absence), registered
    cost = microseconds(lambda: session.ask(None, "nvmlEventSetWait_v2", events, 0))
    last = session.ask(None, "nvmlEventSetWait_v2", events, 0)
    assert isinstance(last, Absence)
    assert last.code == 10, last
    reader = Reader(session, xids=True)
    assert all(device.memory is not None for device in reader.read().devices)
    return f"registering {1e3 * seconds:.2f} ms a device, asking {cost:.0f} µs"


def check_xid_of_a_real_fault_is_told() -> str:
    reader = Reader(default_session(), xids=True)
    reader.read()
    # A write far outside of everything: the driver ends this child, and nothing else.
    program = """
import torch
source = 'extern "C" __global__ void wild(float* p) { p[1ull << 42] = 1.0f; }'
kernel = torch.cuda._compile_kernel(source, "wild")
kernel((1, 1, 1), (1, 1, 1), (torch.zeros(1, device="cuda"),))
torch.cuda.synchronize()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "illegal memory access" in done.stderr, done.stderr[-500:]
    deadline = time.monotonic() + 5
    while not (told := reader.read().devices[0].health) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert told, "no event came"
    assert told[0].startswith("Xid 31 at "), told
    return "; ".join(told)


def check_cost_of_polling_on_a_launch_bound_loop() -> str:
    """Compare slices of 0.3 s with and without a reading in them: a poller at 1 Hz hits every third such slice."""
    import torch

    x = torch.ones(64, 64, device="cuda")
    reader = Reader(default_session(), xids=True)
    ticks = iter(range(1 << 30))

    def launch(count: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            x.mul_(1.0)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    launch(20_000)
    count = int(20_000 * 0.3 / launch(20_000))

    def polled(readings: int) -> float:
        """Run one slice while another thread takes so many readings, spread over it."""
        ends = threading.Event()

        def poll() -> None:
            for _ in range(readings):
                if ends.wait(0.25 / readings):
                    return
                reader.read(next(ticks))

        thread = threading.Thread(target=poll)
        thread.start()
        seconds = launch(count)
        ends.set()
        thread.join()
        return seconds

    # A slice with none also starts a thread. The order alternates, so that a drift falls on both.
    told = []
    for readings, pairs in ((1, 32), (10, 12)):
        ratios = []
        for pair in range(pairs):
            order = (0, readings) if pair % 2 else (readings, 0)
            seconds = {number: polled(number) for number in order}
            ratios.append(seconds[readings] / seconds[0] - 1)
        ratios.sort()
        # The median's 95 % interval, by order statistics.
        half = 0.98 * pairs**0.5
        low, high = ratios[max(0, int(pairs / 2 - half))], ratios[min(pairs - 1, int(pairs / 2 + half))]
        share = readings / 0.3
        told.append(
            f"{readings} reading(s) in 0.3 s ({share:.1f} Hz): {100 * statistics.median(ratios):+.2f} % "
            f"[{100 * low:+.2f}, {100 * high:+.2f}], at 1 Hz {100 * statistics.median(ratios) / share:+.3f} %",
        )
    return f"{'; '.join(told)}; {count} launches a slice"


def check_optional_values_are_values_or_reasons() -> str:
    told = []
    for device in nvml.read_all().devices:
        for field in ("utilization", "temperature_c", "power_w", "power_limit_w", "throttle", "processes"):
            assert (getattr(device, field) is None) == (field in device.missing), (field, device)
        assert device.unattributed is not None or device.missing
        told.append(
            f"GPU {device.index}: throttle {device.throttle}, health {device.health}, NUMA node {device.numa_node}, "
            f"unattributed {device.unattributed}, missing {dict(device.missing)}",
        )
    return "; ".join(told)
