"""Walk over the opcodes of a pickle before it is loaded, so that loading it cannot hurt.

A restricted `find_class` alone stops code, not exhaustion: a dozen bytes can ask CPython's unpickler for a memo of
64 GiB (``LONG_BINPUT`` with a huge index), tuples nested 100,000 deep crash the process when they are hashed, and
hashing sixty that each hold the one before twice takes for ever. Snapshots need a small subset of the language (dicts,
lists, strings, numbers, pairs of numbers), so everything else is refused. One regular expression consumes up to 2,000
opcodes a step: 0.2 s for 50 MiB, half of the time that loading takes.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

from gpumem_magic._errors import SnapshotError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_opcodes"]

# What was matched stays matched. Where that cannot be said (Python 3.10), each opcode leaves something to go back to:
# memory for 2,000 of them takes up to three times as long as the match itself.
_AS_MANY = b"{1,2000}+" if sys.version_info >= (3, 11) else b"{1,200}"
# Strings up to this length are consumed by the expression, longer ones (paths) one at a time.
_SHORT = 32


def _exact(prefix: bytes, width: int, longest: int) -> bytes:
    """Alternatives for a length-prefixed string of 0 to `longest` bytes."""
    sizes = (re.escape(size.to_bytes(width, "little")) + b".{%d}" % size for size in range(longest + 1))
    return prefix + b"(?:" + b"|".join(sizes) + b")"


def _pair(first: bytes) -> bytes:
    """Two integers and TUPLE2. The pickler may begin a FRAME after each of the two."""
    frame = rb"(?:\x95.{8})?"
    return first + frame + b"(?:K.|M..|J.{4})" + frame + b"\x86"


@lru_cache(maxsize=4)
def _pattern(bound: tuple[int, int]) -> Callable[[bytes, int], re.Match[bytes] | None]:
    """Compile the expression; `bound` caps the two high bytes of memo indices."""
    # Memo indices count objects of the file, so they stay below its size (rounded up to the next 64 KiB or 16 MiB).
    index = b"..[\x00-%s]%s" % (
        re.escape(bytes([0xFF if bound[0] else bound[1]])),
        b"[\x00-%s]" % re.escape(bytes([bound[0]])),
    )
    # First what big files are made of: a key that was seen before and its value, or one of them alone. The order and
    # the single literal first bytes are worth a factor of two. A pair of integers is one token, because a lone TUPLE2,
    # which may hold tuples again, is refused.
    common = (
        b"K.K.\x86",  # BININT1 BININT1 TUPLE2
        b"h.",  # BINGET
        b"\x8a\x06.{6}",  # LONG1: an address
        b"\x8a\x07.{7}",  # LONG1: a time
        _pair(b"J.{4}"),
        b"J.{4}",  # BININT
        _pair(b"K."),
        b"K.",  # BININT1
        _pair(b"M.."),
        b"M..",  # BININT2
        b"\x8c\x03.{3}\x94",  # SHORT_BINUNICODE MEMOIZE: "N/A"
    )
    tokens = (
        b"j.{4}(?:j.{4}|" + b"|".join(common) + b")",  # LONG_BINGET and a value
        b"j.{4}",  # LONG_BINGET
        # MEMOIZE, MARK, EMPTY_DICT, SETITEMS, EMPTY_LIST, APPENDS, SETITEM, APPEND, EMPTY_TUPLE, NONE, booleans
        rb"[\x94(}u\]esa)N\x88\x89]+",
        *common,
        b"q.",  # BINPUT
        _exact(b"\x8c", 1, _SHORT),  # SHORT_BINUNICODE
        _exact(b"\x8a", 1, 9),  # LONG1
        _exact(b"X", 4, _SHORT),  # BINUNICODE
        b"r" + index,  # LONG_BINPUT
        b"G.{8}",  # BINFLOAT
        b"\x95.{8}",  # FRAME
        b"\x80[\x02-\x05]",  # PROTO
    )
    return re.compile(b"(?:" + b"|".join(tokens) + b")" + _AS_MANY, re.DOTALL).match


_CODE = frozenset(b"cioRb\x81\x82\x83\x84\x92\x93PQ")
# Opcode → width of its length field.
_SIZED = {ord("X"): 4, 0x8C: 1, 0x8D: 8, ord("C"): 1, ord("B"): 4, 0x8A: 1}
_STOP = ord(".")


def check_opcodes(data: bytes) -> None:
    """Refuse a pickle that holds anything but plain data.

    Raises
    ------
    SnapshotError
        When it is cut off, would run code, or uses what no snapshot uses.
    """
    match = _pattern(((len(data) >> 24) & 0xFF if len(data) < 2**32 else 0xFF, (len(data) >> 16) & 0xFF))
    position = 0
    while True:
        # A length of 8 bytes can point beyond what `match` takes as a position.
        found = match(data, position) if position < len(data) else None
        if found is not None:
            position = found.end()
        if position >= len(data):
            raise SnapshotError("the pickle is cut off before its end: copy or write the snapshot again")
        opcode = data[position]
        if opcode == _STOP:
            return
        if opcode in _CODE:
            raise SnapshotError("the pickle would run code when loaded, which no memory snapshot does: not opened")
        width = _SIZED.get(opcode)
        if width is not None:
            start = position + 1 + width
            position = start + int.from_bytes(data[position + 1 : start], "little")
        elif found is None:
            _refuse(data, position)


def _refuse(data: bytes, position: int) -> None:
    if len(data) - position < 16:
        # Also the last opcode of a file that was cut in the middle of it.
        raise SnapshotError("the pickle is cut off before its end: copy or write the snapshot again")
    raise SnapshotError(
        f"not a torch memory snapshot: the pickle holds data that no snapshot holds (byte {position:,}, opcode "
        f"0x{data[position]:02x})"
    )
