"""What torch itself does with a settings string: abort, raise at first use, or take it.

From 2.9 on the string is cut into tokens and walked twice: while the library loads, to find the backend (a walk that
runs off the end aborts the process), and at the first CUDA use, to read the options. Neither walk looks at what stands
between the tokens, so ``a:1:b:2`` and ``a,1`` are taken. Tried on 2.11 and, with thousands of random strings, on 2.14.
Before 2.9 there is one walk, at the first CUDA use, and it checks every colon and comma (by reading).
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from gpumem_magic.allocator.conf.c_numbers import WRAP, c_float, c_integer
from gpumem_magic.allocator.conf.options import ALIASES, OPTIONS, Kind
from gpumem_magic.allocator.conf.values import least

if TYPE_CHECKING:
    from gpumem_magic.allocator.conf.options import Option, Version

__all__ = ["Verdict", "torch_verdict"]


_FIRST = "large_segment_size_mb"
_MIB = 1 << 20


class Verdict(enum.Enum):
    """How torch ends up, in words."""

    ABORTS = "the process aborts inside `import torch`: a notebook kernel dies without a Python error"
    RAISES = "an error at the first CUDA use"
    TAKES = "nothing: torch accepts it"


def torch_verdict(text: str, release: Version) -> Verdict:
    """Say what torch `release` does with `text`."""
    checked = release < (2, 9)
    tokens = re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(" " if checked else r"[ \t\n\r\f\v]", "", text))
    entries: list[tuple[str, list[str]]] = []
    verdict = Verdict.TAKES
    position = 0
    while position < len(tokens):
        end = _end_of_value(tokens, position + 2)
        if end is None:
            return Verdict.RAISES if checked else Verdict.ABORTS
        if checked and (tokens[position + 1] != ":" or tokens[end : end + 1] not in ([], [","])):
            verdict = Verdict.RAISES
        entries.append((tokens[position], tokens[position + 2 : end]))
        position = end + 1
    # The size of segments bounds other options, wherever it stands.
    entries.sort(key=lambda entry: entry[0] != _FIRST)
    segment = 20
    for key, value in entries:
        option = OPTIONS.get(ALIASES.get(key, key))
        if option is None or option.since > release or not _takes(option, value, release, segment):
            return Verdict.RAISES
        if key == _FIRST:
            segment = min(c_integer(value[0]) or 0, WRAP // _MIB - 1)
    return verdict


def _end_of_value(tokens: list[str], start: int) -> int | None:
    """Return the index after the value that begins at `start`, or None when the tokens end before it does."""
    if start >= len(tokens):
        return None
    if tokens[start] != "[":
        return start + 1
    return tokens.index("]", start) + 1 if "]" in tokens[start:] else None


def _takes(option: Option, tokens: list[str], release: Version, segment: int) -> bool:
    """Tell whether an option takes a value; `segment` is the size of large segments, in MiB."""
    text = tokens[0]
    if option.kind is Kind.DIVISIONS and text == "[":
        return _takes_list(tokens, _bits(release))
    if option.kind in {Kind.INT, Kind.DIVISIONS}:
        number = c_integer(text, bits=_bits(release))
        return number is not None and _is_in_range(option, number, release, segment)
    if option.kind is Kind.FLOAT:
        fraction = c_float(text)
        is_open = option.name == "garbage_collection_threshold"
        return fraction is not None and (0 < fraction < 1 if is_open else 0 <= fraction <= 1)
    if option.kind is Kind.BOOL:
        return text in {"True", "False"}
    if option.kind is Kind.CHOICE:
        return text in option.choices or text == "hipMallocAsync"
    return True  # A reserve that cannot be read only warns.


def _bits(release: Version) -> int:
    return 64 if release >= (2, 9) else 32


def _is_in_range(option: Option, number: int, release: Version, segment: int) -> bool:
    if option.kind is Kind.DIVISIONS:
        return _is_power(number)
    if option.name == "pinned_num_register_threads":
        return _is_power(number) and number <= 128
    return number >= least(option, release, segment)[0]


def _takes_list(tokens: list[str], bits: int) -> bool:
    """Read ``[boundary:divisions,…]``, as torch does without looking at what stands between the numbers."""
    position = 1
    while position < len(tokens) and tokens[position] != "]":
        pair = tokens[position : position + 4 : 2]
        if len(pair) < 2 or position + 3 >= len(tokens):
            return False
        boundary = WRAP >> 1 if pair[0] == ">" else c_integer(pair[0], bits=bits)
        divisions = c_integer(pair[1], bits=bits)
        if boundary is None or not _is_power(boundary) or divisions is None:
            return False
        if divisions and not _is_power(divisions):
            return False
        if tokens[position + 3] == "]":
            return True
        position += 4
    return position < len(tokens)


def _is_power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
