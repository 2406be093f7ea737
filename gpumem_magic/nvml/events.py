"""Xid errors: what the driver reports about a GPU that misbehaves, the numbers one finds in the kernel log.

The driver queues them for whoever registered; asking for the next one with no patience returns at once. They are seen
from the first reading on, also those that happened while nobody looked.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumem_magic.nvml.faults import Absence

if TYPE_CHECKING:
    from gpumem_magic.nvml.session import Handle, Session, Slot

__all__ = ["XidWatch"]

# nvmlEventTypeXidCriticalError
_XID = 0x8
# NVIDIA's catalogue has some two hundred; these are the ones that a notebook's user meets.
_WORDS = {
    13: "a kernel made an illegal access: an application error, as a rule",
    31: "a kernel used a wrong address: an application error, as a rule",
    43: "an application was stopped after an error of its own",
    45: "an application's work was removed after an earlier error",
    48: "memory error that ECC could not correct: reset the device",
    63: "a memory row is to be remapped: reset the device when it is free",
    64: "a memory row could not be remapped: the device should be replaced",
    74: "NVLink error",
    79: "the GPU has fallen off the bus: reboot",
    92: "many corrected memory errors",
    94: "memory error confined to one application: restart it",
    95: "memory error that may have reached other applications: reset the device",
    119: "the GPU's own processor does not answer: reset the device",
    120: "the GPU's own processor failed: reset the device",
}
MOST_KEPT = 5
KEPT_SECONDS = 24 * 3600.0
# A device in a fault storm must not hold the poller.
MOST_READ = 64


class _Event(NamedTuple):
    xid: int
    seconds: float


class XidWatch:
    """Collects Xid errors of every device. Used by one thread.

    Parameters
    ----------
    session
        The door to NVML.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._generation = -1
        self._set: Any | Absence | None = None
        self._registered: dict[int, Handle] = {}
        self._seen: dict[int, deque[_Event]] = {}

    def read(self, slots: list[Slot]) -> None:
        """Register for devices that are new, and take what was queued since the last time."""
        session = self._session
        if session.generation != self._generation:
            # The set ended with the init that it was made in.
            self._generation = session.generation
            self._registered.clear()
            self._set = session.ask(None, "nvmlEventSetCreate")
        if self._set is None or isinstance(self._set, Absence):
            return
        for slot in slots:
            if slot.handle is not None and self._registered.get(slot.index) is not slot.handle:
                self._registered[slot.index] = slot.handle
                # Not supported in WSL and for some slices: then there is nothing to tell.
                session.ask(None, "nvmlDeviceRegisterEvents", slot.handle.raw, _XID, self._set)
        for _event in range(MOST_READ):
            event = session.ask(None, "nvmlEventSetWait_v2", self._set, 0)
            if isinstance(event, Absence):
                # Mostly: timed out, nothing is queued.
                return
            index = session.ask(None, "nvmlDeviceGetIndex", event.device)
            if event.eventType == _XID and not isinstance(index, Absence):
                seen = self._seen.setdefault(index, deque(maxlen=MOST_KEPT))
                seen.append(_Event(int(event.eventData), time.time()))

    def words(self, index: int) -> tuple[str, ...]:
        """Say what the last day brought for a device, the newest first."""
        since = time.time() - KEPT_SECONDS
        recent = [event for event in self._seen.get(index, ()) if event.seconds >= since]
        return tuple(_say(event) for event in reversed(recent))


def _say(event: _Event) -> str:
    moment = time.strftime("%H:%M", time.localtime(event.seconds))
    words = _WORDS.get(event.xid)
    return f"Xid {event.xid} at {moment}" + (f": {words}" if words else "")
