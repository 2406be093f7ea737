"""A small drawing surface over matplotlib's Agg renderer.

The renderer alone, without figure, axes and pyplot, imports in half the time, draws a report in a fifth of it, and
leaves the user's figures and rcParams alone. Coordinates are CSS pixels from the top left; the picture has twice as
many, so that it is sharp on any screen.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from gpumem_magic.report.fonts import families_for
from gpumem_magic.report.glyphs import POINTS, SCALE, advance, is_plain, line_mask
from gpumem_magic.report.surface import CLOSE, LINE, MOVE, Surface, rgb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from gpumem_magic.report.glyphs import Mask, Weight

__all__ = ["Canvas"]

Anchor = Literal["left", "center", "right"]
# Colours of a picture's palette that are set beforehand.
_MOST_KNOWN = 160


class Canvas:
    """A picture of `width` × `height` CSS pixels.

    Parameters
    ----------
    width, height
        Size in CSS pixels.
    background
        Fill.
    texts
        All that will be written, so that fonts are chosen once.
    """

    def __init__(self, width: int, height: int, background: str, texts: Iterable[str] = ()) -> None:
        self.width, self.height = width, height
        self._surface = Surface(width, height)
        self._families = list(families_for(text for text in texts if not is_plain(text, "normal")))
        self._fonts: dict[tuple[float, Weight], Any] = {}
        self._widths: dict[tuple[str, float, Weight], float] = {}
        self._colors: list[str] = []
        self.rectangle(0, 0, width, height, background)

    def resized(self, width: int, height: int, background: str) -> Canvas:
        """Return an empty canvas of another size with the same fonts."""
        other = Canvas(width, height, background)
        other._families = self._families
        return other

    def _font(self, size: float, weight: Weight) -> Any:
        font = self._fonts.get((size, weight))
        if font is None:
            from matplotlib.font_manager import FontProperties

            font = FontProperties(family=self._families, size=size * POINTS, weight=weight)
            self._fonts[size, weight] = font
        return font

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """Fill a rectangle."""
        self.polygon(np.array([(x, y), (x + width, y), (x + width, y + height), (x, y + height)], float), fill)

    def polygon(self, points: NDArray[np.float64], fill: str, *, alpha: float = 1.0) -> None:
        """Fill a polygon, shape ``(n, 2)``; it closes itself."""
        self.polygons(points, np.array([len(points)]), fill, alpha=alpha)

    def polygons(self, points: NDArray[np.float64], stop: NDArray[np.intp], fill: str, *, alpha: float = 1.0) -> None:
        """Fill several polygons of one colour at once.

        Parameters
        ----------
        points
            Those of all polygons, shape ``(n, 2)``; each closes itself.
        stop
            Where each polygon's points end.
        fill
            Colour.
        alpha
            Opacity.
        """
        if not len(points):
            return
        self._colors.append(fill)
        start = np.concatenate([[0], stop[:-1]])
        vertices = np.insert(points, stop, points[start], axis=0)
        codes = np.full(len(vertices), LINE, np.uint8)
        more = np.arange(len(stop))
        codes[start + more], codes[stop + more] = MOVE, CLOSE
        self._surface.fill(vertices, codes, fill, alpha)

    def line(
        self,
        points: NDArray[np.float64] | Sequence[tuple[float, float]],
        color: str,
        *,
        width: float = 1.0,
        dashes: Sequence[float] | None = None,
        alpha: float = 1.0,
    ) -> None:
        """Draw a line through points; NaN parts it."""
        self._colors.append(color)
        points = np.asarray(points, float)
        scaled = None if dashes is None else [dash * POINTS for dash in dashes]
        self._surface.stroke(points, color, width=width * POINTS, alpha=alpha, dashes=scaled)

    def measure(self, text: str, size: float = 11, weight: Weight = "normal") -> float:
        """Return a text's width in CSS pixels."""
        key = (text, size, weight)
        width = self._widths.get(key)
        if width is None:
            if is_plain(text, weight):
                width = sum(advance(character, size, weight) for character in text)
            else:
                font = self._font(size, weight)
                pixels, _, _ = self._surface.writer.get_text_width_height_descent(text, font, ismath=False)
                width = float(pixels) / SCALE
            self._widths[key] = width
        return width

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 11,
        color: str = "#000000",
        weight: Weight = "normal",
        anchor: Anchor = "left",
    ) -> None:
        """Write one line; `y` is its baseline."""
        if not text:
            return
        if anchor != "left":
            shift = self.measure(text, size, weight)
            x -= shift if anchor == "right" else shift / 2
        self._colors.append(color)
        if is_plain(text, weight):
            self._stamp(x, y, line_mask(text, size, weight), color)
            return
        writer = self._surface.writer
        context = writer.new_gc()
        context.set_foreground(color)
        context.set_antialiased(True)
        writer.draw_text(context, x * SCALE, y * SCALE, text, self._font(size, weight), 0)
        context.restore()

    def _stamp(self, x: float, y: float, line: tuple[Mask, int, int], color: str) -> None:
        """Paint a line of text, given as coverage, with its beginning and baseline at `x`, `y`."""
        mask, left, below = line
        if not mask.size:
            return
        image = np.empty((*mask.shape, 4), np.uint8)
        image[:] = [round(255 * part) for part in rgb(color)] + [0]
        image[:, :, 3] = mask[::-1]
        self._surface.stamp(image, round(x * SCALE) - left, self.height * SCALE - round(y * SCALE) - below)

    def clip(self, text: str, room: float, size: float = 11, weight: Weight = "normal") -> str:
        """Shorten a text to a width, with an ellipsis."""
        whole = self.measure(text, size, weight)
        if whole <= room:
            return text
        # Measuring takes half a millisecond, so the place is guessed from the mean width and then corrected.
        count = max(int(len(text) * room / whole) + 2, 1)
        while count:
            short = text[:count].rstrip() + "…"
            over = self.measure(short, size, weight) - room
            if over <= 0:
                return short
            count -= max(int(over * len(text) / whole), 1)
            count = max(count, 0)
        return ""

    def wrap(self, text: str, room: float, lines: int, size: float = 11, weight: Weight = "normal") -> list[str]:
        """Break a text at spaces into at most `lines` lines; the last one is shortened."""
        words = text.split(" ")
        widths = [self.measure(word, size, weight) for word in words]
        space = self.measure("n n", size, weight) - self.measure("nn", size, weight)
        result: list[str] = []
        first, used = 0, 0.0
        for index, width in enumerate(widths):
            more = width if index == first else used + space + width
            if more > room and index > first:
                if len(result) == lines - 1:
                    return [*result, self.clip(" ".join(words[first:]), room, size, weight)]
                result.append(" ".join(words[first:index]))
                first, more = index, width
            used = more
        return [*result, self.clip(" ".join(words[first:]), room, size, weight)]

    def png(self) -> bytes:
        """Return the picture as PNG, with a palette of 256 colours: a third of the bytes of a true-colour one."""
        pixels = self._surface.pixels()
        size = (pixels.shape[1], pixels.shape[0])
        image = Image.frombuffer("RGBX", size, np.ascontiguousarray(pixels), "raw", "RGBX", 0, 1).convert("RGB")
        few = image.quantize(palette=self._palette(image), dither=Image.Dither.NONE)
        return _png(np.frombuffer(few.tobytes(), np.uint8).reshape(size[1], size[0]), bytes(few.getpalette() or []))

    def _palette(self, image: Any) -> Any:
        """Choose colours: those that were drawn with, their edges on the background, then what a sample holds.

        Counting the colours of every pixel instead takes ten times as long.
        """
        drawn = np.array([rgb(color) for color in dict.fromkeys(self._colors)]) * 255
        shares = np.array([1.0, 0.75, 0.5, 0.25])[:, None, None]
        edges = (shares * drawn + (1 - shares) * drawn[0]).reshape(-1, 3)
        known = np.unique(np.rint(edges).astype(np.uint8)[:_MOST_KNOWN], axis=0)
        sample = image.resize((image.width // 4 or 1, image.height // 4 or 1), Image.Resampling.NEAREST)
        rest = sample.quantize(256 - len(known), method=Image.Quantize.FASTOCTREE).getpalette() or []
        palette = Image.new("P", (1, 1))
        palette.putpalette([*known.ravel().tolist(), *rest][:768])
        return palette


def _png(rows: NDArray[np.uint8], palette: bytes) -> bytes:
    """Write pixels of a palette as PNG. Saving through Pillow imports what reads five other kinds of pictures first."""
    height, width = rows.shape
    # A byte before each row says how it was filtered: not at all, which is best for a palette.
    data = np.zeros((height, width + 1), np.uint8)
    data[:, 1:] = rows
    # Eight bits a pixel, colours from the palette; the rest is what PNG has one value for.
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(data.tobytes(), 6)), (b"IEND", b""))
    parts = [b"\x89PNG\r\n\x1a\n"]
    for name, content in chunks:
        parts += [struct.pack(">I", len(content)), name, content, struct.pack(">I", zlib.crc32(name + content))]
    return b"".join(parts)
