"""A second build in the same tree ships what the sources say now."""

from __future__ import annotations

import zipfile

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MARK = "gpumem-rebuilt-{}"


def shipped_widget(wheel) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read("gpumem_magic/static/widget.js").decode()


def test_unchanged_sources_are_not_built_again(built, tmp_path):
    widget = built.tree / "gpumem_magic/static/widget.js"
    before = widget.stat().st_mtime_ns
    wheel = built.build_wheel(tmp_path / "same")
    assert widget.stat().st_mtime_ns == before
    assert wheel.read_bytes() == built.wheel.read_bytes()


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_a_changed_source_is_built_again(built, tmp_path, kind):
    source = built.tree / "labextension/src/widget.ts"
    mark = MARK.format(kind)
    original = source.read_text(encoding="utf-8")
    source.write_text(f"{original}\n(globalThis as Record<string, unknown>).gpumemMark = '{mark}';\n", encoding="utf-8")
    try:
        wheel = built.build_wheel(tmp_path / "changed", kind)
        assert mark in built.widget()
        if kind == "wheel":
            assert mark in shipped_widget(wheel)
    finally:
        source.write_text(original, encoding="utf-8")


def test_a_bundle_that_somebody_built_by_hand_is_not_shipped(built, tmp_path):
    built.build_wheel(tmp_path / "fresh")
    widget = built.tree / "gpumem_magic/static/widget.js"
    widget.write_text(widget.read_text(encoding="utf-8") + "// by hand\n", encoding="utf-8")
    wheel = built.build_wheel(tmp_path / "again")
    assert "// by hand" not in shipped_widget(wheel)
