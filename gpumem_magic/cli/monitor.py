"""Commands of the family ``monitor``: one reading, a live view, a CSV log, a Prometheus exporter."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from gpumem_magic._format import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumem_magic.nvml.model import Device, Memory, Process, Reading
    from gpumem_magic.server.attribution import Owner

__all__ = ["add_parsers", "device_lines", "reading_with_owners"]

_Number = TypeVar("_Number", int, float)
# Not taken by another exporter in Prometheus' list of default ports.
DEFAULT_PORT = 9836


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register this family's commands."""
    devices = commands.add_parser(
        "devices",
        help="one reading of every GPU and its processes",
        description="Read every GPU once: memory (used by processes, reserved by the driver, free), utilization, "
        "temperature, power, throttling, trouble, MIG instances and processes. What is unknown says why.",
    )
    devices.add_argument("--json", action="store_true", help="one JSON object, sizes in bytes")
    devices.set_defaults(run=_run_devices)

    watch = commands.add_parser(
        "watch",
        help="live view of every GPU in the terminal",
        description="Show every GPU and its processes, refreshed in place until Ctrl-C. Where the output is not a "
        "terminal, one frame is printed.",
    )
    _add_pace(watch, interval=1.0)
    watch.set_defaults(run=_run_watch)

    log = commands.add_parser(
        "log",
        help="append a row for each GPU to a CSV file, again and again",
        description="Append a row for each GPU and reading to a CSV file, with UTC times, until Ctrl-C. Every reading "
        "is flushed; a file that this command wrote before is continued; a lost device leaves its values empty.",
    )
    log.add_argument(
        "--csv", required=True, metavar="OUT", help="file to append to, created with a header if new; - is stdout"
    )
    _add_pace(log, interval=1.0)
    log.set_defaults(run=_run_log)

    exporter = commands.add_parser(
        "exporter",
        help="serve or push Prometheus metrics, without Jupyter",
        description="Serve the devices' series for Prometheus at /metrics, or push them to a Pushgateway, on a "
        "machine without Jupyter. A scrape gets the last reading and never waits for the driver.",
    )
    exporter.add_argument("--port", type=_port, default=DEFAULT_PORT, metavar="P", help=f"default {DEFAULT_PORT}")
    exporter.add_argument(
        "--address",
        default="127.0.0.1",
        help="address to listen on; default this machine only, 0.0.0.0 for all",
    )
    exporter.add_argument("--push", metavar="URL", help="push to this Pushgateway in place of listening")
    exporter.add_argument(
        "--interval",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="seconds between readings (default %(default)g, at least 0.1)",
    )
    exporter.add_argument("--print-systemd", action="store_true", help="print a systemd unit for this command and end")
    exporter.set_defaults(run=_run_exporter)


def _add_pace(parser: argparse.ArgumentParser, *, interval: float) -> None:
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=interval,
        metavar="S",
        help=f"seconds between readings (default {interval:g}, at least 0.1)",
    )
    parser.add_argument("--count", type=_count, metavar="N", help="end after N readings (default: until Ctrl-C)")


def _read(kind: Callable[[str], _Number], text: str) -> _Number:
    # argparse itself would tell the name of the function that failed.
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _seconds(text: str) -> float:
    value = _read(float, text)
    # NVML's own sample period is 1/6 to 1 s: asking more often shows nothing new.
    if not 0.1 <= value <= 86400:
        raise argparse.ArgumentTypeError("must be between 0.1 and 86400 seconds")
    return value


def _count(text: str) -> int:
    value = _read(int, text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _port(text: str) -> int:
    value = _read(int, text)
    if not 0 < value < 65536:
        raise argparse.ArgumentTypeError("must be between 1 and 65535")
    return value


def reading_with_owners() -> tuple[Reading, dict[int, Owner]]:
    """Read everything once, and who the processes are as far as this user may know."""
    from gpumem_magic.nvml import read_all
    from gpumem_magic.server.attribution import Attributor

    reading = read_all()
    attributor = Attributor()
    return reading, {pid: attributor.owner(pid) for pid in reading.pids}


def _run_devices(arguments: argparse.Namespace) -> int:
    reading, owners = reading_with_owners()
    if arguments.json:
        print(json.dumps(_as_json(reading, owners)))
        return 0
    if reading.problem is not None:
        from gpumem_magic.nvml.host import read_host

        host = read_host()
        print(reading.problem)
        print(f"host memory: {format_bytes(host.used)} used of {format_bytes(host.total)}")
    else:
        print(f"driver {reading.driver or 'unknown'}")
    for device in reading.devices:
        for line in device_lines(device, owners):
            print(line)
    return 0


def _as_json(reading: Reading, owners: dict[int, Owner]) -> dict[str, Any]:
    return {
        "driver": reading.driver,
        "problem": reading.problem,
        "devices": [
            {
                "index": device.index,
                "uuid": device.uuid,
                "name": device.name,
                "memory": _memory_json(device.memory),
                "utilization": device.utilization,
                "temperature_c": device.temperature_c,
                "power_w": device.power_w,
                "power_limit_w": device.power_limit_w,
                "throttle": device.throttle,
                "health": device.health,
                "unified": device.unified,
                "unattributed": device.unattributed,
                "processes": _processes_json(device.processes or (), owners),
                "mig": [
                    {
                        "index": instance.index,
                        "uuid": instance.uuid,
                        "name": instance.name,
                        "memory": _memory_json(instance.memory),
                        "processes": _processes_json(instance.processes, owners),
                        "missing": instance.missing,
                    }
                    for instance in device.mig
                ],
                "missing": device.missing,
            }
            for device in reading.devices
        ],
    }


def _memory_json(memory: Memory | None) -> dict[str, int | None]:
    parts = ("total", "used", "reserved", "free")
    return {part: None if memory is None else getattr(memory, part) for part in parts}


def _processes_json(processes: Sequence[Process], owners: dict[int, Owner]) -> list[dict[str, Any]]:
    return [{"pid": p.pid, "used": p.used, "name": owners[p.pid].name} for p in processes]


def device_lines(device: Device, owners: dict[int, Owner]) -> Iterator[str]:
    """Describe one device in a few lines of text."""
    yield f"GPU {device.index}  {device.name or 'unknown name'}  {device.uuid or 'unknown UUID'}"
    if device.lost is not None:
        yield f"  lost: {device.lost}"
        return
    memory = device.memory
    if memory is None:
        yield f"  memory unknown: {device.missing.get('memory', 'no reason given')}"
    else:
        driver = "" if memory.reserved is None else f" + {format_bytes(memory.reserved)} driver"
        shared = ", shared with the host" if device.unified else ""
        total, free = format_bytes(memory.total), format_bytes(memory.free)
        yield f"  {format_bytes(memory.used)} used{driver} of {total}, {free} free{shared}"
    yield "  " + ", ".join(_sensors(device))
    if device.throttle:
        yield f"  clocks: {'; '.join(device.throttle)}"
    for trouble in device.health:
        yield f"  trouble: {trouble}"
    for instance in device.mig:
        slice_ = instance.memory
        size = "memory unknown" if slice_ is None else f"{format_bytes(slice_.used)} of {format_bytes(slice_.total)}"
        yield f"  MIG {instance.index}  {instance.name or ''}  {size}"
        yield from _process_lines(instance.processes, owners)
    if device.processes is None and not device.mig:
        yield f"  processes unknown: {device.missing.get('processes', 'no reason given')}"
    # In MIG mode, processes are listed under the instance they run in.
    yield from _process_lines(() if device.mig else device.processes or (), owners)


def _process_lines(processes: Sequence[Process], owners: dict[int, Owner]) -> Iterator[str]:
    for process in processes:
        held = "?" if process.used is None else format_bytes(process.used)
        owner = owners.get(process.pid)
        name = (owner.name if owner else None) or (owner.missing.get("name", "") if owner else "")
        yield f"  {process.pid:>8}  {held:>9}  {name}"


def _sensors(device: Device) -> Iterator[str]:
    yield "utilization unknown" if device.utilization is None else f"{device.utilization} % busy"
    yield "temperature unknown" if device.temperature_c is None else f"{device.temperature_c} °C"
    if device.power_w is None:
        yield "power unknown"
    else:
        limit = "" if device.power_limit_w is None else f" of {device.power_limit_w:.0f} W"
        yield f"{device.power_w:.0f} W{limit}"


def _run_watch(arguments: argparse.Namespace) -> int:
    from gpumem_magic.cli.watch import watch

    return watch(interval=arguments.interval, count=arguments.count)


def _run_log(arguments: argparse.Namespace) -> int:
    from gpumem_magic.cli.csv_log import write_log

    return write_log(arguments.csv, interval=arguments.interval, count=arguments.count)


def _run_exporter(arguments: argparse.Namespace) -> int:
    from gpumem_magic.cli import exporter

    if arguments.print_systemd:
        sys.stdout.write(exporter.systemd_unit(arguments))
        return 0
    if arguments.push:
        return exporter.push(arguments.push, interval=arguments.interval)
    return exporter.serve(arguments.address, arguments.port, interval=arguments.interval)
