"""Open a torch memory snapshot file: plain, gzip or xz, pickle protocols 2 to 5, from anyone.

The file is not trusted: sizes are bounded before anything is unpacked, and the pickle may hold plain data only.
"""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
import stat
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gpumem_magic._errors import SnapshotError
from gpumem_magic._format import format_bytes
from gpumem_magic.trace._scan import check_opcodes
from gpumem_magic.trace.collector import paused_collector
from gpumem_magic.trace.convert import convert

if TYPE_CHECKING:
    import os

    from gpumem_magic.trace.model import Trace

__all__ = ["MAX_UNPACKED", "read_trace"]

# A snapshot takes about 100 bytes an event, so this is 80 million events, far above what the recorder can hold.
MAX_UNPACKED = 8 * 2**30
# Snapshots pack 10 to 40 times (repetitive synthetic ones 100); zeros pack 1,000 (gzip) to 7,000 times (xz).
_MAX_RATIO = 300
_FREE_RATIO_BELOW = 256 * 2**20
_CHUNK = 4 * 2**20
_HEAD = 32

_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
_FOREIGN = (
    (b"PK\x03\x04", "a zip archive, perhaps a torch.save checkpoint"),
    (b"{", "JSON, perhaps a profiler trace"),
    (b"[", "text, perhaps JSON"),
    (b"<", "HTML or XML, perhaps an exported report: only gpumem-magic diff and export read those"),
    (b"BZh", "bzip2: unpack it first"),
    (b"(\xb5/\xfd", "zstd: unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer: run git lfs pull"),
)


def read_trace(path: str | os.PathLike[str], *, max_unpacked: int = MAX_UNPACKED) -> Trace:
    """Read a snapshot file.

    Parameters
    ----------
    path
        What ``torch.cuda.memory._dump_snapshot`` wrote, as it is or packed with gzip or xz (told by its first bytes).
    max_unpacked
        Refuse files that unpack to more bytes.

    Returns
    -------
    Trace
        The recorded history; `Trace.warnings` says what is missing or contradictory.

    Raises
    ------
    SnapshotError
        One line that names the file and what is wrong with it.
    """
    path = Path(path)
    try:
        with paused_collector():
            data = _read_bytes(path, max_unpacked)
            # Every entry takes bytes of its own in an honest file; a hostile one repeats a list inside a list.
            return convert(_load(data), budget=len(data))
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error}") from error.__cause__
    except MemoryError as error:
        raise SnapshotError(f"{path}: this machine has too little memory to open it") from error


def _read_bytes(path: Path, limit: int) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise SnapshotError(f"{kind}; give the pickle that torch.cuda.memory._dump_snapshot wrote")
        with path.open("rb") as file:
            head = file.read(_HEAD)
            file.seek(0)
            if head.startswith(_GZIP):
                with gzip.open(file) as packed:
                    return _unpack(packed, status.st_size, limit)
            if head.startswith(_XZ):
                with lzma.open(file) as packed:
                    return _unpack(packed, status.st_size, limit)
            _check_head(head)
            if status.st_size > limit:
                _too_large(limit)
            return file.read()
    except (lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise SnapshotError(f"damaged compressed file ({error}): copy or pack the snapshot again") from error
    except EOFError as error:
        raise SnapshotError("the compressed file is cut off: copy or pack the snapshot again") from error
    except OSError as error:
        raise SnapshotError(f"cannot be read: {error.strerror or error}") from error


def _unpack(packed: gzip.GzipFile | lzma.LZMAFile, packed_size: int, limit: int) -> bytes:
    head = packed.read(_HEAD)
    _check_head(head)
    ceiling = min(limit, max(_FREE_RATIO_BELOW, packed_size * _MAX_RATIO))
    # A BytesIO shares its buffer with getvalue, so that the bytes exist once.
    buffer = io.BytesIO()
    buffer.write(head)
    while chunk := packed.read(_CHUNK):
        buffer.write(chunk)
        if buffer.tell() > ceiling:
            _too_large(ceiling)
    return buffer.getvalue()


def _too_large(ceiling: int) -> NoReturn:
    raise SnapshotError(
        f"unpacks to more than {format_bytes(ceiling)}, more than a snapshot of its size can: not opened. "
        "Record with a smaller max_entries"
    )


def _check_head(head: bytes) -> None:
    if not head:
        raise SnapshotError("the file is empty: write the snapshot again")
    if len(head) >= 2 and head[0] == 0x80 and 2 <= head[1] <= 5:
        return
    if head[0] == 0x80 and len(head) >= 2:
        raise SnapshotError(f"not a torch memory snapshot: pickle protocol {head[1]} is unknown")
    for magic, kind in _FOREIGN:
        if head.startswith(magic):
            raise SnapshotError(f"not a torch memory snapshot but {kind}")
    raise SnapshotError(
        "not a torch memory snapshot: the file does not begin like a pickle (protocols 2 to 5). "
        "torch.cuda.memory._dump_snapshot writes one, and so does a report saved as .pickle"
    )


# What CPython's unpickler raises over damaged bytes; its documentation names these as examples only.
_UNREADABLE = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    KeyError,
    IndexError,
    OverflowError,
    SystemError,
    TypeError,
    ValueError,
)


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that knows no names at all: a snapshot holds none. `check_opcodes` ran before; this is the lock."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise SnapshotError(f"the pickle would import {module[:60]}.{name[:60]} when loaded: not opened")

    def persistent_load(self, pid: object) -> NoReturn:
        raise SnapshotError(f"the pickle refers to data outside of it ({type(pid).__name__}): not opened")


def _load(data: bytes) -> object:
    check_opcodes(data)
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except SnapshotError:
        raise
    except _UNREADABLE as error:
        message = str(error).split("\n", 1)[0][:120]
        raise SnapshotError(f"not a readable pickle ({message}): copy or write the snapshot again") from error
