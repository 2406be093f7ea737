"""The standalone report and where it may be written."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import make_documents  # type: ignore[import-not-found]
import pytest

from gpumem_magic._errors import ExportError, SnapshotError
from gpumem_magic.analysis.diff import compare, side_of
from gpumem_magic.recording.model import Note
from gpumem_magic.report import Report
from gpumem_magic.report import html as html_module
from gpumem_magic.report.comparison import Comparison
from gpumem_magic.report.container import decode
from gpumem_magic.report.files import default_name, shown_path
from gpumem_magic.report.reading import is_report, read_report

EVIL = "</script><script>alert(1)</script><!-- \"'>&"


class Outline(HTMLParser):
    """Collects scripts, elements and attributes."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.scripts, self.attributes, self.words = [], [], [], []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append([dict(attrs), ""])

    def handle_endtag(self, tag):  # noqa: ARG002 - html.parser's signature
        self._in_script = False

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1][1] += data
        else:
            self.words.append(data)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A built view, as the package build leaves it."""
    path = tmp_path / "report.js"
    path.write_text("const a = '</script>'; const b = '<!--';", "utf-8")
    monkeypatch.setattr(html_module, "_SCRIPT", path)
    return path


def evil():
    source = make_documents.complete()
    device = source.devices[0]
    groups = tuple(g._replace(source=EVIL, label=EVIL, file=EVIL) if g.kind == "line" else g for g in device.groups)
    marked = replace(device, groups=groups, name=EVIL)
    return replace(source, title=EVIL, sentence=EVIL, devices=(marked,), notes=(Note("warning", EVIL),), error=EVIL)


@pytest.mark.usefixtures("script")
def test_it_is_one_file_that_asks_for_nothing():
    text = Report(make_documents.complete()).to_html().decode("utf-8")
    assert text.startswith("<!DOCTYPE html>\n<!-- gpumem-magic report -->\n")
    outline = Outline(text)
    loading = [
        (t, n, v) for t, n, v in outline.attributes if n in {"src", "href", "srcset", "action", "data", "poster"}
    ]
    assert [v[:22] for _, _, v in loading] == ["data:image/png;base64,"]
    policy = next(v for t, n, v in outline.attributes if t == "meta" and n == "content" and "default-src" in v)
    assert "default-src 'none'" in policy
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    code = [body for attributes, body in outline.scripts if "type" not in attributes]
    assert allowed == [base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in code]
    assert "unsafe-inline" not in policy.split("style-src")[0]


@pytest.mark.usefixtures("script")
def test_the_document_inside_is_the_report():
    outline = Outline(Report(make_documents.complete()).to_html().decode("utf-8"))
    (data,) = (body for attributes, body in outline.scripts if attributes.get("id") == "gpumem-document")
    header, _ = decode(base64.b64decode(data))
    assert header["title"] == "In [7]"
    assert [device["key"] for device in header["devices"]] == ["cuda:0", "cuda:1"]


@pytest.mark.usefixtures("script")
def test_the_views_own_script_cannot_end_its_element():
    outline = Outline(Report(make_documents.gap()).to_html().decode("utf-8"))
    assert outline.scripts[-1][1].rstrip() == "const a = '<\\/script>'; const b = '<\\!--';"


@pytest.mark.usefixtures("script")
def test_nothing_from_the_cell_becomes_markup():
    outline = Outline(Report(evil()).to_html().decode("utf-8"))
    assert len(outline.scripts) == 3
    assert "alert(1)" not in "".join(body for _, body in outline.scripts)
    assert EVIL in "".join(outline.words)
    bundle, _ = Report(evil()).static_bundle()
    inner = Outline(bundle["text/html"])
    assert inner.scripts == []
    assert EVIL in "".join(inner.words)


@pytest.mark.usefixtures("script")
def test_it_reads_without_scripts():
    words = " ".join(Outline(Report(make_documents.complete()).to_html().decode("utf-8")).words)
    for text in ("Out of memory at line 5", "損失の逆伝播(loss)", "peak 4.43 GiB", "at the end", "a warning with <i>"):
        assert text in words
    assert "Contains 4 lines of source and 3 file paths." in words
    assert "C:\\Users\\Ада\\обучение.py" in words


def test_an_unbuilt_view_leaves_a_static_report_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(html_module, "_SCRIPT", tmp_path / "missing.js")
    outline = Outline(Report(make_documents.gap()).to_html().decode("utf-8"))
    assert len(outline.scripts) == 1
    assert any("the interactive view was not built" in word for word in outline.words)


def test_size_is_within_what_is_allowed():
    source = make_documents.busy(700)
    events = sum(device.events for device in source.devices)
    assert len(Report(source).to_html()) <= 12 * events + 400_000


def test_save_replaces_ours_and_never_a_foreign_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = Report(make_documents.gap())
    first = report.save()
    assert first == tmp_path / "gpumem-In-7.html"
    before = first.stat().st_ino
    assert report.save(first) == first
    assert first.stat().st_ino != before
    foreign = tmp_path / "page.html"
    foreign.write_text("<!DOCTYPE html>\n<p>mine", "utf-8")
    with pytest.raises(ExportError, match="is not a gpumem report: choose another name"):
        report.save("page.html")
    assert foreign.read_text("utf-8") == "<!DOCTYPE html>\n<p>mine"
    (tmp_path / "empty.html").touch()
    assert is_report(report.save("empty.html"))
    assert not list(tmp_path.glob(".gpumem-*"))


def test_a_name_that_ends_in_png_gets_the_picture(tmp_path):
    report = Report(make_documents.gap())
    path = report.save(tmp_path / "step.PNG")
    assert path.read_bytes() == report.to_png()
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ExportError, match="exists: choose another name"):
        report.save(path)
    nothing = replace(report.analysis, drawable=False)
    with pytest.raises(ExportError, match=r"In \[7\]: no picture, as there is nothing to draw"):
        Report(nothing).save(tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_permissions_are_the_users_own(tmp_path):
    if sys.platform == "win32":
        pytest.skip("POSIX modes")
    mask = os.umask(0o027)
    try:
        path = Report(make_documents.gap()).save(tmp_path)
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(tmp_path):
    real = Report(make_documents.gap()).save(tmp_path / "real.html")
    link = tmp_path / "link.html"
    link.symlink_to(real)
    Report(make_documents.complete()).save(link)
    assert link.is_symlink()
    assert b"Out of memory" in real.read_bytes()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no/such/x.html", "does not exist; create it first"),
        ("a\0b.html", "choose another"),
        ("x" * 300, "choose another"),
    ],
)
def test_unwritable_places_are_one_line(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExportError, match=message) as caught:
        Report(make_documents.gap()).save(path)
    assert "\n" not in str(caught.value)


def test_a_special_file_is_refused():
    with pytest.raises(ExportError, match="not a regular file"):
        Report(make_documents.gap()).save("/dev/null")


@pytest.mark.parametrize("name", ["x.txt", "x.json", "x.html.gz", "x"])
def test_a_name_that_promises_something_else_is_refused(tmp_path, name):
    report = Report(make_documents.gap())
    message = f"nothing is written as {re.escape(name)}: name a file that ends in .html"
    with pytest.raises(ExportError, match=rf"{message}, .png, .pickle, .perfetto.json or .speedscope.json$"):
        report.save(tmp_path / name)
    with pytest.raises(ExportError, match=f"{message}$"):
        Comparison(report, report).save(tmp_path / name)
    assert not list(tmp_path.iterdir())
    assert report.save(tmp_path / "X.HTM").read_bytes().startswith(html_module.MARKER)


@pytest.mark.parametrize(
    ("title", "name"),
    [("In [7]", "gpumem-In-7.html"), ("мой опыт/1", "gpumem-мой-опыт-1.html"), ("../..", "gpumem-report.html")],
)
def test_default_names(title, name):
    assert default_name(replace(make_documents.gap(), title=title)) == name


def test_an_exported_report_can_be_compared(tmp_path):
    path = Report(make_documents.complete()).save(tmp_path)
    again = read_report(path).side
    original = side_of(make_documents.complete())
    diff = compare(original, again)
    assert again.title == "In [7]"
    assert len(diff.rows) > 5
    assert all(row.growth == row.end_growth == 0 for row in diff.rows)


def test_a_report_without_data_is_refused(tmp_path):
    path = tmp_path / "x.html"
    path.write_bytes(html_module.MARKER + b"<p>")
    with pytest.raises(SnapshotError, match="holds no data"):
        read_report(path)


def test_a_path_is_told_from_the_current_folder_or_without_detours(tmp_path, monkeypatch):
    here = tmp_path / "here"
    (here / "below").mkdir(parents=True)
    monkeypatch.chdir(here)
    assert shown_path(Path("report.html")) == "report.html"
    assert shown_path(here / "below" / ".." / "below" / "report.html") == str(Path("below") / "report.html")
    assert shown_path(here / ".." / "report.html") == str(tmp_path / "report.html")
