"""Values of allocator options: read leniently, judged as the release judges them."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, NamedTuple

from gpumem_magic.allocator.conf.c_numbers import c_float, c_integer
from gpumem_magic.allocator.conf.options import Kind

if TYPE_CHECKING:
    from gpumem_magic.allocator.conf.options import Option, Version

__all__ = ["Outcome", "check_value", "least"]

_TRUE = {"true", "1", "yes", "on", "t", "y"}
_FALSE = {"false", "0", "no", "off", "f", "n"}
# What a person who writes a unit after a number of MiB means, in MiB.
_UNITS = {"": 1.0, "m": 1.0, "mb": 1.0, "mib": 1.0, "k": 1 / 1024, "kb": 1 / 1024, "kib": 1 / 1024}
_UNITS |= {"g": 1024.0, "gb": 1024.0, "gib": 1024.0, "t": 1024.0**2, "tb": 1024.0**2, "tib": 1024.0**2}
_INTERVALS = tuple(str(1 << power) for power in range(16))


class Outcome(NamedTuple):
    """A value as read: typed, as it should be written, and what is wrong with it (None: nothing)."""

    value: bool | int | float | str | dict[str, int] | None
    written: str
    message: str | None = None
    then: str | None = None
    note: str | None = None


def check_value(option: Option, text: str, release: Version, segment: int = 20) -> Outcome:
    """Read `text` as the value of `option` for torch `release`.

    Parameters
    ----------
    option
        The option.
    text
        What stands after the colon.
    release
        (major, minor).
    segment
        MiB of a large segment, which bounds other options wherever in the string it is given (tried on 2.14).
    """
    compact = re.sub(r"\s+", "", text).strip("\"'")
    if option.kind is Kind.BOOL:
        return _boolean(option, compact)
    if option.kind is Kind.INT:
        return _integer(option, compact, release, segment)
    if option.kind is Kind.FLOAT:
        return _fraction(option, compact)
    if option.kind is Kind.CHOICE:
        return _choice(option, compact)
    if option.kind is Kind.DIVISIONS:
        return _divisions(option, compact, release)
    return _reserve(option, compact)


def _boolean(option: Option, text: str) -> Outcome:
    if text in {"True", "False"}:
        return Outcome(text == "True", text)
    near = difflib.get_close_matches(text.lower(), ("true", "false"), n=1, cutoff=0.7)
    plain = near[0] if near else text.lower()
    meant = True if plain in _TRUE else False if plain in _FALSE else None
    written = "" if meant is None else str(meant)
    return Outcome(meant, written, f"{option.name} takes exactly True or False, not '{text}'")


def least(option: Option, release: Version, segment: int = 20) -> tuple[int, str]:
    """Return the smallest allowed number and how to say it; `segment` as in `check_value`."""
    if option.name in {"max_split_size_mb", "max_non_split_rounding_mb"}:
        if release < (2, 9):
            return 21, "more than 20"
        bound = segment if release >= (2, 11) else 20
        return bound, f"at least {bound}"
    if option.name == "large_segment_size_mb":
        return 11, "more than 10"
    return (0, "0 or more") if option.name.startswith("pinned_max") else (1, "more than 0")


def _integer(option: Option, text: str, release: Version, segment: int) -> Outcome:
    match = re.fullmatch(r"([+-]?\d+(?:\.\d+)?)([a-zA-Z]*)", text, re.ASCII)
    factor = _UNITS.get(match[2].lower()) if match else None
    counts_mib = option.name.endswith("_mb")
    bits = 64 if release >= (2, 9) else 32
    taken = c_integer(text, bits=bits)
    # What torch makes of it where it does not object.
    then = None if taken is None else f"torch reads {taken} and drops the rest"
    if match is None or factor is None or (match[2] and not counts_mib):
        return Outcome(None, "", f"{option.name} takes a whole number, not '{text}'", then)
    # Whole numbers stay exact, also beyond what a float holds.
    exact = int(match[1]) if factor == 1.0 and "." not in match[1] else float(match[1]) * factor
    number = max(1, round(exact)) if exact > 0 else round(exact)
    low, words = least(option, release, segment)
    if number < low:
        if number < 0 and taken is not None:
            then = f"torch counts down from the largest number there is and reads {taken}: as good as no bound"
        return Outcome(low, str(low), f"{option.name} must be {words}{' (MiB)' * counts_mib}, not {text}", then)
    if c_integer(match[1], bits=bits) is None:
        return Outcome(None, "", f"{option.name}: {match[1]} has too many digits; without the option there is no bound")
    if option.name == "pinned_num_register_threads" and (number > 128 or not _is_power(number)):
        power = min(128, 1 << (number.bit_length() - 1))
        return Outcome(power, str(power), f"{option.name} must be a power of two up to 128, not {text}", then)
    if "." in match[1] or factor != 1.0:
        return Outcome(number, str(number), f"{option.name} counts whole MiB without a unit", then)
    if match[2]:
        then = f"torch reads {taken} and drops the unit"
        return Outcome(number, str(number), f"{option.name} counts MiB: the unit '{match[2]}' is not read", then)
    return Outcome(number, str(number))


def _fraction(option: Option, text: str) -> Outcome:
    match = re.fullmatch(r"([+-]?(?:\d*\.?\d+|\d+\.)(?:e[+-]?\d+)?)(%?)", text, re.ASCII | re.IGNORECASE)
    taken = c_float(text)
    then = None if taken is None else f"torch reads {taken:g} and drops the rest"
    if match is None:
        return Outcome(None, "", f"{option.name} takes a number between 0 and 1, not '{text}'", then)
    number = float(match[1])
    open_interval = option.name == "garbage_collection_threshold"
    inside = 0 < number < 1 if open_interval else 0 <= number <= 1
    if inside and not match[2]:
        if taken is None:
            return Outcome(None, "", f"{option.name}: {text} is too small for a number", None)
        return Outcome(number, match[1])
    bounds = "between 0 and 1, both excluded" if open_interval else "from 0 to 1"
    # 80 and 80% mean 0.8; what 1.5 means nobody knows.
    meant = number / 100
    usable = 0 < meant < 1 and (match[2] == "%" or number >= 10)
    message = f"{option.name} must be {bounds}, not {text}"
    return Outcome(meant if usable else None, f"{meant:g}" if usable else "", message, then)


def _choice(option: Option, text: str) -> Outcome:
    names = {name.lower(): name for name in option.choices} | {"hipmallocasync": "cudaMallocAsync"}
    if text in option.choices or text == "hipMallocAsync":
        return Outcome(names[text.lower()], text)
    meant = names.get(text.lower())
    return Outcome(meant, meant or "", f"{option.name} is {' or '.join(option.choices)}, not '{text}'")


def _is_power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _divisions(option: Option, text: str, release: Version) -> Outcome:
    """``4`` for every interval, or ``[256:1,512:2,>:4]``: MiB boundary → divisions, ``>`` for the rest."""
    if not text.startswith("["):
        if not text.isdigit() or not _is_power(int(text)):
            nearest = str(1 << max(0, int(text).bit_length() - 1)) if text.isdigit() and int(text) else ""
            return Outcome(
                int(nearest) if nearest else None, nearest, f"{option.name} takes a power of two, not '{text}'"
            )
        return Outcome(int(text), text)
    if not text.endswith("]"):
        closed = _divisions(option, text + "]", release)
        return closed._replace(message=f"{option.name}: the bracket is not closed")
    table = dict.fromkeys(_INTERVALS, 0)
    last = 0
    first = True
    for pair in text[1:-1].split(","):
        match = re.fullmatch(r"(>|\d+):(\d+)", pair)
        if match is None:
            return Outcome(None, "", f"{option.name}: '{pair}' is no boundary:divisions pair such as 256:1 or >:4")
        divisions = int(match[2])
        if divisions and not _is_power(divisions):
            return Outcome(None, "", f"{option.name}: divisions must be a power of two, or 0 for none, not {divisions}")
        if match[1] == ">":
            # Before 2.9 torch filled from the last boundary itself on, so the boundary's own value was replaced too.
            table.update(dict.fromkeys(_INTERVALS[last + (release >= (2, 9)) :], divisions))
            continue
        boundary = int(match[1])
        if not _is_power(boundary):
            return Outcome(None, "", f"{option.name}: boundaries must be powers of two (MiB), not {boundary}")
        last = min(boundary.bit_length() - 1, len(_INTERVALS) - 1)
        if first:
            table.update(dict.fromkeys(_INTERVALS[:last], divisions))
            first = False
        table[_INTERVALS[last]] = divisions
    return Outcome(table, text)


def _reserve(option: Option, text: str) -> Outcome:
    if option.kind is Kind.RESERVE_BY_CLASS:
        good = re.fullmatch(r"\[[^\[\]:,]+:[^\[\]:,]+(,[^\[\]:,]+:[^\[\]:,]+)*\]", text) is not None
    else:
        good = re.fullmatch(r"\d*\.?\d+[KMGTkmgt]?", text) is not None
    if good:
        return Outcome(text, text)
    return Outcome(None, "", f"{option.name} takes {option.kind.value}, not '{text}'", "a warning, then nothing")
