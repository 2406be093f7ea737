"""The last day of readings: a fine ring for the last hour and a coarse one for the rest."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.nvml.model import Reading

__all__ = ["History"]

# One hour at two readings a second, the shortest interval of the panel; a day at one each 30 s. Eight devices: 17
# columns of 10,080 rows, 1.4 MB.
FINE_ROWS = 7200
COARSE_ROWS = 2880
COARSE_SECONDS = 30.0
DAY_SECONDS = COARSE_ROWS * COARSE_SECONDS
# More points than a wide screen has pixels only cost transfer and drawing.
MOST_POINTS = 1200
# Nobody looked, or the driver was gone, when the next reading is later than this many intervals.
GAP_INTERVALS = 3.0


class _Ring:
    """Rows of (time, columns) that overwrite the oldest; columns are added as devices appear."""

    def __init__(self, rows: int) -> None:
        self._times = np.zeros(rows, np.int64)
        self._values = np.full((rows, 0), np.nan)
        self._count = 0

    def append(self, time_us: int, values: list[float]) -> None:
        missing = len(values) - self._values.shape[1]
        if missing > 0:
            more = np.full((len(self._times), missing), np.nan)
            self._values = np.concatenate([self._values, more], axis=1)
        row = self._count % len(self._times)
        self._times[row] = time_us
        self._values[row] = np.nan
        self._values[row, : len(values)] = values
        self._count += 1

    def since(self, time_us: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        rows = min(self._count, len(self._times))
        order = np.arange(self._count - rows, self._count) % len(self._times)
        order = order[self._times[order] >= time_us]
        return self._times[order], self._values[order]

    @property
    def first_us(self) -> int | None:
        if self._count == 0:
            return None
        return int(self._times[0 if self._count <= len(self._times) else self._count % len(self._times)])


class History:
    """Memory and utilisation of each device, and the host's memory, over time.

    Written by the poller's thread, read by any: a lock guards it for the microseconds that a copy takes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fine = _Ring(FINE_ROWS)
        self._coarse = _Ring(COARSE_ROWS)
        # Devices by place in the columns: host memory first, then memory and utilisation of each.
        self._devices: dict[tuple[str | None, int], int] = {}
        self._last_us = 0
        self._bucket: list[list[float]] = []
        self._bucket_began = 0

    def append(self, reading: Reading, host_used: int | None, interval: float) -> None:
        """Add one reading.

        Parameters
        ----------
        reading
            The devices.
        host_used
            The host's used memory in bytes.
        interval
            Seconds between readings as they are now; a later one leaves a gap.
        """
        with self._lock:
            row = self._row(reading, host_used)
            gap = self._last_us and reading.time_us - self._last_us > GAP_INTERVALS * interval * 1e6
            if gap:
                nothing = [math.nan] * len(row)
                self._flush_bucket()
                for ring in (self._fine, self._coarse):
                    ring.append(self._last_us + 1, nothing)
            self._fine.append(reading.time_us, row)
            self._last_us = reading.time_us
            if not self._bucket:
                self._bucket_began = reading.time_us
            self._bucket.append(row)
            if reading.time_us - self._bucket_began >= COARSE_SECONDS * 1e6:
                self._flush_bucket()

    def window(self, seconds: float, now_us: int, points: int = MOST_POINTS) -> dict[str, Any]:
        """Give the last `seconds` as the protocol's ``History``.

        Where there are more readings than points, a point is the highest memory and the mean utilisation of its span.

        Parameters
        ----------
        seconds
            How far back; at most a day.
        now_us
            Unix microseconds of now.
        points
            At most so many, and one for each gap.
        """
        seconds = min(max(seconds, 1.0), DAY_SECONDS)
        since = int(now_us - seconds * 1e6)
        with self._lock:
            times, values = self._fine.since(since)
            first = self._fine.first_us
            older_times, older = self._coarse.since(since)
            devices = dict(self._devices)
        if first is not None and len(older_times):
            # The coarse ring only where the fine one has already forgotten.
            before = older_times < first
            width = max(values.shape[1], older.shape[1])
            values = np.concatenate([_widen(older[before], width), _widen(values, width)])
            times = np.concatenate([older_times[before], times])
        times, values = _thin(times, values, points)
        return {
            "timeUs": times.tolist(),
            "devices": [
                {
                    "uuid": uuid,
                    "index": index,
                    "memoryUsed": _column(values, column),
                    "utilization": _column(values, column + 1),
                }
                for (uuid, index), column in devices.items()
            ],
            "host": {"memoryUsed": _column(values, 0)},
        }

    def _row(self, reading: Reading, host_used: int | None) -> list[float]:
        for device in reading.devices:
            key = (device.uuid, device.index)
            if key not in self._devices:
                self._devices[key] = 1 + 2 * len(self._devices)
        row = [math.nan] * (1 + 2 * len(self._devices))
        row[0] = math.nan if host_used is None else host_used
        for device in reading.devices:
            column = self._devices[device.uuid, device.index]
            row[column] = math.nan if device.memory is None else device.memory.used
            row[column + 1] = math.nan if device.utilization is None else device.utilization
        return row

    def _flush_bucket(self) -> None:
        if self._bucket:
            width = len(self._bucket[-1])
            rows = np.array([row + [math.nan] * (width - len(row)) for row in self._bucket], np.float64)
            self._coarse.append(self._bucket_began, _reduced(rows, np.array([0]))[0].tolist())
            self._bucket = []


def _reduced(rows: NDArray[np.float64], starts: NDArray[np.intp]) -> NDArray[np.float64]:
    """Make one row of those from each start to the next: highest memory, mean utilisation, unknown where all are.

    The panel draws its own samples by the same rule, so that a page that is loaded again shows the same picture.
    """
    reduced: NDArray[np.float64] = np.fmax.reduceat(rows, starts, axis=0)
    shares = rows[:, 2::2]
    known = np.add.reduceat(~np.isnan(shares), starts, axis=0, dtype=np.float64)
    sums = np.add.reduceat(np.nan_to_num(shares), starts, axis=0)
    reduced[:, 2::2] = np.divide(sums, known, out=np.full_like(sums, np.nan), where=known > 0)
    return reduced


def _widen(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    more = np.full((len(values), width - values.shape[1]), np.nan)
    return np.concatenate([values, more], axis=1)


def _thin(
    times: NDArray[np.int64],
    values: NDArray[np.float64],
    most: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Make one point of each run of them, but keep every gap: a row of nothing but unknowns."""
    if len(times) <= most or not values.shape[1]:
        return times, values
    step = -(-len(times) // most)
    gaps: NDArray[np.bool_] = np.asarray(np.isnan(values).all(axis=1))
    # A new group begins every `step` rows, at every gap and after it.
    starts = np.zeros(len(times), bool)
    starts[::step] = True
    starts |= gaps
    starts[1:] |= gaps[:-1]
    first = np.flatnonzero(starts)
    return times[first], _reduced(values, first)


def _column(values: NDArray[np.float64], column: int) -> list[int | None]:
    if column >= values.shape[1]:
        return [None] * len(values)
    return [None if math.isnan(value) else round(value) for value in values[:, column].tolist()]
