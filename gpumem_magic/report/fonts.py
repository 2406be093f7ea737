"""Which fonts can write a text, and what to do when none can.

DejaVu Sans comes with matplotlib and covers Latin, Greek, Cyrillic, Hebrew and Arabic. Other scripts come from the
machine's fonts, by the characters that they really hold. Scripts that need shaping or run from right to left are drawn
by matplotlib since 3.11 (libraqm); older versions would draw their letters apart and in the wrong order, which reads as
nonsense, so there such a text is not drawn at all and stands in the text and the HTML beside the picture.
"""

from __future__ import annotations

import logging
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from matplotlib import ft2font

from gpumem_magic._format import has_rtl
from gpumem_magic.report.glyphs import BASE, base_font, is_plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["BASE", "can_shape", "drawable", "families_for"]

# Opening a font file takes 1 to 20 ms; fonts with these words come first, as they cover most.
_LIKELY = ("cjk", "noto", "unicode", "hei", "gothic", "pingfang", "yahei", "mincho", "malgun", "droid", "arial")
_MOST_OPENED = 80
# More undrawable characters than this, and the text says nothing any more.
_MOST_MISSING = 0.2
_PLACEHOLDER = "□"


def can_shape() -> bool:
    """Return whether this matplotlib orders and joins letters itself."""
    return hasattr(ft2font, "__libraqm_version__")


def _needs_shaping(text: str) -> bool:
    # Combining marks over Latin letters are drawn well enough without; marks of other scripts are not.
    return has_rtl(text) or any(
        unicodedata.category(character) in {"Mn", "Mc"} and ord(character) > 0x36F for character in text
    )


@lru_cache(maxsize=_MOST_OPENED)
def _opened(path: str) -> Any:
    # Not the font manager's: it reads, or first makes, a list of all fonts of the machine.
    return ft2font.FT2Font(path)


def _holds(path: str, characters: frozenset[str]) -> frozenset[str]:
    try:
        font = _opened(path)
    except (OSError, RuntimeError):
        return frozenset()
    return frozenset(character for character in characters if font.get_char_index(ord(character)))


def _candidates() -> Iterator[tuple[str, str]]:
    """Yield (family, path) of the machine's regular fonts, likely ones first."""
    from matplotlib import font_manager

    entries = {
        entry.name: entry.fname
        for entry in font_manager.fontManager.ttflist
        if entry.style == "normal" and entry.weight in {400, "normal", "regular"} and entry.name != "Last Resort"
    }
    order = sorted(entries, key=lambda name: (not any(word in name.lower() for word in _LIKELY), name))
    for name in order:
        yield name, str(entries[name])


@lru_cache(maxsize=256)
def _family_of(character: str) -> str | None:
    """Find a family that holds one character."""
    wanted = frozenset(character)
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        for opened, (name, path) in enumerate(_candidates()):
            if opened >= _MOST_OPENED:
                break
            if _holds(path, wanted):
                return name
    finally:
        logger.setLevel(level)
    return None


def families_for(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the font families that together hold the given texts, the base font first."""
    characters = frozenset("".join(texts)) - frozenset("\n")
    missing = {c for c in characters - _holds(base_font("normal"), characters) if not c.isspace()}
    families = [BASE]
    while missing:
        character = min(missing)
        name = _family_of(character)
        missing.discard(character)
        if name is not None:
            if name not in families:
                families.append(name)
            path = next((path for family, path in _candidates() if family == name), None)
            if path is not None:
                missing -= _holds(path, frozenset(missing))
    return tuple(families)


def drawable(text: str) -> str | None:
    """Return what of a text can be drawn so that it reads right, or None when that is nothing.

    Single characters that no font holds (emoji) become a box; a text that is mostly such, or that needs shaping which
    this matplotlib lacks, is not drawn.
    """
    if is_plain(text, "normal"):
        return text
    clean = "".join(" " if unicodedata.category(c) in {"Cc", "Cf", "Zl", "Zp"} else c for c in text)
    if is_plain(clean, "normal"):
        return clean
    if not can_shape() and _needs_shaping(clean):
        return None
    unknown = {
        c
        for c in set(clean) - _holds(base_font("normal"), frozenset(clean))
        if not c.isspace() and _family_of(c) is None
    }
    if not unknown:
        return clean
    if sum(c in unknown for c in clean) > _MOST_MISSING * len(clean):
        return None
    return "".join(_PLACEHOLDER if c in unknown else c for c in clean)
