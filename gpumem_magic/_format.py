"""Numbers as people read them: binary units, always with the unit; text in what a terminal can show."""

from __future__ import annotations

import re
import sys
import unicodedata

__all__ = [
    "encodable",
    "format_bytes",
    "format_count",
    "format_duration",
    "format_share",
    "has_rtl",
    "printed_encoding",
    "say",
    "visible",
]

# What steers a terminal (C0, DEL, C1), turns the reading order around without a letter (embeddings, overrides,
# isolates), breaks a line where none is (U+2028, U+2029), or cannot be encoded (lone surrogates). Marks that real
# scripts need (joiners, right-to-left mark) are none of these.
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

# What stands in for a character that an encoding lacks.
_ASCII = {
    "…": "...",
    "·": "|",
    "×": "x",
    "−": "-",
    "–": "-",
    "→": "->",
    "│": "|",
    "µ": "u",
    "█": "#",
    "▏": "",
    "▎": "",
    "▍": "",
    "▌": "",
    "▋": "",
    "▊": "#",
    "▉": "#",
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(count: float, *, signed: bool = False) -> str:
    """Write a byte count with a binary unit and three significant digits.

    Parameters
    ----------
    count
        Bytes. May be negative (a difference).
    signed
        Write a leading ``+`` for positive counts.

    Returns
    -------
    str
        For example ``"512 B"``, ``"1.50 KiB"``, ``"21.7 MiB"``, ``"6.21 GiB"``.
    """
    sign = "-" if count < 0 else "+" if signed and count > 0 else ""
    value = abs(count)
    unit = 0
    # 999.5 and up would print as four digits, so it moves to the next unit.
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    if unit == 0:
        return f"{sign}{value:.0f} B"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{sign}{value:.{digits}f} {_UNITS[unit]}"


def format_count(count: int) -> str:
    """Write an integer with thousands separators."""
    return f"{count:,}"


def format_duration(seconds: float) -> str:
    """Write a duration with two or three significant digits and a unit.

    Parameters
    ----------
    seconds
        Non-negative duration in seconds.
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        milliseconds = seconds * 1e3
        return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def visible(text: str, keep: str = "") -> str:
    r"""Write characters that would steer the reader's screen as their escapes (``\x1b``, ``\u202e``).

    For whatever comes from a file, a path, a device or a cell and is shown as text.

    Parameters
    ----------
    text
        What is shown.
    keep
        Characters to leave as they are, such as a newline.
    """

    def escaped(found: re.Match[str]) -> str:
        character = found.group()
        if character in keep:
            return character
        return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"

    return _STEERING.sub(escaped, text)


def format_share(part: int, whole: int) -> str:
    """Write a share in whole percent; what is there but rounds to nothing is ``<1%``."""
    if not whole:
        return ""
    text = f"{part / whole:.0%}"
    return "<1%" if part > 0 and text == "0%" else text


def has_rtl(text: str) -> bool:
    """Tell whether letters in a text run from right to left."""
    return any(unicodedata.bidirectional(character) in {"R", "AL"} for character in text)


def encodable(text: str, encoding: str) -> str:
    """Replace what `encoding` cannot hold, by ASCII look-alikes where there are any, else by ``?``."""
    try:
        text.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        pass
    else:
        return text
    try:
        "a".encode(encoding)
    except LookupError:
        encoding = "ascii"
    result = []
    for character in text:
        try:
            character.encode(encoding)
            result.append(character)
        except UnicodeEncodeError:
            # Isolates and other signs of direction have no look, so nothing stands in for them.
            if unicodedata.category(character) != "Cf":
                result.append(_ASCII.get(character, "?"))
    return "".join(result)


def printed_encoding() -> str:
    """Return the encoding of what is printed."""
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def say(text: str) -> None:
    """Print text where the user's own prints go, in characters that can be written there."""
    print(encodable(text, printed_encoding()))  # noqa: T201 - it is the magics' output
