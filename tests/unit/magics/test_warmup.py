"""Imports beside the user's cells: what fails there is nobody's traceback."""

from __future__ import annotations

import sys
import threading

import pytest

from gpumem_magic.magics import warmup


@pytest.mark.parametrize("error", ["AttributeError('versions')", "TypeError()", "ImportError('x')", "UserWarning('x')"])
def test_a_package_that_does_not_fit_is_left_to_the_report(tmp_path, monkeypatch, error):
    (tmp_path / "gpumem_test_broken.py").write_text(f"raise {error}\n", "utf-8")
    (tmp_path / "gpumem_test_fine.py").write_text("", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(warmup, "_OWN", ("gpumem_test_broken", "gpumem_test_fine"))
    warmup._import_own()
    assert "gpumem_test_fine" in sys.modules
    monkeypatch.delitem(sys.modules, "gpumem_test_fine")


def test_where_no_thread_can_start_nothing_is_warmed_up(monkeypatch):
    # As Python answers while it ends; a tick that raises would be a traceback in the terminal.
    def refuse(_thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert warmup._begin_own() is False
