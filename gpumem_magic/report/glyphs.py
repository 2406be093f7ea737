"""Letters of the base font as small masks, made once a process and put side by side.

matplotlib lays a text out and renders it letter by letter: 0.7 ms a line on a 2 GHz core, and a report has 60 lines,
half of the time of its picture. Letters that need no shaping and no other font repeat, so each is rendered once; the
whole picture then takes half as long, and more so from the second report on.
"""

from __future__ import annotations

import unicodedata
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib import ft2font
from numpy.typing import NDArray

__all__ = ["BASE", "DPI", "POINTS", "SCALE", "Mask", "Weight", "advance", "base_font", "is_plain", "line_mask"]

# Comes with matplotlib.
BASE = "DejaVu Sans"

Weight: TypeAlias = Literal["normal", "bold"]
Mask: TypeAlias = NDArray[np.uint8]

# Pixels of the picture a CSS pixel, so that it is sharp on any screen.
SCALE = 2
# A CSS pixel is 1/96 inch, a point 1/72.
POINTS = 72 / 96
DPI = 96 * SCALE
# Latin with its accents, Greek and Cyrillic, punctuation, arrows, shapes: one letter, one glyph, left to right.
_PLAIN = ((0x20, 0x7F), (0xA0, 0x300), (0x370, 0x483), (0x48A, 0x530), (0x2010, 0x2028), (0x2030, 0x2C00))
_UNDRAWN = {"Cc", "Cf", "Cn", "Co", "Cs", "Mc", "Me", "Mn", "Zl", "Zp"}


class _Glyph(NamedTuple):
    """A letter: its mask, how far left of the pen it begins, and how many rows lie below the baseline, in pixels."""

    mask: Mask
    left: int
    below: int


@cache
def base_font(weight: Weight) -> str:
    """Return the path of the base font."""
    # Asking the font manager would read its list of all fonts of the machine.
    name = "DejaVuSans-Bold.ttf" if weight == "bold" else "DejaVuSans.ttf"
    path = Path(mpl.get_data_path(), "fonts", "ttf", name)
    if path.is_file():
        return str(path)
    from matplotlib import font_manager

    return str(font_manager.findfont(font_manager.FontProperties(family=BASE, weight=weight)))


@lru_cache(maxsize=2)
def _font(weight: Weight) -> Any:
    # Our own object: matplotlib's are shared and keep the last size and transform.
    return ft2font.FT2Font(base_font(weight))


@lru_cache(maxsize=4096)
def _is_plain_character(character: str, weight: Weight) -> bool:
    code = ord(character)
    if not any(low <= code < high for low, high in _PLAIN) or unicodedata.category(character) in _UNDRAWN:
        return False
    return bool(_font(weight).get_char_index(code))


def is_plain(text: str, weight: Weight) -> bool:
    """Tell whether a text is a row of single glyphs of the base font."""
    return all(_is_plain_character(character, weight) for character in text)


@lru_cache(maxsize=4096)
def advance(character: str, size: float, weight: Weight) -> float:
    """Return how far one plain character moves the pen, in CSS pixels.

    Parameters
    ----------
    character
        For which `is_plain` holds.
    size
        Of the font, in CSS pixels.
    weight
        ``"normal"`` or ``"bold"``.
    """
    font = _font(weight)
    font.set_size(size * POINTS, DPI)
    # 16.16 fixed point, in pixels of the picture.
    return float(font.load_char(ord(character)).linearHoriAdvance) / 65536 / SCALE


def _drawn(character: str, size: float, weight: Weight) -> tuple[Mask, float, float]:
    """Return a letter's mask, its left edge and its depth under the baseline, as the font says them."""
    font = _font(weight)
    font.set_size(size * POINTS, DPI)
    font.set_text(character, 0.0)
    font.draw_glyphs_to_bitmap(antialiased=True)
    return np.array(font.get_image(), np.uint8), font.get_bitmap_offset()[0] / 64, font.get_descent() / 64


@lru_cache(maxsize=64)
def _blank_rows(size: float, weight: Weight) -> int:
    """Count the empty rows that this matplotlib leaves under a letter that stands on the baseline."""
    mask, _, depth = _drawn("H", size, weight)
    inked = np.flatnonzero(mask.max(axis=1, initial=0))
    return len(mask) - 1 - int(inked[-1]) - round(depth) if len(inked) else 0


@lru_cache(maxsize=4096)
def _glyph(character: str, size: float, weight: Weight) -> _Glyph:
    mask, left, depth = _drawn(character, size, weight)
    return _Glyph(mask, round(left), round(depth) + _blank_rows(size, weight))


def line_mask(text: str, size: float, weight: Weight) -> tuple[Mask, int, int]:
    """Put the letters of a plain text side by side.

    Parameters
    ----------
    text
        For which `is_plain` holds.
    size
        Of the font, in CSS pixels.
    weight
        ``"normal"`` or ``"bold"``.

    Returns
    -------
    tuple
        Coverage from 0 to 255, shape ``(rows, columns)`` in pixels of the picture; columns that lie left of where the
        text begins; rows below the baseline.
    """
    placed: list[tuple[_Glyph, int]] = []
    pen = 0.0
    for character in text:
        glyph = _glyph(character, size, weight)
        if glyph.mask.size:
            placed.append((glyph, round(pen) + glyph.left))
        pen += advance(character, size, weight) * SCALE
    if not placed:
        return np.zeros((0, 0), np.uint8), 0, 0
    first = min(at for _, at in placed)
    columns = max(at + glyph.mask.shape[1] for glyph, at in placed) - first
    above = max(len(glyph.mask) - glyph.below for glyph, _ in placed)
    below = max(glyph.below for glyph, _ in placed)
    line = np.zeros((above + below, columns), np.uint8)
    for glyph, at in placed:
        rows, width = glyph.mask.shape
        top = above + glyph.below - rows
        part = line[top : top + rows, at - first : at - first + width]
        np.maximum(part, glyph.mask, out=part)
    return line, -first, below
