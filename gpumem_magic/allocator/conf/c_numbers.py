"""Numbers as the C++ library reads them: a beginning that is a number is enough, and what follows is dropped.

``std::stoull`` (``std::stoi`` before torch 2.9) and ``std::stod``, as torch 2.14 was seen to use them.
"""

from __future__ import annotations

import re

__all__ = ["WRAP", "c_float", "c_integer"]

#: A negative number is counted down from here.
WRAP = 1 << 64

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(?:p[+-]?[0-9]+)?)", re.IGNORECASE)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.IGNORECASE)
_WORD = re.compile(r"[+-]?(?:inf(?:inity)?|nan)", re.IGNORECASE)
_LEAST_NORMAL = 2.0**-1022


def c_integer(text: str, *, bits: int = 64) -> int | None:
    """Return the number at the beginning of `text`, None where C++ raises: no digit, or too many.

    Parameters
    ----------
    text
        Without leading spaces.
    bits
        64: unsigned, so that ``-1`` is the largest number; 32: signed, then taken as unsigned.
    """
    match = _INTEGER.match(text)
    if match is None or len(match[0]) > 25:
        return None
    number = int(match[0])
    bound = WRAP if bits == 64 else 1 << 31
    return number % WRAP if abs(number) < bound or number == -(1 << 31) else None


def c_float(text: str) -> float | None:
    """Return the number at the beginning of `text`, None where C++ raises: none there, too large or too small."""
    word = _WORD.match(text)
    if word is not None:
        return float(word[0])
    match = _FLOAT.match(text) or _DECIMAL.match(text)
    if match is None:
        return None
    try:
        number = float.fromhex(match[0]) if "x" in match[0].lower() else float(match[0])
    except OverflowError:
        return None
    digits = re.split("[ep]" if "x" not in match[0].lower() else "p", match[0].lower())[0].removeprefix("0x")
    is_zero = not re.search("[1-9a-f]", digits)
    return number if is_zero or _LEAST_NORMAL <= abs(number) < float("inf") else None
