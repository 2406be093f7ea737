"""``gpumem-magic log``: rows that survive a lost device, a killed logger and a second start."""

from __future__ import annotations

import csv
import datetime as dt
import io
import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gpumem_magic._errors import ExportError
from gpumem_magic.cli.pace import Pace
from gpumem_magic.nvml.poller import FaultLog
from gpumem_magic.nvml.reader import Reader
from gpumem_magic.nvml.sampling import default_session

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gpumem_magic.nvml.model import Device, Reading

__all__ = ["COLUMNS", "write_log"]

COLUMNS = (
    "time_utc",
    "index",
    "uuid",
    "name",
    "used_bytes",
    "reserved_bytes",
    "free_bytes",
    "total_bytes",
    "utilization_percent",
    "temperature_c",
    "power_w",
)


def write_log(out: str, *, interval: float, count: int | None) -> int:
    """Append a row for each device and reading until interrupted.

    Parameters
    ----------
    out
        A new file, or one that this command wrote before; it is then continued. ``-`` or a pipe gets a header first.
    interval
        Seconds between readings.
    count
        End after so many readings; None for never.

    Returns
    -------
    int
        The exit code.

    Raises
    ------
    ExportError
        The file cannot be written, or is not such a log.
    """
    path = Path(out)
    is_stream = out == "-" or (path.exists() and not path.is_file() and not path.is_dir())
    # What cannot be read back (a pipe, a device) begins anew; looking into it could wait for ever.
    beginning = ",".join(COLUMNS) + "\n" if is_stream else _beginning(path)
    reader = Reader(default_session())
    log = logging.getLogger("gpumem_magic.log")
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
    faults = FaultLog(log)
    pace = Pace(interval)
    done = 0
    try:
        # Appended in one write a reading, so that two loggers never mix their rows.
        with _opened(out) as file:
            file.write(beginning)
            file.flush()
            while True:
                reading = reader.read(done)
                faults.note(reading)
                file.write(_rows(reading))
                file.flush()
                done += 1
                if count is not None and done >= count:
                    return 0
                pace.wait()
    except BrokenPipeError:
        if out == "-":
            raise
        # The reader of the pipe has seen enough.
        return 0
    except OSError as error:
        if out == "-":
            raise
        raise ExportError(f"{out} cannot be written: {error.strerror or error}; choose another --csv") from None
    except KeyboardInterrupt:
        # The usual end.
        return 0


def _opened(out: str) -> AbstractContextManager[TextIO]:
    if out == "-":
        return nullcontext(sys.stdout)
    return Path(out).open("a", encoding="utf-8", newline="", buffering=1 << 20)


def _beginning(path: Path) -> str:
    """Give what has to be written before the first row: a header, the end of a torn line, or nothing."""
    header = ",".join(COLUMNS)
    try:
        with path.open("rb") as file:
            first = file.readline().decode("utf-8", "replace").rstrip("\r\n")
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - 1))
            last = file.read(1)
    except FileNotFoundError:
        return header + "\n"
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror or error}; choose another --csv") from None
    if size == 0:
        return header + "\n"
    if first != header:
        raise ExportError(f"{path} is not a log of this command and is left alone; choose another --csv")
    return "" if last == b"\n" else "\n"


def _rows(reading: Reading) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    moment = dt.datetime.fromtimestamp(reading.time_us / 1e6, tz=dt.timezone.utc)
    stamp = moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
    for device in reading.devices:
        writer.writerow([stamp, *_values(device)])
    return text.getvalue()


def _values(device: Device) -> list[str | int | float | None]:
    memory = device.memory
    held = (None,) * 4 if memory is None else (memory.used, memory.reserved, memory.free, memory.total)
    return [
        device.index,
        device.uuid,
        device.name,
        *held,
        device.utilization,
        device.temperature_c,
        device.power_w,
    ]
