"""Which cell set what, what torch took, and what can still be changed."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from gpumem_magic.allocator.conf import TorchVersion, check
from gpumem_magic.allocator.conf.in_session import Moment, SessionFacts, describe_session, run_time_text
from gpumem_magic.magics.settings_watch import SettingsWatch
from gpumem_magic.recording.settings import settings_in_force

T211 = TorchVersion(2, 11)
NAME = "PYTORCH_CUDA_ALLOC_CONF"


def facts(value="", in_force: str | None = "", *, set_in=None, imported=Moment(1), used=Moment(3), version=T211):  # noqa: B008
    return SessionFacts(
        environ={NAME: value} if value else {},
        version=version,
        in_force=in_force,
        reason="torch does not tell",
        imported=imported,
        used=used,
        set_at={NAME: Moment(set_in)} if value else {},
    )


def test_before_torch_is_imported_the_environment_counts():
    (line,) = describe_session(facts("expandable_segments:True", set_in=2, imported=None, used=None))
    assert line.startswith("in force: not known: torch is not imported yet")
    assert line.endswith("will count, set in cell 2")


def test_after_the_import_only_the_backend_is_too_late():
    lines = describe_session(facts("backend:cudaMallocAsync", set_in=2, used=None))
    assert lines[0].startswith("in force: nothing yet: CUDA is not in use")
    assert lines[1] == "except backend:cudaMallocAsync: torch was imported in cell 1, and chose the backend then"
    assert len(describe_session(facts("backend:cudaMallocAsync", set_in=1, used=None))) == 1
    assert len(describe_session(facts("expandable_segments:True", set_in=2, used=None))) == 1


def test_in_force_as_the_environment_says():
    lines = describe_session(facts("max_split_size_mb:64, expandable_segments:False", "max_split_size_mb:64", set_in=2))
    assert lines[0].startswith("in force: max_split_size_mb:64")
    # Another spelling is not another setting, but a named default is.
    same = describe_session(facts(" max_split_size_mb : 64", "max_split_size_mb:64", set_in=2))
    assert same[0] == f"in force: max_split_size_mb:64, as {NAME} says, set in cell 2"
    assert same[1].startswith("torch read it when CUDA was first used, in cell 3")
    assert describe_session(facts())[0] == "in force: torch's defaults, and no variable asks for another"


def test_set_too_late_names_both_cells_and_the_way_out():
    text = "\n".join(describe_session(facts("expandable_segments:True", "max_split_size_mb:64", set_in=5)))
    assert "in force: max_split_size_mb:64\n" in text
    assert f"too late: {NAME} was set in cell 5, and torch had read it when CUDA was first used, in cell 3" in text
    assert (
        f'begin with `import os; os.environ["{NAME}"] = "expandable_segments:True"`, before torch is imported' in text
    )
    # The pair must not meet, so the call does not repeat the split limit.
    assert 'torch._C._accelerator_setAllocatorSettings("expandable_segments:True")' in text
    assert "segments that exist stay as they are" in text


def test_set_in_the_cell_that_used_cuda():
    text = "\n".join(describe_session(facts("expandable_segments:True", "", set_in=3)))
    assert "was set in cell 3, after that cell had used CUDA for the first time" in text


def test_what_a_call_leaves_out_is_reset_so_it_is_repeated():
    wanted = check("garbage_collection_threshold:0.8", T211)
    text, kept = run_time_text(wanted, check("max_split_size_mb:64,roundup_power2_divisions:4", T211))
    assert text == "max_split_size_mb:64,roundup_power2_divisions:4,garbage_collection_threshold:0.8"
    assert kept == ["max_split_size_mb", "roundup_power2_divisions"]
    # These two keep their value by themselves.
    assert run_time_text(wanted, check("expandable_segments:True,large_segment_size_mb:40", T211))[1] == []
    # A bracketed list is written as it was read.
    lists = run_time_text(wanted, check("roundup_power2_divisions:[256:1,>:4]", T211))[0]
    assert check(lists, T211).ok
    assert (
        check(lists, T211).settings["roundup_power2_divisions"]
        == check("roundup_power2_divisions:[256:1,>:4]", T211).settings["roundup_power2_divisions"]
    )


def test_a_split_limit_switches_growing_segments_off():
    text, _ = run_time_text(check("max_split_size_mb:64", T211), check("expandable_segments:True", T211))
    assert text == "max_split_size_mb:64,expandable_segments:False"


@pytest.mark.parametrize("name", ["backend:cudaMallocAsync", "per_process_memory_fraction:0.5"])
def test_what_only_a_restart_changes_is_said(name):
    lines = describe_session(facts(name, "", set_in=5))
    assert lines[-1].startswith(f"only a restart changes {name.split(':')[0]}")
    assert not any("setAllocatorSettings" in line for line in lines)


def test_old_releases_have_another_call():
    text = "\n".join(describe_session(facts("expandable_segments:True", "", set_in=5, version=TorchVersion(2, 8))))
    assert 'torch.cuda.memory._set_allocator_settings("expandable_segments:True")' in text


def fake_torch(*, used):
    # A torch whose CUDA counts as initialised cannot run here; only these attributes are looked at.
    torch = ModuleType("torch")

    def memory_snapshot(mempool_id=None, *, include_traces=True): ...

    torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        is_initialized=lambda: used[0], memory=SimpleNamespace(memory_snapshot=memory_snapshot)
    )
    torch._C = SimpleNamespace(  # type: ignore[attr-defined]
        _cuda_memorySnapshot=lambda asked: {"allocator_settings": {NAME: "asked " + str(asked)}}
    )
    return torch


def test_the_watch_knows_the_cells(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delenv(NAME, raising=False)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    used = [False]
    watch = SettingsWatch()
    watch.after_cell(1)
    monkeypatch.setitem(sys.modules, "torch", fake_torch(used=used))
    watch.after_cell(2)
    assert settings_in_force().text is None
    used[0] = True
    watch.after_cell(3)
    monkeypatch.setenv(NAME, "expandable_segments:True")
    found = watch.facts(4, T211)
    assert (found.imported, found.used) == (Moment(2), Moment(3))
    assert found.set_at == {"PYTORCH_ALLOC_CONF": Moment(None), NAME: Moment(4)}
    # Without the trace: a recording may be under way.
    assert found.in_force == "asked (0, 0, False)"
    monkeypatch.delenv(NAME)
    watch.after_cell(5)
    assert watch.facts(6, T211).set_at[NAME] == Moment(5)


def test_what_was_there_at_the_beginning_came_before(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch(used=[True]))
    found = SettingsWatch().facts(1, T211)
    assert (found.imported, found.used) == (Moment(None), Moment(None))
    assert str(found.used) == "before %load_ext gpumem_magic"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RuntimeError("CUDA error: an illegal memory access was encountered\nmore"),
            "RuntimeError: CUDA error: an illegal",
        ),
        (
            AssertionError("Torch not compiled with CUDA enabled"),
            "AssertionError: Torch not compiled with CUDA enabled",
        ),
        (AssertionError(), "AssertionError"),
        (AttributeError("no attribute '_cuda_memorySnapshot'"), "AttributeError: no attribute"),
        (TypeError("incompatible function arguments"), "TypeError: incompatible function arguments"),
        (KeyError("allocator_settings"), "KeyError: 'allocator_settings'"),
    ],
)
def test_a_torch_that_will_not_tell_its_settings_is_a_stated_reason(monkeypatch, error, words):
    def snapshot(*_, include_traces=True):  # noqa: ARG001 - its signature is asked
        raise error

    torch = ModuleType("torch")
    memory = SimpleNamespace(memory_snapshot=snapshot)
    vars(torch).update(
        cuda=SimpleNamespace(is_initialized=lambda: True, memory=memory),
        _C=SimpleNamespace(_cuda_memorySnapshot=snapshot),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = settings_in_force()
    assert found.text is None
    assert found.reason.startswith(f"torch does not tell ({words}")
    assert "\n" not in found.reason
