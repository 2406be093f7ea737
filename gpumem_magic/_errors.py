"""The errors of this package.

GpumemError             anything we raise on purpose; its message is one line that names the next step
├── RecordingError      a recording cannot start, stop or be read back
├── SnapshotError       a file is not a usable torch memory snapshot (truncated, foreign, hostile, empty)
├── ExportError         a report or log cannot be written where it was asked for
├── LeakError           code that promised to leak nothing left memory behind
└── BadUsageError        an option, device or operand that does not exist (the command line exits with 2)
"""

from __future__ import annotations

__all__ = ["BadUsageError", "ExportError", "GpumemError", "LeakError", "RecordingError", "SnapshotError"]


class GpumemError(Exception):
    """Base of every error that this package raises on purpose."""


class RecordingError(GpumemError):
    """A recording cannot start, stop or be read back."""


class SnapshotError(GpumemError):
    """A file is not a usable torch memory snapshot."""


class ExportError(GpumemError):
    """A report or log cannot be written where it was asked for."""


class LeakError(GpumemError):
    """Code that promised to leak nothing left memory behind."""


class BadUsageError(GpumemError):
    """An option, device or operand that does not exist."""
