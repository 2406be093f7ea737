"""``gpumem-magic watch``: every GPU in the terminal, refreshed in place."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gpumem_magic._format import format_bytes
from gpumem_magic.nvml.host import read_host
from gpumem_magic.nvml.reader import Reader
from gpumem_magic.nvml.sampling import default_session
from gpumem_magic.server.attribution import Attributor

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpumem_magic.nvml.model import Device, Reading

__all__ = ["render", "watch"]

# A device this full is about to fail an allocation.
FULL_SHARE = 0.95
WIDE_SHARE = 0.8


def watch(*, interval: float, count: int | None) -> int:
    """Show readings until interrupted; a single one when the output is not a terminal.

    Parameters
    ----------
    interval
        Seconds between readings.
    count
        End after so many; None for never.
    """
    console = Console()
    reader, attributor = Reader(default_session()), Attributor()
    if not console.is_terminal:
        console.print(render(reader.read(), attributor))
        return 0
    began = time.monotonic()
    done = 0
    try:
        with Live(console=console, auto_refresh=False, transient=False) as live:
            while True:
                live.update(render(reader.read(done), attributor), refresh=True)
                done += 1
                if count is not None and done >= count:
                    return 0
                time.sleep(max(0.0, began + done * interval - time.monotonic()))
    except KeyboardInterrupt:
        # The usual end.
        return 0


def render(reading: Reading, attributor: Attributor) -> RenderableType:
    """Draw one reading.

    Parameters
    ----------
    reading
        What to draw.
    attributor
        Names the processes.
    """
    moment = time.strftime("%H:%M:%S", time.localtime(reading.time_us / 1e6))
    head = Text(f"{moment}  driver {reading.driver or 'unknown'}", style="dim")
    if reading.problem is not None:
        host = read_host()
        memory = f"host memory {format_bytes(host.used)} of {format_bytes(host.total)}"
        return Group(head, Text(reading.problem, style="yellow"), Text(memory))
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
    table.add_column("GPU", no_wrap=True)
    table.add_column("Memory", ratio=1)
    for title in ("Used", "Total", "Busy", "Temp", "Power"):
        table.add_column(title, justify="right", no_wrap=True)
    for device in reading.devices:
        _add_device(table, device)
        _add_processes(table, device, attributor)
    return Group(head, table)


def _add_device(table: Table, device: Device) -> None:
    # Names come from the driver, processes from anybody: shown as text, never as markup.
    title = Text(f"{device.index} {device.name or '?'}", style="bold")
    if device.lost is not None:
        table.add_row(title, Text(device.lost, style="red"))
        return
    memory = device.memory
    if memory is None:
        bar: RenderableType = Text(device.missing.get("memory", ""), style="yellow")
        used = total = "?"
    else:
        taken = memory.used + (memory.reserved or 0)
        share = taken / memory.total
        color = "red" if share >= FULL_SHARE else "yellow" if share >= WIDE_SHARE else "green"
        bar = ProgressBar(total=memory.total, completed=taken, complete_style=color, finished_style=color)
        used, total = format_bytes(memory.used), format_bytes(memory.total)
    power = "?" if device.power_w is None else f"{device.power_w:.0f} W"
    busy = "?" if device.utilization is None else f"{device.utilization} %"
    heat = "?" if device.temperature_c is None else f"{device.temperature_c} °C"
    table.add_row(title, bar, used, total, busy, heat, power)
    for words in (*(device.throttle or ()), *device.health):
        table.add_row("", Text(words, style="yellow"))
    for instance in device.mig:
        held = instance.memory
        sizes = ("?", "?") if held is None else (format_bytes(held.used), format_bytes(held.total))
        table.add_row(Text(f"  MIG {instance.index}"), Text(instance.name or ""), *sizes)


def _add_processes(table: Table, device: Device, attributor: Attributor) -> None:
    if device.processes is None and device.lost is None:
        table.add_row("", Text(device.missing.get("processes", ""), style="dim"))
    for process in sorted(device.processes or (), key=lambda p: -(p.used or 0)):
        owner = attributor.owner(process.pid)
        what = owner.command or owner.name or owner.missing.get("name", "")
        held = "?" if process.used is None else format_bytes(process.used)
        table.add_row(Text(f"  {process.pid}", style="dim"), Text(what, overflow="ellipsis", no_wrap=True), held)
