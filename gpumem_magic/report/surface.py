"""The pixels under a canvas: matplotlib's Agg, reached without what matplotlib imports for figures.

The compiled renderer reads a pen and a path by their attributes. With objects of our own that have these attributes,
drawing a report needs neither ``matplotlib.backend_bases`` nor its font manager: 0.2 of the 0.35 s that the first
picture of a process spent on imports. Where this matplotlib wants its own objects it gets them.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem_magic.report.glyphs import DPI, SCALE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["CLOSE", "LINE", "MOVE", "Surface", "rgb"]

# matplotlib's numbers for the parts of a path.
MOVE, LINE, CLOSE = 1, 2, 79
# Fewer points are drawn as they are (matplotlib's own bounds).
_SIMPLIFIED_FROM, _SIMPLIFIED_TO = 128, 1 / 9


def rgb(color: str) -> tuple[float, float, float]:
    """Return red, green and blue of ``#rrggbb``, 0 to 1."""
    red, green, blue = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


class _Pen:
    """What the renderer wants to know of a graphics context."""

    _capstyle = "butt"
    _joinstyle = "round"
    _antialiased = True
    _cliprect = None
    _forced_alpha = True

    def __init__(
        self,
        color: tuple[float, float, float] = (0.0, 0.0, 0.0),
        alpha: float = 1.0,
        width: float = 0.0,
        dashes: Sequence[float] | None = None,
    ) -> None:
        self._rgb = (*color, alpha)
        self._alpha = alpha
        self._linewidth = width
        self._dashes = (0, None) if dashes is None else (0, np.asarray(dashes, float))

    def get_dashes(self) -> tuple[int, NDArray[np.float64] | None]:
        return self._dashes

    def get_clip_path(self) -> tuple[None, None]:
        return None, None

    def get_snap(self) -> None:
        return None

    get_hatch_path = get_sketch_params = get_snap

    def get_hatch_color(self) -> tuple[float, float, float, float]:
        return 0.0, 0.0, 0.0, 1.0

    def get_hatch_linewidth(self) -> float:
        return 1.0


class _Shape:
    """What the renderer wants to know of a path."""

    simplify_threshold = _SIMPLIFIED_TO

    def __init__(self, vertices: NDArray[np.float64], codes: NDArray[np.uint8] | None) -> None:
        self.vertices = vertices
        self.codes = codes
        self.should_simplify = codes is None and len(vertices) >= _SIMPLIFIED_FROM


@cache
def _parts() -> tuple[Any, Any, Any]:
    """Return the compiled renderer's class and those of pens and paths that it takes."""
    agg: Any = importlib.import_module("matplotlib.backends._backend_agg").RendererAgg
    try:
        square = _Shape(np.array([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)]), np.array([MOVE, LINE, CLOSE], np.uint8))
        agg(2, 2, 72.0).draw_path(_Pen(dashes=(1.0, 1.0)), square, np.eye(3), (1.0, 1.0, 1.0, 1.0))
    except Exception:  # noqa: BLE001 - an unknown version's own errors
        return agg, _own_pen(), importlib.import_module("matplotlib.path").Path
    return agg, _Pen, _Shape


def _own_pen() -> Any:
    bases: Any = importlib.import_module("matplotlib.backend_bases")

    class OwnPen(bases.GraphicsContextBase):  # type: ignore[misc]
        """matplotlib's own graphics context, made with the same arguments as `_Pen`."""

        def __init__(
            self,
            color: tuple[float, float, float] = (0.0, 0.0, 0.0),
            alpha: float = 1.0,
            width: float = 0.0,
            dashes: Sequence[float] | None = None,
        ) -> None:
            super().__init__()
            self.set_foreground(color)
            self.set_alpha(alpha)
            self.set_linewidth(width)
            self.set_antialiased(True)
            if dashes is not None:
                self.set_dashes(0, list(dashes))

    return OwnPen


class Surface:
    """Pixels of a picture of `width` × `height` CSS pixels."""

    def __init__(self, width: int, height: int) -> None:
        self._size = (width * SCALE, height * SCALE)
        agg, self._pen, self._shape = _parts()
        self._agg = agg(*self._size, float(DPI))
        # The renderer counts rows from the bottom.
        self._transform = np.array([(SCALE, 0.0, 0.0), (0.0, -SCALE, self._size[1]), (0.0, 0.0, 1.0)])
        self._writer: Any = None

    def fill(self, vertices: NDArray[np.float64], codes: NDArray[np.uint8], color: str, alpha: float) -> None:
        """Fill a path; vertices in CSS pixels, shape ``(n, 2)``."""
        self._agg.draw_path(self._pen(alpha=alpha), self._shape(vertices, codes), self._transform, (*rgb(color), alpha))

    def stroke(
        self,
        vertices: NDArray[np.float64],
        color: str,
        *,
        width: float,
        alpha: float,
        dashes: Sequence[float] | None,
    ) -> None:
        """Draw a line through points; `width` and `dashes` in points of 1/72 inch."""
        pen = self._pen(rgb(color), alpha, width, dashes)
        self._agg.draw_path(pen, self._shape(vertices, None), self._transform, None)

    def stamp(self, image: NDArray[np.uint8], left: int, bottom: int) -> None:
        """Blend an RGBA image, first row at the bottom, in; its corner is in pixels of the picture."""
        self._agg.draw_image(self._pen(), left, bottom, image)

    @property
    def writer(self) -> Any:
        """The renderer of matplotlib's figures over the same pixels, for texts that must be laid out."""
        if self._writer is None:
            backend: Any = importlib.import_module("matplotlib.backends.backend_agg")
            self._writer = backend.RendererAgg(*self._size, DPI)
            self._writer._renderer = self._agg  # noqa: SLF001 - nothing public draws on pixels that exist
            self._writer._update_methods()  # noqa: SLF001
        return self._writer

    def pixels(self) -> NDArray[np.uint8]:
        """Return the picture, RGBA, shape ``(rows, columns, 4)``."""
        return np.asarray(self._agg)
