"""The report object: plain, immutable, and shown without imports that it does not need."""

from __future__ import annotations

import base64
import dataclasses
import pickle
import subprocess
import sys

import make_documents  # type: ignore[import-not-found]
import pytest

from gpumem_magic.analysis.model import CellSpan
from gpumem_magic.recording.model import Note
from gpumem_magic.report import Report, build
from gpumem_magic.report import png as png_module
from gpumem_magic.report.container import decode

EMPTY = make_documents.analysis((), text="Nothing was allocated or freed on a GPU in this cell.")


def test_the_bundle_reads_without_a_kernel():
    report = Report(make_documents.complete())
    data, metadata = report._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png", "text/html"}
    assert data["text/plain"].startswith("gpumem: Out of memory at line 5")
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert metadata == {"image/png": {"width": 900}}
    # Untrusted JupyterLab strips these.
    for stripped in ("<style", "<script", "<svg", "onclick", "javascript:"):
        assert stripped not in data["text/html"]
    kept, _ = report._repr_mimebundle_(include={"text/plain"})
    assert set(kept) == {"text/plain"}


def test_nothing_to_draw_is_text_only():
    report = Report(EMPTY)
    assert report._repr_mimebundle_() == ({"text/plain": f"gpumem: {EMPTY.sentence}"}, {})
    assert report.to_png() is None
    assert not report.drawable


def test_a_broken_matplotlib_costs_the_picture_only(monkeypatch, tmp_path):
    def fail(_analysis):
        raise RuntimeError("cannot load font")

    monkeypatch.setattr(png_module, "report_png", fail)
    report = Report(make_documents.gap())
    data, _ = report.static_bundle()
    assert set(data) == {"text/plain"}
    assert data["text/plain"].endswith("! no picture: drawing it failed (RuntimeError: cannot load font)")
    assert report.save(tmp_path).is_file()


def test_it_is_immutable_and_can_be_kept():
    report = Report(make_documents.gap())
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.top = 3  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(report))  # noqa: S301 - its own
    assert again.to_text() == report.to_text()
    assert str(report) == report.to_text()
    assert repr(report).startswith("<gpumem report of In [7]: Peak 4.00 MiB")
    assert [device.key for device in report.devices] == ["cuda:0"]


def test_detail_covers_the_stretch():
    report = Report(make_documents.busy(20))
    data = report.detail(0, make_documents.START, make_documents.START + 2000)
    assert data[:2] == b"\x1f\x8b"


def test_a_report_to_share_holds_no_source_and_no_folders():
    full = Report(dataclasses.replace(make_documents.complete(), error="ValueError: /secret"))
    shared = full.without_source()
    assert shared.sentence.startswith("Out of memory at line 5 on cuda:0: it asked for 90.0 GiB")
    texts = [shared.to_html().decode("utf-8"), shared.to_text(), repr(decode(shared.to_document()))]
    for secret in ("損失の", "criterion", "модель", "ipykernel_7", "Users", "usr/lib/python3.12", "secret", "шаг"):
        assert any(secret in text for text in (full.to_html().decode("utf-8"), repr(decode(full.to_document()))))
        assert not any(secret in text for text in texts)
    assert "обучение.py" in texts[2]
    assert shared.devices[0].headline == full.devices[0].headline
    assert "no source" not in full.to_text()


def test_a_report_to_share_names_no_variable_and_reads_as_a_sentence():
    notes = (
        Note("info", "`ckpt` duplicates 100% of `net`'s parameters: if it is a checkpoint, del ckpt"),
        Note("info", "memory was reserved far above the peak; `%gpumem_whatif` says whether a setting would help"),
        Note("warning", "the search stopped at `net`"),
    )
    full = make_documents.gap()
    label = full.devices[0].groups[1].label
    analysis = dataclasses.replace(
        full, sentence=f"Peak 1.00 GiB at `y = net(x)`, held at {label} `z = net(y)`.", notes=notes
    )
    shared = Report(analysis).without_source()
    assert shared.sentence == f"Peak 1.00 GiB at `…`, held at {label}."
    assert [note.text for note in shared.notes] == [notes[1].text, "the search stopped at `…`"]


def test_a_report_to_share_of_several_cells_has_no_labels():
    full = make_documents.gap()
    span = CellSpan("secret (In [3])", 3, None, full.started_us, full.ended_us, "Peak 1.00 GiB.")
    groups = (full.devices[0].groups[0]._replace(cell=span.title), *full.devices[0].groups[1:])
    device = dataclasses.replace(full.devices[0], groups=groups)
    analysis = dataclasses.replace(
        full, sentence="Peak 1.00 GiB, reached by secret (In [3]), line 5.", cells=(span,), devices=(device,)
    )
    shared = Report(analysis).without_source()
    assert shared.sentence == "Peak 1.00 GiB, reached by In [3], line 5."
    assert shared.devices[0].groups[0].cell == "In [3]"
    assert "secret" not in repr(decode(shared.to_document()))


def test_a_one_line_report_imports_no_matplotlib_anywidget_or_torch():
    code = (
        "import sys\n"
        "from gpumem_magic.recording.model import *\n"
        "from gpumem_magic.report import build\n"
        "from gpumem_magic import widget\n"
        "r = build(Recording(Cell(1, None, 'x = 1'), SourceKind.CUDA, Outcome.OK, 1, 2))\n"
        "print(r.to_text(), r._repr_mimebundle_())\n"
        "bad = {'matplotlib', 'PIL', 'anywidget', 'torch', 'IPython', 'ipywidgets'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Nothing was allocated or freed on a GPU in this cell." in result.stdout


def test_a_picture_leaves_pyplot_and_figures_alone():
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "import make_documents\n"
        "from gpumem_magic.report import Report\n"
        "assert Report(make_documents.gap()).to_png().startswith(b'\\x89PNG')\n"
        "assert not {'matplotlib.pyplot', 'matplotlib.figure'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_build_takes_a_recording_or_a_trace():
    from gpumem_magic.trace.model import Trace

    assert build(Trace(())).sentence == "Nothing to show: the snapshot is empty."
    assert build(Trace(()), title="x.pickle", top=2).title == "x.pickle"
