"""The report as a picture: the sentence, the numbers, one panel a device with its legend. Always light."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from gpumem_magic._format import format_bytes, format_duration, has_rtl
from gpumem_magic.report import palette
from gpumem_magic.report.canvas import Canvas
from gpumem_magic.report.fonts import drawable
from gpumem_magic.report.scene import device_scene
from gpumem_magic.report.ticks import byte_ticks, order_ticks, time_ticks
from gpumem_magic.report.wording import WIDTH, format_share, numbers, table_title

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis
    from gpumem_magic.report.glyphs import Weight
    from gpumem_magic.report.scene import Band, Scene

__all__ = ["report_png"]

_MARGIN = 14
_LEFT = 66
_LEGEND = 290
_PLOT = WIDTH - 2 * _MARGIN - _LEFT - _LEGEND - 22
_PANEL = 236
_AXIS = 30
_ROW = 29
_MOST_DEVICES = 4
_LEFT_TO_RIGHT = "\u200e"
# A layer thinner than this, in CSS pixels, cannot be seen; its row in the legend names it.
_LEAST_HEIGHT = 0.2


def _without_source(text: str) -> str:
    """Drop quoted source: what is left are numbers and line numbers, which every font holds."""
    return re.sub(r" `[^`]*`", "", text)


def _readable(text: str) -> str:
    result = drawable(text)
    if result is None:
        result = drawable(_without_source(text))
    return result if result is not None else ""


def _all_texts(analysis: Analysis) -> list[str]:
    texts = [analysis.sentence, *(note.text for note in analysis.notes), *(span.title for span in analysis.cells)]
    for device in analysis.devices:
        texts += [device.name or "", *(region.name for region in device.regions)]
        for group in device.groups:
            texts += [group.label, group.source or "", group.reason or "", group.cell or ""]
    return texts


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


class _Panel:
    """One device: plot at the left, legend at the right."""

    def __init__(self, canvas: Canvas, device: DeviceAnalysis, scene: Scene, top: float) -> None:
        self.canvas, self.device, self.scene = canvas, device, scene
        self.left, self.right = float(_MARGIN + _LEFT), float(_MARGIN + _LEFT + _PLOT)
        self.top, self.bottom = top, top + _PANEL
        self.highest = self._highest()
        self._boxes: list[tuple[float, float, float, float]] = []

    def _highest(self) -> float:
        """Return the top of the scale: what is allocated, and the other curves where they do not flatten it.

        A reserved that only stands there from earlier cells, far above, is named at the upper edge instead.
        """
        main = max(int(self.scene.highest.max(initial=0)), self.device.headline.allocated_peak or 0, 1)
        for lane, _, value in self.scene.lanes:
            if lane.name == "reserved" and len(value):
                top = int(value.max())
                if top <= 2.5 * main or np.ptp(value) > 0.05 * top:
                    main = max(main, top)
        others = [int(value.max()) for lane, _, value in self.scene.lanes if lane.name != "reserved" and len(value)]
        if self.device.limit is not None:
            others.append(self.device.limit)
        return max(main, *(top for top in others if top <= 1.25 * main), 1) * 1.12

    def px(self, x: NDArray[np.float64] | float) -> NDArray[np.float64]:
        return self.left + np.asarray(x) * (self.right - self.left)

    def py(self, value: NDArray[np.int64] | NDArray[np.float64] | float) -> NDArray[np.float64]:
        return self.bottom - np.asarray(value, float) / self.highest * (self.bottom - self.top)

    def _stepped(self, x: NDArray[np.float64], value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return points of a curve that holds each value until the next place."""
        across = np.append(np.repeat(x, 2)[1:], 1.0)
        return np.stack([self.px(across), self.py(np.repeat(value, 2))], axis=1)

    def draw(self) -> None:
        self._grid()
        self._bands()
        self._time_axis()
        self._lanes()
        # The peak's label has the first choice of place.
        self._peak()
        self._marks()
        self._lane_names()
        self._legend()

    def _grid(self) -> None:
        for value, label in byte_ticks(self.highest):
            y = float(self.py(value))
            self.canvas.line([(self.left, y), (self.right, y)], palette.GRID, width=1)
            self.canvas.text(self.left - 7, y + 4, label, size=11, color=palette.MUTED, anchor="right")

    def _bands(self) -> None:
        """Paint from the top layer down, each down to the axis: the next covers what is below, without hairlines."""
        x, bands = self.scene.x, self.scene.bands
        if not len(x) or not bands:
            return
        if self.scene.stepped:
            spikes = self.scene.highest
            self._layer(x, spikes.astype(float), spikes - self.scene.total, palette.SPIKES)
        top = np.cumsum([band.value for band in bands], axis=0).astype(float)
        for band, high in zip(reversed(bands), reversed(top), strict=True):
            self._layer(x, high, band.value, band.color)
        # Where steps come close, an outline would paint over the bands.
        if self.scene.stepped and len(x) < _PLOT / 2:
            self.canvas.line(self._stepped(x, top[-1]), palette.FOREGROUND, width=0.6, alpha=0.5)

    def _layer(self, x: NDArray[np.float64], high: NDArray[np.float64], own: NDArray[np.int64], color: str) -> None:
        """Paint a layer where it is there: elsewhere its edge would tint the layers below."""
        if not self.scene.stepped:
            points = np.stack([self.px(x), self.py(high)], axis=1)
            ends = [(points[-1, 0], self.bottom), (points[0, 0], self.bottom)]
            self.canvas.polygon(np.concatenate([points, ends]), color)
            return
        there = own * (self.bottom - self.top) > _LEAST_HEIGHT * self.highest
        edges = np.diff(np.concatenate([[False], there, [False]]).astype(np.int8))
        # Each stretch is one polygon: two points a column, two on the axis. There may be hundreds: all at once.
        first, last, column = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), np.flatnonzero(there)
        across, level = self.px(np.append(x, 1.0)), self.py(high)
        before = 2 * np.arange(len(first))
        at = 2 * np.arange(len(column)) + np.repeat(before, last - first)
        end = 2 * np.cumsum(last - first) + before
        points = np.empty((2 * len(column) + 2 * len(first), 2))
        points[at, 0], points[at + 1, 0] = across[column], across[column + 1]
        points[at, 1] = points[at + 1, 1] = level[column]
        points[end, 0], points[end + 1, 0] = across[last], across[first]
        points[end, 1] = points[end + 1, 1] = self.bottom
        self.canvas.polygons(points, end + 2, color)

    def _lanes(self) -> None:
        dashes = {"device used": (2, 3), "process used": (7, 3), "host used": (2, 3), "pinned host": (9, 2)}
        for lane, x, value in self.scene.lanes:
            if not len(value):
                continue
            color = palette.LINES[lane.name]
            if value.max() <= self.highest:
                points = (
                    self._stepped(x, value.astype(float))
                    if lane.shape == "step"
                    else np.stack([self.px(x), self.py(value)], axis=1)
                )
                width = 1.6 if lane.name == "reserved" else 1.2
                self.canvas.line(points, color, width=width, dashes=dashes.get(lane.name))
        limit = self.device.limit
        if limit is not None and limit <= self.highest:
            y = float(self.py(limit))
            self.canvas.line([(self.left, y), (self.right, y)], palette.DANGER, width=1.2, dashes=(10, 3, 2, 3))

    def _lane_names(self) -> None:
        for lane, _, value in self.scene.lanes:
            inside = len(value) and value.max() <= self.highest
            if not len(value) or (not inside and lane.name != "reserved"):
                # The numbers above name it; an arrow to nowhere would only be in the way.
                continue
            y = float(self.py(int(value[-1]))) - 5 if inside else self.top + 8
            text = f"{lane.name} {format_bytes(int(value[-1]))}"
            self._note(self.right - 4, y, text if inside else f"{text} ↑", palette.LINES[lane.name], anchor="right")
        limit = self.device.limit
        if limit is not None and limit <= self.highest:
            self._note(self.left + 4, float(self.py(limit)) - 4, f"limit {format_bytes(limit)}", palette.DANGER)

    def _note(self, x: float, y: float, text: str, color: str, *, anchor: str = "left", bold: bool = False) -> None:
        """Write a label on the plot, at the nearest free place under or over where it belongs."""
        weight: Weight = "bold" if bold else "normal"
        room = self.canvas.measure(text, 11, weight)
        left = {"left": x, "right": x - room, "center": x - room / 2}[anchor]
        left = min(max(left, self.left + 3), self.right - room - 3)
        lowest = max(y, self.top + 9)
        for shift in (0, 14, -14, 28, -28, 42, 56, 70):
            box = (left - 3, lowest + shift - 11, left + room + 3, lowest + shift + 3)
            if box[1] >= self.top - 4 and box[3] <= self.bottom and not any(_overlap(box, b) for b in self._boxes):
                break
        self._boxes.append(box)
        corners = np.array([(box[0], box[1]), (box[2], box[1]), (box[2], box[3]), (box[0], box[3])])
        self.canvas.polygon(corners, palette.BACKGROUND, alpha=0.78)
        self.canvas.text(left, box[3] - 3, text, size=11, color=color, weight=weight)

    def _time_axis(self) -> None:
        canvas, axis = self.canvas, self.scene.axis
        canvas.line([(self.left, self.bottom), (self.right, self.bottom)], palette.FOREGROUND, width=1)
        written: list[tuple[float, float]] = []
        # Not "idle": imports and sums take time as well.
        said = ", nothing allocated" if len(axis.folds) == 1 else " quiet"
        for start, to in axis.folds:
            first, last = float(self.px(float(axis.place(start)))), float(self.px(float(axis.place(to))))
            stripes = np.array([(first, self.top), (last, self.top), (last, self.bottom), (first, self.bottom)])
            canvas.polygon(stripes, palette.BACKGROUND, alpha=0.72)
            for x in (first, last):
                canvas.line([(x, self.top), (x, self.bottom + 4)], palette.MUTED, width=0.8, dashes=(2, 2))
            text = f"{format_duration((to - start) / 1e6)}{said}"
            room = canvas.measure(text, 11)
            middle = min(max((first + last) / 2, self.left + room / 2), self.right - room / 2)
            if all(middle + room / 2 < a - 4 or middle - room / 2 > b + 4 for a, b in written):
                canvas.text(middle, self.bottom + 29, text, size=11, color=palette.MUTED, anchor="center")
                written.append((middle - room / 2, middle + room / 2))
        taken: list[tuple[float, float]] = []
        start, end = self.device.start_us, self.device.end_us
        for time_us, label in time_ticks(axis, start, end) if self.device.is_timed else order_ticks(start, end):
            x = float(self.px(float(axis.place(time_us))))
            room = canvas.measure(label, 11)
            left = min(max(x - room / 2, self.left - 4), self.right - room)
            if any(left < b + 6 and left + room > a - 6 for a, b in taken):
                continue
            taken.append((left, left + room))
            canvas.line([(x, self.bottom), (x, self.bottom + 4)], palette.FOREGROUND, width=1)
            canvas.text(left, self.bottom + 16, label, size=11, color=palette.MUTED)

    def _marks(self) -> None:
        drawn: list[float] = []
        styles = {"oom": ("OOM", palette.DANGER), "exception": ("error", palette.DANGER), "retry": ("retry", "#8a5a00")}
        for marker in self.device.markers:
            if marker.kind not in styles:
                continue
            name, color = styles[marker.kind]
            x = float(self.px(float(self.scene.axis.place(marker.time_us))))
            self.canvas.line([(x, self.top), (x, self.bottom)], color, width=1.2)
            if all(abs(x - other) > 40 for other in drawn):
                anchor = "right" if x > self.right - 50 else "left"
                self._note(x + (-4 if anchor == "right" else 4), self.top + 10, name, color, anchor=anchor, bold=True)
                drawn.append(x)

    def _peak(self) -> None:
        peak = self.device.headline.allocated_peak
        if self.scene.peak_x is None or not peak:
            return
        x, y = float(self.px(self.scene.peak_x)), float(self.py(peak))
        self.canvas.polygon(np.array([(x, y - 1), (x - 4.5, y - 9), (x + 4.5, y - 9)]), palette.FOREGROUND)
        self._boxes.append((x - 5, y - 10, x + 5, y))
        self._note(x, y - 13, f"peak {format_bytes(peak)}", palette.FOREGROUND, anchor="center", bold=True)

    def _legend(self) -> None:
        canvas = self.canvas
        left, y = self.right + 22, self.top + 2
        canvas.text(left, y + 4, self._legend_title(), size=11, color=palette.MUTED)
        y += 22
        peak = self.device.headline.allocated_peak or 0
        rounding = sum(row.bytes for row in self.device.peak if self.device.groups[row.group].kind == "rounding")
        bands = sorted(self.scene.bands, key=lambda band: -(band.at_peak or 0))
        for band in bands:
            y = self._legend_row(band, left, y, peak)
        if rounding > 0.005 * peak:
            text = f"{format_bytes(rounding)}  {format_share(rounding, peak)}  rounding, unsplit remainders"
            canvas.text(left + 18, y + 4, text, size=11, color=palette.MUTED)

    def _legend_title(self) -> str:
        title = table_title(self.device)
        return f"{self.device.key}, {title}" if self.device.name is None else f"{self.device.key} {title}"

    def _legend_row(self, band: Band, left: float, y: float, peak: int) -> float:
        canvas = self.canvas
        canvas.rectangle(left, y - 6, 11, 11, band.color)
        held = band.at_peak or 0
        share = format_share(held, peak)
        canvas.text(
            left + 76, y + 4, format_bytes(held), size=11, color=palette.FOREGROUND, weight="bold", anchor="right"
        )
        canvas.text(left + 113, y + 4, share, size=11, color=palette.MUTED, anchor="right")
        room = _LEGEND - 121
        detail = drawable(" ".join(band.detail.split())) if band.detail else None
        label = canvas.clip(_readable(band.label), room)
        canvas.text(left + 121, y + 4, label, size=11, color=palette.FOREGROUND)
        if not held and len(band.value):
            detail = f"up to {format_bytes(int(band.value.max()))}"
        if not detail:
            return y + 19
        canvas.text(left + 121, y + 17, _as_code(canvas.clip(detail, room, 11)), size=11, color=palette.MUTED)
        return y + _ROW


def _as_code(text: str) -> str:
    """Let code run from left to right, as in an editor, also where it begins with a name that does not."""
    return f"{_LEFT_TO_RIGHT}{text}" if has_rtl(text) else text


def _rows_height(scene: Scene) -> float:
    return 26 + sum(_ROW if band.detail or not band.at_peak else 19 for band in scene.bands) + 16


def _caption(analysis: Analysis, scenes: list[Scene]) -> list[tuple[str, str]]:
    lines = []
    folded = [scene.axis for scene in scenes if scene.axis.folds]
    if folded:
        axis = max(folded, key=lambda axis: axis.folded_us)
        count = len(axis.folds)
        places = "a stretch" if count == 1 else f"{count} stretches"
        text = f"Time axis: {places} without allocations ({format_duration(axis.folded_us / 1e6)}) folded."
        lines.append((text, palette.MUTED))
    if any(
        np.any(scene.highest - scene.total > 0.02 * max(int(scene.highest.max()), 1))
        for scene in scenes
        if len(scene.x)
    ):
        lines.append(("Pale tips: memory held too briefly for a column of this picture.", palette.MUTED))
    warnings = [note for note in analysis.notes if note.level == "warning"]
    lines += [(f"! {note.text}", palette.DANGER) for note in warnings[:3]]
    hidden = len(analysis.devices) - _MOST_DEVICES
    if hidden > 0:
        lines.append((f"{hidden} more {'device' if hidden == 1 else 'devices'} in the report.", palette.MUTED))
    return lines


def _device_title(analysis: Analysis, device: DeviceAnalysis) -> str:
    text = " · ".join(numbers(analysis, device))
    if device.name is None and len(analysis.devices) == 1:
        return text
    name = device.key if device.name is None else f"{device.key} {_readable(device.name)}"
    return f"{name}:  {text}"


def report_png(analysis: Analysis) -> bytes:
    """Draw the report.

    Parameters
    ----------
    analysis
        Something drawable.

    Returns
    -------
    bytes
        PNG, twice `WIDTH` pixels wide, meant to be shown `WIDTH` CSS pixels wide.
    """
    devices = analysis.devices[:_MOST_DEVICES]
    scenes = [device_scene(device, _PLOT, by_cell=len(analysis.cells) > 1) for device in devices]
    caption = _caption(analysis, scenes)
    sentence = _readable(analysis.sentence)
    # How many lines the sentence takes is known only with a canvas; three always fit.
    ruler = Canvas(1, 1, palette.BACKGROUND, [_readable(text) for text in _all_texts(analysis)])
    lines = ruler.wrap(sentence, WIDTH - 2 * _MARGIN, 3, 13, "bold")
    head = 20 + 18 * len(lines)
    titles = [ruler.wrap(_device_title(analysis, device), WIDTH - 2 * _MARGIN, 2, 11) for device in devices]
    heights = [
        max(_PANEL, _rows_height(scene)) + _AXIS + 19 + 15 * len(title)
        for scene, title in zip(scenes, titles, strict=True)
    ]
    height = int(head + sum(heights) + 16 * len(caption) + 6)
    canvas = ruler.resized(WIDTH, height, palette.BACKGROUND)
    for number, line in enumerate(lines):
        canvas.text(_MARGIN, 22 + 18 * number, line, size=13, color=palette.FOREGROUND, weight="bold")
    top = float(head)
    for device, scene, tall, title in zip(devices, scenes, heights, titles, strict=True):
        for number, line in enumerate(title):
            canvas.text(_MARGIN, top + 8 + 15 * number, line, size=11, color=palette.MUTED)
        _Panel(canvas, device, scene, top + 11 + 15 * len(title)).draw()
        top += tall
    for number, (text, color) in enumerate(caption):
        shown = canvas.clip(_readable(text), WIDTH - 2 * _MARGIN, 11)
        canvas.text(_MARGIN, top + 6 + 16 * number, shown, size=11, color=color)
    return canvas.png()
