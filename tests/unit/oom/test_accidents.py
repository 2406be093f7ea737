"""Memory that the notebook keeps by accident, and variables that it has no use for."""

from __future__ import annotations

import pytest
from by_hand.oom import FILE, GIB, Heap, cell, full_card, full_of_variables, held_by, kept_by, reading

from gpumem_magic.analysis.model import Group
from gpumem_magic.analysis.oom import Cause
from gpumem_magic.analysis.oom.accidents import find_accidents
from gpumem_magic.holders.model import HolderKind
from gpumem_magic.recording.model import DeviceReading, Failure


def test_a_retry_inside_the_handler_of_the_first_error_is_told_as_that():
    # The first attempt's tensors, of 60 GiB, live as long as its error is handled.
    path = "error that was being handled: OutOfMemoryError in step(), local `acts`"
    found = cell(full_card(), after=reading(full_card()), holders=kept_by(HolderKind.HANDLED_THEN, path)).oom
    assert found.cause is Cause.ACCIDENT
    told = "60.0 GiB was kept by accident, by the error that was being handled when this line ran (OutOfMemoryError in "
    assert told in found.sentence
    assert found.suggestions[0].startswith("try again after the `except` block, not inside it")


def test_memory_kept_by_accident():
    heap = full_card()
    found = cell(heap, after=reading(heap), holders=kept_by(HolderKind.OUTPUT, "Out[7]"))
    assert found.oom.cause is Cause.ACCIDENT
    assert "60.0 GiB was kept by accident, by the output history (Out[7])" in found.oom.sentence
    assert found.oom.suggestions[0] == "run `%gpumem_free --out` in a cell of its own, then this cell again"
    # A variable is meant, and what only the new error holds was in use.
    for kind in (HolderKind.VARIABLE, HolderKind.LAST_ERROR):
        assert cell(heap, after=reading(heap), holders=kept_by(kind, "x")).oom.cause is Cause.DEMAND


def test_what_the_error_before_held_is_seen_when_it_goes():
    heap = Heap()
    heap.segment(1 << 40, 60 * GIB, recorded=False)
    heap.before(1 << 40, 60 * GIB)
    heap.segment(2 << 40, 19 * GIB)
    heap.alloc(2 << 40, 19 * GIB, 3)
    heap.oom(2 * GIB, GIB // 2)
    heap.free(1 << 40)
    held = reading(heap)
    failure = Failure("", previous_error="ValueError")
    found = cell(heap, after=held, failure=failure)
    assert found.oom.cause is Cause.ACCIDENT
    assert "60.0 GiB was kept by accident, by the error before this one (ValueError)" in found.oom.sentence
    # Without an older error, something else freed it.
    assert cell(heap, after=held, failure=Failure("")).oom.cause is Cause.DEMAND


def test_variables_of_earlier_cells_that_nothing_uses():
    heap = full_of_variables()
    idle = {"model1": "last used in In [3]", "model2": "last used in In [5]"}
    found = cell(heap, after=reading(heap), holders=held_by(["model1.weight", "model2.weight", "data"], idle))
    assert found.oom.cause is Cause.ACCIDENT
    text = "40.0 GiB could be freed, held by old variables that this cell does not use: `model1` (last used in In [3])"
    assert text in found.oom.sentence
    # A later cell may need them: only what nobody can have meant is called an accident.
    assert not any("accident" in line for line in (found.oom.sentence, *found.oom.numbers))
    assert any(line.startswith("could be freed: 40.0 GiB by old variables") for line in found.oom.numbers)
    command = "run `%gpumem_free --vars model1 model2` in a cell of its own, then this cell again"
    assert found.oom.suggestions[0] == command
    # What this cell or a recent one uses is meant.
    assert cell(heap, after=reading(heap), holders=held_by(["model1", "model2", "data"])).oom.cause is Cause.DEMAND


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("model = Model()", "model"),
        ("model = Model(", "model"),
        ("model: Net = Model(", "model"),
        ("x = x + model(y)", None),
        ("x += 1", None),
        ("f(model)", None),
        ("model.head = Head()", None),
        ("if model == 3:", None),
    ],
)
def test_which_name_a_line_binds_anew(source, name):
    line = Group("line", "line 3", source)
    found = find_accidents("cuda:0", None, None, held_by(["model.weight", "x"]), line)
    if name is None:
        assert found == ()
    else:
        (accident,) = found
        assert (accident.bytes, accident.cure) == (
            20 * GIB,
            "del model (with all that refers to it) before this line",
        )
        assert "the old value of `model`" in accident.holder


@pytest.mark.parametrize(("rest", "cause"), [(58, Cause.ACCIDENT), (230, Cause.DEMAND)])
def test_what_a_name_held_before_is_small_in_a_loop_that_fills_a_cache(rest, cause):
    """Each turn of such a loop binds its variable anew, and the old value is in the cache as well."""
    heap = Heap()
    heap.segment(1 << 40, 20 * GIB, recorded=False)
    heap.before(1 << 40, 20 * GIB)
    heap.segment(9 << 40, rest * GIB)
    heap.alloc(9 << 40, rest * GIB, 2)
    heap.oom(20 * GIB, GIB // 2, line=4)
    total = (20 + rest + 2) * GIB
    found = cell(heap, after=reading(heap, total=total), holders=held_by(["c"]))
    assert found.oom.cause is cause, found.oom.sentence


HOST_TEXT = "DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes."


@pytest.mark.parametrize(
    ("request_gib", "used", "cause"), [(8, 26, Cause.ACCIDENT), (4, 8, Cause.ACCIDENT), (64, 26, Cause.REQUEST)]
)
def test_what_the_notebook_keeps_counts_on_the_cpu_too(request_gib, used, cause):
    host = DeviceReading("cpu", 0, process_used=16 * GIB, device_used=used * GIB, device_total=32 * GIB)
    failure = Failure(HOST_TEXT.format(request_gib * GIB), frames=((FILE, 4, "<module>"),))
    found = cell(after=host, failure=failure, holders=kept_by(HolderKind.OUTPUT, "Out[7]", device="cpu"))
    assert found.oom.cause is cause, found.oom.sentence
    if cause is Cause.ACCIDENT:
        assert "60.0 GiB was kept by accident, by the output history (Out[7])" in found.oom.sentence
        assert found.oom.suggestions[0].startswith("run `%gpumem_free --out`")


@pytest.mark.parametrize("holders", [kept_by(HolderKind.OUTPUT, "Out[7]"), held_by(["model"], {"model": "unused"})])
def test_what_cannot_make_an_absurd_request_fit_is_left_out(holders):
    heap = full_card()
    heap.oom(4 << 50, GIB // 2)
    found = cell(heap, after=reading(heap), holders=holders)
    assert found.oom.cause is Cause.REQUEST
    told = "\n".join([found.oom.sentence, *found.oom.numbers, *found.oom.suggestions])
    assert not any(word in told for word in ("accident", "could be freed", "Out[7]", "`model`"))
    assert found.oom.evidence.accidents == ()
    # The same where the limit of the process alone refuses it.
    heap = full_card()
    heap.oom(82 * GIB, GIB // 2)
    found = cell(heap, after=reading(heap, total=160 * GIB, limit=80 * GIB), holders=holders)
    assert found.oom.cause is Cause.LIMIT
    assert not any("accident" in line or "could be freed" in line for line in found.oom.numbers)


def test_old_variables_and_a_name_bound_anew_on_the_cpu():
    host = DeviceReading("cpu", 0, process_used=28 * GIB, device_used=30 * GIB, device_total=32 * GIB)
    failure = Failure(HOST_TEXT.format(8 * GIB), frames=((FILE, 2, "<module>"),))
    old = held_by(["old.weight"], {"old": "last used in In [3]"}, device="cpu")
    found = cell(after=host, failure=failure, holders=old)
    assert "old variables that this cell does not use: `old` (last used in In [3])" in found.oom.sentence
    # Line 2 is `a = make()`.
    found = cell(after=host, failure=failure, holders=held_by(["a.weight"], device="cpu"))
    assert found.oom.cause is Cause.ACCIDENT
    assert "the old value of `a`" in found.oom.sentence
    assert cell(after=host, failure=failure, holders=held_by(["b"], device="cpu")).oom.cause is Cause.DEMAND


def test_what_is_kept_counts_where_a_library_names_no_size():
    full = DeviceReading("cuda:0", 0, 70 * GIB, 78 * GIB, 79 * GIB, 79 * GIB + GIB // 2, 80 * GIB, 80 * GIB)
    failure = Failure("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    found = cell(after=full, failure=failure, holders=kept_by(HolderKind.CYCLE, "Net.fn"))
    assert found.oom.cause is Cause.ACCIDENT
    assert "a library or the driver found the card full; 60.0 GiB was kept by accident" in found.oom.sentence
    assert cell(after=full, failure=failure, holders=kept_by(HolderKind.VARIABLE, "x")).oom.cause is not Cause.ACCIDENT


@pytest.mark.parametrize(
    ("kind", "words", "cure"),
    [
        (HolderKind.CYCLE, "reference cycles that Python has not collected yet", "%gpumem_free"),
        (HolderKind.DEBUGGER, "the debugger", "%gpumem_free"),
        (HolderKind.COMPILE_CACHE, "torch.compile's cache, whose model is gone", "%gpumem_free --compiled"),
    ],
)
def test_each_kind_of_accident_has_its_words_and_its_cure(kind, words, cure):
    heap = full_card()
    found = cell(heap, after=reading(heap), holders=kept_by(kind, "path"))
    assert f"60.0 GiB was kept by accident, by {words}" in found.oom.sentence
    assert found.oom.suggestions[0] == f"run `{cure}` in a cell of its own, then this cell again"
