"""A small drawing surface over matplotlib's Agg renderer.

The renderer alone, without figure, axes and pyplot, imports in half the time, draws a report in a fifth of it, and
leaves the user's figures and rcParams alone. Coordinates are CSS pixels from the top left; the picture has twice as
many, so that it is sharp on any screen.
"""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib import font_manager
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.transforms import Affine2D
from PIL import Image

from gpumem_magic.report.fonts import BASE, families_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["Canvas"]

SCALE = 2
# A CSS pixel is 1/96 inch, a point 1/72.
_POINTS = 72 / 96
Weight = Literal["normal", "bold"]
Anchor = Literal["left", "center", "right"]


@cache
def _advance(character: str, size: float, weight: Weight) -> float:
    """Return how far one ASCII character moves the pen, in CSS pixels.

    Laying out a whole text takes half a millisecond, and a report measures a hundred.
    """
    path = font_manager.findfont(FontProperties(family=BASE, weight=weight))
    font = font_manager.get_font(path)
    font.set_size(size * _POINTS, 96 * SCALE)
    # 16.16 fixed point, in pixels of the picture.
    return float(font.load_char(ord(character)).linearHoriAdvance) / 65536 / SCALE


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
        renderer: Callable[..., Any] = RendererAgg
        self._renderer = renderer(width * SCALE, height * SCALE, 96 * SCALE)
        self._to_pixels = Affine2D().scale(SCALE, -SCALE).translate(0, height * SCALE)
        self._families = list(families_for(texts))
        self._fonts: dict[tuple[float, Weight], FontProperties] = {}
        self._widths: dict[tuple[str, float, Weight], float] = {}
        self.rectangle(0, 0, width, height, background)

    def resized(self, width: int, height: int, background: str) -> Canvas:
        """Return an empty canvas of another size with the same fonts."""
        other = Canvas(width, height, background)
        other._families = self._families
        return other

    def _font(self, size: float, weight: Weight) -> FontProperties:
        font = self._fonts.get((size, weight))
        if font is None:
            font = FontProperties(family=self._families, size=size * _POINTS, weight=weight)
            self._fonts[size, weight] = font
        return font

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """Fill a rectangle."""
        self.polygon(np.array([(x, y), (x + width, y), (x + width, y + height), (x, y + height)], float), fill)

    def polygon(self, points: NDArray[np.float64], fill: str, *, alpha: float = 1.0) -> None:
        """Fill a polygon, shape ``(n, 2)``; it closes itself."""
        self.polygons([points], fill, alpha=alpha)

    def polygons(self, parts: Sequence[NDArray[np.float64]], fill: str, *, alpha: float = 1.0) -> None:
        """Fill several polygons of one colour at once."""
        if not parts:
            return
        context = self._renderer.new_gc()
        context.set_linewidth(0.0)
        context.set_alpha(alpha)
        context.set_antialiased(True)
        vertices, codes = [], []
        for points in parts:
            vertices += [points, points[:1]]
            part = np.full(len(points) + 1, Path.LINETO, Path.code_type)
            part[0], part[-1] = Path.MOVETO, Path.CLOSEPOLY
            codes.append(part)
        path = Path(np.concatenate(vertices), np.concatenate(codes))
        self._renderer.draw_path(context, path, self._to_pixels, (*to_rgb(fill), alpha))
        context.restore()

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
        context = self._renderer.new_gc()
        context.set_foreground(color)
        context.set_linewidth(width * _POINTS)
        context.set_alpha(alpha)
        context.set_antialiased(True)
        if dashes is not None:
            context.set_dashes(0, [dash * _POINTS for dash in dashes])
        self._renderer.draw_path(context, Path(np.asarray(points, float)), self._to_pixels)
        context.restore()

    def measure(self, text: str, size: float = 11, weight: Weight = "normal") -> float:
        """Return a text's width in CSS pixels."""
        key = (text, size, weight)
        width = self._widths.get(key)
        if width is None:
            if text.isascii():
                width = sum(_advance(character, size, weight) for character in text)
            else:
                font = self._font(size, weight)
                pixels, _, _ = self._renderer.get_text_width_height_descent(text, font, ismath=False)
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
        context = self._renderer.new_gc()
        context.set_foreground(color)
        context.set_antialiased(True)
        self._renderer.draw_text(context, x * SCALE, y * SCALE, text, self._font(size, weight), 0)
        context.restore()

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
        pixels = np.asarray(self._renderer.buffer_rgba())[:, :, :3]
        image = Image.fromarray(np.ascontiguousarray(pixels)).quantize(256, method=Image.Quantize.FASTOCTREE)
        out = io.BytesIO()
        image.save(out, format="png", optimize=False, compress_level=7)
        return out.getvalue()
