"""The one door to NVML: a call returns a value or an :class:`~gpumem_magic.nvml.faults.Absence`, never an exception.

One ``nvmlInit`` serves the life of the process: with persistence mode off, the last ``nvmlShutdown`` tears the GPU down
and the next init takes seconds. It happens at the first question, touches no device by itself and never starts CUDA.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import TYPE_CHECKING, Any

from gpumem_magic.nvml.binding import load_binding
from gpumem_magic.nvml.faults import Absence, Code, problem_sentence, reason

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Handle", "Session", "Slot"]

# A missing driver costs 0.1 ms to look for; a driver that comes back is found within half a minute.
RETRY_SECONDS = 30.0
# A lost device is looked for after 5 s, then less and less often; a rescan (re-init) is the only way to see a GPU that
# was reset or replugged, and touches the other devices' handles, so it stays rare.
DEVICE_RETRY_SECONDS = (5.0, 10.0, 20.0, 60.0)
RESCAN_SECONDS = 60.0
# Permission can be granted while we run (a MIG slice created, a group joined by the service).
PERMISSION_RETRY_SECONDS = 60.0


class Handle:
    """NVML's handle of a device or MIG instance, with what it is known not to answer.

    Attributes
    ----------
    raw
        The binding's handle.
    absent
        Function name and further arguments → (absence, monotonic time until which it is believed).
    """

    __slots__ = ("absent", "raw")

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.absent: dict[tuple[Any, ...], tuple[Absence, float]] = {}


class Slot:
    """A device's place in NVML's order, which outlives its handles.

    Attributes
    ----------
    index
        NVML's index.
    handle
        None while the device does not answer.
    uuid, name
        Read once a handle; kept when the device is lost, so that a person knows which one it was.
    lost
        Why there is no handle.
    """

    __slots__ = ("attempts", "handle", "index", "lost", "name", "retry_at", "uuid")

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle: Handle | None = None
        self.uuid: str | None = None
        self.name: str | None = None
        self.lost: Absence | None = None
        self.retry_at = 0.0
        self.attempts = 0


class Session:
    """NVML, initialised when first asked, kept, and started again when the driver was.

    Parameters
    ----------
    clock
        Monotonic seconds, for the retry times.

    Notes
    -----
    Safe for several threads: NVML serialises calls on one driver lock anyway, so one lock here costs nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._ready = False
        self._problem: str | None = None
        self._down = Absence(Code.UNINITIALIZED, "NVML was not asked yet")
        self._driver: str | None = None
        self._slots: list[Slot] = []
        self._retry_at = -math.inf
        self._rescan_at = math.inf
        self._generation = 0

    @property
    def problem(self) -> str | None:
        """One sentence with the next step while no device can be read, else None."""
        return self._problem

    @property
    def driver(self) -> str | None:
        """The driver's version, or None."""
        return self._driver

    @property
    def generation(self) -> int:
        """Counts the inits; handles and whatever was derived from them end with it."""
        return self._generation

    def slots(self) -> list[Slot]:
        """Give every device's slot, starting NVML if need be; empty when `problem` says why."""
        with self._lock:
            now = self._clock()
            if self._ready and now >= self._rescan_at:
                self._stop()
            if not self._ready:
                if now < self._retry_at:
                    return []
                self._start(now)
            # Those of an earlier init are kept for their names only, for the time when the driver is back.
            return list(self._slots) if self._ready else []

    def handle(self, slot: Slot) -> Handle | Absence:
        """Give the slot's handle, looking for a lost device now and then."""
        with self._lock:
            if not self._ready:
                return self._down
            if slot.handle is not None:
                return slot.handle
            now = self._clock()
            if slot.lost is not None and now < slot.retry_at:
                return slot.lost
            return self._open(slot, now)

    def ask(self, handle: Handle | None, function: str, *arguments: Any) -> Any | Absence:
        """Call one function of the binding.

        Parameters
        ----------
        handle
            First argument of the function, or None for a question about the system.
        function
            Its name in ``pynvml``.
        arguments
            The other arguments.

        Returns
        -------
        object or Absence
            The value, or why there is none. What a handle does not support is asked once.
        """
        key = (function, *arguments)
        if handle is not None and handle.absent:
            known = handle.absent.get(key)
            if known is not None and self._clock() < known[1]:
                return known[0]
        answer = self._call(function, *(arguments if handle is None else (handle.raw, *arguments)))
        if isinstance(answer, Absence) and handle is not None:
            if answer.is_permanent:
                handle.absent[key] = (answer, math.inf)
            elif answer.code == Code.NO_PERMISSION:
                handle.absent[key] = (answer, self._clock() + PERMISSION_RETRY_SECONDS)
        return answer

    def report(self, slot: Slot, absence: Absence) -> None:
        """Take notice of a device's failure, so that its handle or the whole session is renewed.

        Failures of a single value need no report.
        """
        with self._lock:
            if absence.is_driver_gone:
                self._fail(absence)
            elif absence.is_device_gone:
                self._lose(slot, absence, self._clock())
            elif absence.code == Code.INVALID_ARGUMENT:
                slot.handle = None

    def restart(self, absence: Absence) -> None:
        """Begin anew because every device failed at once, which is how a driver that was reloaded looks."""
        with self._lock:
            self._fail(absence)

    def close(self) -> None:
        """Give NVML back. A session that is asked again starts again."""
        with self._lock:
            if self._ready:
                self._stop()

    def _call(self, function: str, *arguments: Any) -> Any | Absence:
        binding = load_binding()
        if isinstance(binding, Absence):
            return binding
        call = getattr(binding, function, None)
        if call is None:
            return Absence(Code.FUNCTION_NOT_FOUND, "the installed nvidia-ml-py is older than this function")
        with self._lock:
            try:
                return call(*arguments)
            except binding.NVMLError as error:
                # The class has no code when it comes from a decorator of the binding's own.
                code = getattr(error, "value", Code.FUNCTION_NOT_FOUND)
                return Absence(code, reason(code, text=str(error)))
            except UnicodeDecodeError:
                return Absence(None, "the driver's answer is not text")
            except (TypeError, AttributeError, OSError) as error:
                # nvitop and gpustat put functions of their own, with other parameters, into the binding.
                return Absence(None, f"another package has changed NVIDIA's binding ({error})")

    def _start(self, now: float) -> None:
        self._retry_at = now + RETRY_SECONDS
        binding = load_binding()
        if isinstance(binding, Absence):
            # A module that was imported wrongly stays so until the process ends.
            self._problem, self._retry_at = binding.reason, math.inf
            return
        started = self._call("nvmlInitWithFlags", 0)
        if isinstance(started, Absence):
            self._problem = problem_sentence(started.code or 0, text=started.reason)
            return
        self._generation += 1
        self._ready = True
        self._rescan_at = math.inf
        version = self._call("nvmlSystemGetDriverVersion")
        self._driver = None if isinstance(version, Absence) else version
        count = self._call("nvmlDeviceGetCount")
        if isinstance(count, Absence):
            self._fail(count)
            return
        if count == 0:
            self._problem = (
                "The NVIDIA driver runs but shows no GPU; check `nvidia-smi -L`, in a container its `--gpus`."
            )
            self._rescan_at = now + RETRY_SECONDS
            self._slots = []
            return
        self._problem = None
        former = {slot.index: slot for slot in self._slots}
        self._slots = [Slot(index) for index in range(count)]
        for slot in self._slots:
            # A device that is lost keeps the name under which it was known.
            known = former.get(slot.index)
            if known is not None:
                slot.uuid, slot.name, slot.attempts = known.uuid, known.name, known.attempts
            self._open(slot, now)

    def _open(self, slot: Slot, now: float) -> Handle | Absence:
        raw = self._call("nvmlDeviceGetHandleByIndex", slot.index)
        if isinstance(raw, Absence):
            self._lose(slot, raw, now)
            if raw.is_driver_gone:
                self._fail(raw)
            return raw
        slot.handle, slot.lost, slot.attempts = Handle(raw), None, 0
        uuid = self.ask(slot.handle, "nvmlDeviceGetUUID")
        name = self.ask(slot.handle, "nvmlDeviceGetName")
        slot.uuid = slot.uuid if isinstance(uuid, Absence) else uuid
        slot.name = slot.name if isinstance(name, Absence) else name
        return slot.handle

    def _lose(self, slot: Slot, absence: Absence, now: float) -> None:
        slot.handle, slot.lost = None, absence
        slot.retry_at = now + DEVICE_RETRY_SECONDS[min(slot.attempts, len(DEVICE_RETRY_SECONDS) - 1)]
        slot.attempts += 1
        if self._rescan_at == math.inf:
            self._rescan_at = now + RESCAN_SECONDS

    def _fail(self, absence: Absence) -> None:
        """End this init; the next question starts another, at once only if NVML was shut down under us."""
        if not self._ready:
            return
        self._down = absence
        self._stop()
        self._problem = problem_sentence(absence.code or 0, text=absence.reason)
        quick = absence.code == Code.UNINITIALIZED
        self._retry_at = self._clock() + (0.0 if quick else DEVICE_RETRY_SECONDS[0])

    def _stop(self) -> None:
        self._ready = False
        self._retry_at = -math.inf
        for slot in self._slots:
            slot.handle = None
        binding = load_binding()
        if not isinstance(binding, Absence):
            with contextlib.suppress(binding.NVMLError):
                binding.nvmlShutdown()
