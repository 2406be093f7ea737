"""``gpumem-magic watch``: every GPU in the terminal, refreshed in place."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gpumem_magic._format import format_bytes
from gpumem_magic.cli.pace import Pace
from gpumem_magic.nvml.host import read_host
from gpumem_magic.nvml.reader import Reader
from gpumem_magic.nvml.sampling import default_session
from gpumem_magic.server.attribution import Attributor, Directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from gpumem_magic.nvml.model import Device, Process, Reading

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
    pace = Pace(interval)
    done = 0
    try:
        with Live(console=console, auto_refresh=False, transient=False) as live:
            while True:
                # Also forgets the processes of the past.
                attributor.update(Directory())
                live.update(render(reader.read(done), attributor), refresh=True)
                done += 1
                if count is not None and done >= count:
                    return 0
                pace.wait()
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
    parts: list[RenderableType] = [head]
    for device in reading.devices:
        parts.append(_device_row(device))
        parts.extend(Text(f"    {words}", style="yellow") for words in _notes(device))
        parts.extend(_instances(device))
        if not device.mig:
            parts.extend(_holders(device.processes or (), attributor))
    return Group(*parts)


def _device_row(device: Device) -> RenderableType:
    # Every device has a grid of its own with the same widths, so that lines under it may use the whole terminal.
    row = Table.grid(expand=True, padding=(0, 1))
    row.add_column(ratio=3, no_wrap=True, overflow="ellipsis")
    row.add_column(ratio=4)
    for width in (22, 6, 6, 14):
        row.add_column(justify="right", no_wrap=True, width=width)
    # Names come from the driver, processes from anybody: shown as text, never as markup.
    title = Text(f"{device.index}  {device.name or '?'}", style="bold")
    memory = device.memory
    if memory is None:
        row.add_row(title, "", "?", _or_unknown(device.utilization, "%"), _or_unknown(device.temperature_c, "°C"), "")
        return row
    taken = memory.used + (memory.reserved or 0)
    share = taken / memory.total
    color = "red" if share >= FULL_SHARE else "yellow" if share >= WIDE_SHARE else "green"
    power = "?" if device.power_w is None else f"{device.power_w:.0f} W"
    if device.power_w is not None and device.power_limit_w is not None:
        power = f"{device.power_w:.0f} / {device.power_limit_w:.0f} W"
    row.add_row(
        title,
        ProgressBar(total=memory.total, completed=taken, complete_style=color, finished_style=color),
        f"{format_bytes(memory.used)} / {format_bytes(memory.total)}",
        _or_unknown(device.utilization, "%"),
        _or_unknown(device.temperature_c, "°C"),
        power,
    )
    return row


def _or_unknown(value: int | None, unit: str) -> str:
    return "?" if value is None else f"{value} {unit}"


def _notes(device: Device) -> Iterator[str]:
    if device.lost is not None:
        yield f"lost: {device.lost}"
        return
    if device.unified:
        yield "shares the host's memory"
    for field in ("memory", "processes"):
        if field in device.missing and not device.mig:
            yield f"{field} unknown: {device.missing[field]}"
    yield from device.throttle or ()
    yield from device.health


def _instances(device: Device) -> Iterator[RenderableType]:
    for instance in device.mig:
        memory = instance.memory
        size = "?" if memory is None else f"{format_bytes(memory.used)} / {format_bytes(memory.total)}"
        holders = ", ".join(str(process.pid) for process in instance.processes)
        yield Text(f"    MIG {instance.index}  {instance.name or ''}  {size}  {holders and 'PID ' + holders}")


def _holders(processes: Sequence[Process], attributor: Attributor) -> Iterator[RenderableType]:
    for process in sorted(processes, key=lambda p: -(p.used or 0)):
        owner = attributor.owner(process.pid)
        what = owner.command or owner.name or owner.missing.get("name", "")
        held = "?" if process.used is None else format_bytes(process.used)
        yield Text(f"    {process.pid:>8}  {held:>9}  {what}", no_wrap=True, overflow="ellipsis")
