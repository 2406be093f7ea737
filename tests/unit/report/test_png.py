"""The picture: drawn with matplotlib's renderer alone, in the colours of the view, in any script."""

from __future__ import annotations

import io
from dataclasses import replace

import make_documents  # type: ignore[import-not-found]
import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image
from story import START, Story  # type: ignore[import-not-found]

from gpumem_magic.analysis.devices import analyse_device
from gpumem_magic.report import fonts, surface
from gpumem_magic.report.canvas import Canvas
from gpumem_magic.report.png import _as_code, _readable, report_png
from gpumem_magic.report.scene import device_scene
from gpumem_magic.report.ticks import byte_ticks, time_ticks
from gpumem_magic.report.wording import WIDTH

MIB = 1 << 20


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def near(image, color, tolerance=12):
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
    return (np.abs(image - rgb) <= tolerance).all(axis=2)


@pytest.mark.parametrize("name", ["complete", "busy", "counters", "gap"])
def test_it_draws_and_warns_of_nothing(name, caplog, capfd):
    source = make_documents.busy(30) if name == "busy" else getattr(make_documents, name)()
    before = dict(mpl.rcParams)
    image = Image.open(io.BytesIO(report_png(source)))
    assert image.format == "PNG"
    assert image.width == 2 * WIDTH
    assert 300 < image.height < 2000
    assert dict(mpl.rcParams) == before
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_a_first_request_that_failed_is_a_picture_too():
    story = Story()
    story.at(10).oom(300 * MIB, MIB)
    device = analyse_device(story.device(), story.history(), make_documents.context(story, end=100))
    image = pixels(report_png(make_documents.analysis([device])))
    assert near(image, "#b3121d").sum() > 500


def test_bands_have_the_views_colours():
    image = pixels(report_png(make_documents.complete()))
    # line 2, line 3, what was there before: the slots of labextension/src/view/draw/palette.ts.
    for color, least in (("#3698f9", 20_000), ("#e69228", 20_000), ("#c6cad0", 20_000)):
        assert near(image, color).sum() > least


def test_a_spike_thinner_than_a_pixel_is_drawn_at_full_height():
    story = Story()
    story.old(MIB)
    for step in range(20_000):
        size = 100 * MIB if step == 12_345 else 1024
        story.at(step * 10).free(story.alloc(size))
    device = analyse_device(story.device(), story.history(), make_documents.context(story, end=200_000))
    scene = device_scene(device, 400)
    assert int(scene.highest.max()) == int(scene.total.max()) == device.headline.allocated_peak
    assert np.all(scene.highest >= scene.total)
    assert len(scene.x) < 4 * 400
    assert device.headline.peak_us is not None
    top = int(np.argmax(scene.total))
    assert abs(float(scene.x[top]) - float(scene.axis.place(device.headline.peak_us))) <= 1 / 400


def test_bands_sum_to_the_total_everywhere():
    for source in (make_documents.complete(), make_documents.busy(100)):
        for device in source.devices:
            scene = device_scene(device, 300)
            assert np.array_equal(sum(band.value for band in scene.bands), scene.total)


def test_idle_stretches_are_folded_in_the_picture_too():
    scene = device_scene(make_documents.complete().devices[0], 300)
    assert len(scene.axis.folds) == 3
    labels = [label for _, label in time_ticks(scene.axis, START, START + 1_000_000)]
    assert "0.52 s" in labels
    assert "0.10 s" not in labels


def test_over_a_notebook_each_cell_is_one_band_under_its_name():
    device = make_documents.busy(40).devices[0]
    lines = [number for number, group in enumerate(device.groups) if group.kind == "line"]
    assert len(lines) == 2
    groups = list(device.groups)
    for nth, number in enumerate(lines):
        groups[number] = groups[number]._replace(cell=f"In [{nth + 1}]", label="line 2")
    by_line = device_scene(replace(device, groups=tuple(groups)), 300)
    assert {"In [1] line 2", "In [2] line 2"} <= {band.label for band in by_line.bands}
    for number in lines:
        groups[number] = groups[number]._replace(cell="In [1]", label=f"line {number}")
    scene = device_scene(replace(device, groups=tuple(groups)), 300, by_cell=True)
    (cell,) = [band for band in scene.bands if band.label == "In [1]"]
    assert cell.at_peak == sum(row.bytes for row in device.peak if row.group in lines)
    assert np.array_equal(sum(band.value for band in scene.bands), scene.total)


def test_many_owners_share_one_band_and_large_ones_keep_theirs():
    story = Story()
    lines = []
    for line in range(1, 30):
        lines.append((len(story.events), line))
        story.alloc(line * MIB)
    device = analyse_device(
        story.device(),
        story.history(),
        make_documents.context(story, end=10, placement=make_documents.places(story, lines)),
    )
    scene = device_scene(device, 300)
    assert len(scene.bands) == 10
    assert scene.bands[-1].label == "20 others"
    assert scene.bands[-1].at_peak == sum(range(1, 21)) * MIB


@pytest.mark.parametrize(
    ("highest", "labels"),
    [
        (7.4 * 2**30, ["0", "2 GiB", "4 GiB", "6 GiB"]),
        (900.0, ["0", "200 B", "400 B", "600 B", "800 B"]),
        (1.0, ["0", "1 B"]),
        (1536 * 2**20, ["0", "0.5 GiB", "1 GiB", "1.5 GiB"]),
    ],
)
def test_byte_ticks(highest, labels):
    assert [label for _, label in byte_ticks(highest)] == labels


def test_scripts_that_a_font_holds_are_drawn_and_the_others_leave_the_line_number(monkeypatch):
    assert fonts.drawable("модель λ") == "модель λ"
    assert fonts.drawable("tab\tand\u2068isolate") == "tab and isolate"
    monkeypatch.setattr(fonts, "can_shape", lambda: False)
    assert fonts.drawable("loss(هدف)") is None
    assert (
        _readable("Peak 1.00 GiB at line 4 `loss(هدف)`, nothing stayed.") == "Peak 1.00 GiB at line 4, nothing stayed."
    )
    assert fonts.drawable("e\u0301") == "e\u0301"


@pytest.mark.parametrize("text", ["957 MiB", "workloads.py:40 forward", "Peak 1.92 GiB at line 4, AVAV To."])
@pytest.mark.parametrize(("size", "weight"), [(11, "normal"), (13, "bold")])
def test_widths_added_up_are_those_of_the_layout(text, size, weight):
    canvas = Canvas(10, 10, "#ffffff")
    # One letter beyond ASCII, and the whole text is laid out.
    laid_out = canvas.measure(text + "é", size, weight) - canvas.measure("é", size, weight)
    assert canvas.measure(text, size, weight) == pytest.approx(laid_out, rel=0.05)


@pytest.mark.skipif(not fonts.can_shape(), reason="this matplotlib draws no such script")
def test_code_runs_from_left_to_right_also_where_its_first_name_does_not():
    assert _as_code("loss = 1") == "loss = 1"
    code = "هدف" + " " * 12 + "l"

    def ink_of_halves(text: str) -> tuple[int, int]:
        canvas = Canvas(200, 40, "#ffffff", [code])
        canvas.text(10, 20, text, size=16)
        ink = (np.asarray(Image.open(io.BytesIO(canvas.png())).convert("L")) < 128).sum(axis=0)
        drawn = np.trim_zeros(ink)
        return int(drawn[: len(drawn) // 2].sum()), int(drawn[len(drawn) // 2 :].sum())

    name_first, name_last = ink_of_halves(_as_code(code)), ink_of_halves(code)
    # Three letters have more ink than an l. The mark itself has none.
    assert name_first[0] > name_first[1]
    assert name_last == pytest.approx(name_first[::-1], rel=0.05)


def test_what_no_font_holds_becomes_a_box_or_nothing():
    private = "\U000f1234"
    assert fonts.drawable(f"x = 1  # done {private}") == "x = 1  # done □"
    assert fonts.drawable(private * 3) is None


def test_shaping_is_left_to_matplotlib_where_it_can():
    if not fonts.can_shape():
        pytest.skip("matplotlib before 3.11 does not shape text")
    assert fonts.drawable("loss(هدف)") == "loss(هدف)"


def test_where_matplotlib_wants_objects_of_its_own_it_gets_them(monkeypatch):
    expected = pixels(report_png(make_documents.complete()))

    class Refused(surface._Pen):
        # Not what is missing, which matplotlib 3.7 takes for unset, but what no version can read.
        _rgb = property(lambda _self: 0, lambda _self, _color: None)

    monkeypatch.setattr(surface, "_Pen", Refused)
    surface._parts.cache_clear()
    try:
        assert surface._parts()[1] is not Refused
        image = pixels(report_png(make_documents.complete()))
    finally:
        surface._parts.cache_clear()
    assert image.shape == expected.shape
    assert np.abs(image - expected).mean() < 0.5


def test_letters_side_by_side_look_as_when_laid_out():
    text = "Peak 2.79 GiB at line 4 `out = model(x)`, Größe, Привет"
    pictures = []
    for plain in (True, False):
        canvas = Canvas(600, 40, "#ffffff")
        if plain:
            canvas.text(10, 25, text, size=13)
        else:
            writer = canvas._surface.writer
            context = writer.new_gc()
            context.set_foreground("#000000")
            writer.draw_text(context, 20, 50, text, canvas._font(13, "normal"), 0)
        pictures.append(pixels(canvas.png()).min(axis=2))
    ink = [255 - picture for picture in pictures]
    assert ink[0].sum() == pytest.approx(ink[1].sum(), rel=0.1)
    for axis in (0, 1):
        # Ink lies in the same rows, and to within a pixel or two in the same columns.
        centre = [(one.sum(axis=axis) * np.arange(one.shape[1 - axis])).sum() / one.sum() for one in ink]
        assert centre[0] == pytest.approx(centre[1], abs=3 if axis == 0 else 0.6)
