"""The first line, word for word, for every way a recording can end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from story import START, Story  # type: ignore[import-not-found]
from test_devices import CELL, MIB, context, here, placed  # type: ignore[import-not-found]

from gpumem_magic.analysis.counters import analyse_counters
from gpumem_magic.analysis.devices import analyse_device
from gpumem_magic.analysis.oom import diagnose
from gpumem_magic.analysis.sentence import nothing_sentence, sentence
from gpumem_magic.recording.model import Cell, DeviceReading, Note, Outcome, Recording, Sample, SourceKind

GIB = 1 << 30


def recording(outcome=Outcome.OK, source=SourceKind.CUDA, **fields):
    return Recording(fields.pop("cell", CELL), source, outcome, START, START + 1000, **fields)


def device(story, lines, **fields):
    return analyse_device(story.device(), story.history(), context(placement=placed(story, lines), **fields))


def explained(devices, made):
    return sentence(devices, made, diagnose(devices, made))


def training():
    story = Story(reserved=8 * GIB)
    story.old(GIB)
    story.alloc(GIB)
    act = story.alloc(3 * GIB)
    story.free(act)
    after = DeviceReading("cuda:0", START + 1000, allocated=2 * GIB, limit=80 * GIB)
    return device(story, {0: here(2), 1: here(4)}, after=after)


def test_a_plain_cell():
    assert sentence([training()], recording()) == (
        "Peak 5.00 GiB at line 4 `loss.backward()`, 1.00 GiB stayed (allocated at line 2 `a = make()`), "
        "72.0 GiB to the limit."
    )


def test_a_line_that_only_came_last_is_not_all_that_is_said_of_the_peak():
    story = Story()
    most = story.alloc(300 * MIB)
    last = story.alloc(MIB)
    story.free(most)
    story.free(last)
    assert sentence([device(story, {0: here(2), 1: here(4)})], recording()) == (
        "Peak 301 MiB at line 4 `loss.backward()` (allocated at line 2 `a = make()`), nothing stayed."
    )
    story = Story()
    story.old(300 * MIB)
    last = story.alloc(MIB)
    story.free(last)
    assert "at line 4 `loss.backward()` (100% of it from before the cell)" in sentence(
        [device(story, {0: here(4)})], recording()
    )


def test_the_code_of_a_line_is_quoted_once():
    story = Story()
    most = story.alloc(300 * MIB)
    story.alloc(60 * MIB)
    story.alloc(40 * MIB)
    last = story.alloc(MIB)
    story.free(most)
    story.free(last)
    found = device(story, {0: here(2), 1: here(2), 2: here(1), 3: here(4)})
    peak = "Peak 401 MiB at line 4 `loss.backward()` (90% allocated at line 2 `a = make()`)"
    assert sentence([found], recording()) == f"{peak}, 100 MiB stayed (60% allocated at line 2)."
    leak = "Leak: line 2 `a = make()` keeps 4.00 MiB more each iteration. "
    assert sentence([found], recording(), first=leak) == (
        f"{leak}{peak.replace(' `a = make()`', '')}, 100 MiB stayed (60% allocated at line 2)."
    )


def test_nothing_stayed():
    story = Story()
    story.free(story.alloc(MIB))
    assert sentence([device(story, {0: here(2)})], recording()) == (
        "Peak 1.00 MiB at line 2 `a = make()`, nothing stayed."
    )


def test_one_line_for_the_peak_and_for_what_stayed_is_named_once():
    story = Story()
    gone = story.old(2 * MIB)
    story.alloc(3 * MIB)
    story.free(story.alloc(5 * MIB))
    story.free(gone)
    assert sentence([device(story, {0: here(2)})], recording()) == (
        "Peak 10.0 MiB, 3.00 MiB stayed, both at line 2 `a = make()`, 2.00 MiB from before was freed."
    )


def test_only_frees():
    story = Story()
    goes, _ = story.old(3 * MIB), story.old(MIB)
    story.free(goes)
    assert sentence([device(story, {0: here(2)})], recording()) == "Freed 3.00 MiB from before, 1.00 MiB left."


def test_a_comma_in_the_code_of_what_stayed_does_not_end_it():
    story = Story()
    story.free(story.old(3 * MIB))
    story.alloc(MIB)
    found = device(story, {0: here(2), 1: here(2)})
    found = replace(found, groups=tuple(group._replace(source="x, y = f(a, b)") for group in found.groups))
    assert sentence([found], recording()) == (
        "Freed 3.00 MiB from before, 1.00 MiB stayed (allocated at line 2 `x, y = f(a, b)`), 1.00 MiB left."
    )


def test_several_owners_of_what_stayed():
    story = Story()
    for size in (3, 2, 5):
        story.alloc(size * MIB)
    lines = {0: here(2), 1: here(3), 2: here(4)}
    assert sentence([device(story, lines)], recording()) == (
        "Peak 10.0 MiB at line 4 `loss.backward()`, all of it stayed (50% allocated at line 4)."
    )


def test_the_largest_of_many_owners_is_not_called_most():
    story = Story()
    for size in (3, 2, 2, 3, 3):
        story.alloc(size * MIB)
    lines = {0: here(2), 1: here(3), 2: here(1), 3: here(4), 4: here(5)}
    assert "all of it stayed (23%, the largest part, allocated at line 2 `a = make()`)" in sentence(
        [device(story, lines)], recording()
    )


def test_rounding_does_not_hide_who_holds_a_small_tensor():
    story = Story()
    big = story.alloc(MIB)
    story.alloc(4)
    story.free(big)
    assert sentence([device(story, {0: here(4), 1: here(2)})], recording()) == (
        "Peak 1.00 MiB at line 2 `a = make()` (allocated at line 4 `loss.backward()`), "
        "512 B stayed (allocated at line 2)."
    )


def test_out_of_memory_says_what_the_line_asked_for():
    story = Story(reserved=64 * MIB)
    story.alloc(40 * MIB)
    story.oom(100 * MIB, 30 * MIB)
    after = DeviceReading("cuda:0", START + 1000, allocated=40 * MIB, device_total=128 * MIB, limit=128 * MIB)
    text = explained([device(story, {0: here(2), 1: here(4)}, after=after)], recording(Outcome.OUT_OF_MEMORY))
    assert text == (
        "Out of memory at line 4 `loss.backward()`: it asked for 100 MiB, and live tensors really hold 40.0 MiB of the "
        "card's 128 MiB, 100% of it from line 2 `a = make()`. "
        "Peak 40.0 MiB at line 2, all of it stayed."
    )


def test_the_very_first_request_failed():
    story = Story()
    story.oom(300 * GIB, 79 * GIB)
    after = DeviceReading("cuda:0", START + 1000, allocated=0, device_total=80 * GIB, limit=80 * GIB)
    assert explained([device(story, {0: here(2)}, after=after)], recording(Outcome.OUT_OF_MEMORY)) == (
        "Out of memory at line 2 `a = make()`: it asked for 300 GiB in one piece, more than the whole card holds "
        "(80.0 GiB); no allocator setting can help."
    )


def test_out_of_memory_that_was_caught():
    story = Story()
    story.alloc(MIB)
    story.oom(100 * MIB, 0)
    text = explained([device(story, {0: here(2)})], recording())
    assert text.startswith(
        "Ran out of memory at line 2 `a = make()`: it asked for 100 MiB, and live tensors really hold "
    )


@pytest.mark.parametrize(
    ("outcome", "error", "begin"),
    [
        (Outcome.ERROR, "ValueError: no\nway", "Ended with ValueError. Peak "),
        (Outcome.INTERRUPTED, "KeyboardInterrupt: ", "Interrupted. Peak "),
        (Outcome.OUT_OF_MEMORY, "OutOfMemoryError: CUDA out of memory", "Out of memory. Peak "),
    ],
)
def test_other_ends(outcome, error, begin):
    assert sentence([training()], recording(outcome, error=error)).startswith(begin)


def test_overflow():
    story = Story()
    story.old(8 * MIB)
    story.alloc(MIB)
    before = DeviceReading("cuda:0", START, allocated=2 * MIB, max_allocated=2 * MIB)
    after = DeviceReading("cuda:0", START + 1000, allocated=9 * MIB, max_allocated=30 * MIB)
    lost = device(story, {0: here(2)}, before=before, after=after, truncated=True)
    assert sentence([lost], recording(truncated=True)) == (
        "Peak 30.0 MiB in the part of the recording that was lost, +7.00 MiB over the cell."
    )


def test_a_reserve_that_grew_far_beyond_the_peak():
    story = Story()
    story.segment(3 * GIB)
    story.free(story.alloc(GIB))
    assert "reserved grew to 3.00 GiB, 3.0× the peak" in sentence([device(story, {0: here(2)})], recording())
    inherited = Story(reserved=3 * GIB)
    inherited.free(inherited.alloc(GIB))
    assert "reserved" not in sentence([device(inherited, {0: here(2)})], recording())


def test_two_devices():
    one = training()
    two = replace(one, key="cuda:1", headline=replace(one.headline, allocated_peak=7 * MIB))
    text = sentence([one, two], recording())
    assert text.startswith("Peak 5.00 GiB on cuda:0 at line 4 `loss.backward()`")
    assert text.endswith("; cuda:1 peak 7.00 MiB.")


def test_cpu():
    story = Story(kind="cpu", has_snapshot=False)
    story.alloc(MIB)
    assert sentence([device(story, {0: here(2)})], recording(source=SourceKind.CPU)) == (
        "Peak 1.00 MiB at line 2 `a = make()`, all of it stayed, CPU tensors of this cell only."
    )


def counted(peak):
    def reading(time_us, allocated, highest):
        return DeviceReading("cuda:0", time_us, allocated, 4 * MIB, highest, limit=100 * MIB)

    samples = (Sample(START + 500, "cuda:0", 3 * MIB, 4 * MIB, None, None),)
    return recording(
        source=SourceKind.COUNTERS,
        before=(reading(START, MIB, 2 * MIB),),
        after=(reading(START + 1000, 2 * MIB, peak),),
        samples=samples,
    )


def test_counters_only():
    source = counted(3 * MIB + 512)
    devices = analyse_counters(source)
    assert sentence(devices, source) == (
        "Peak 3.00 MiB, +1.00 MiB over the cell, 96.0 MiB to the limit, by counters only."
    )
    assert devices[0].headline.allocated_peak == 3 * MIB + 512
    assert "allocated_peak" not in devices[0].missing
    silent = analyse_counters(counted(2 * MIB))[0]
    assert silent.headline.allocated_peak == 3 * MIB
    assert silent.missing["allocated_peak"].startswith("at least this")


def test_repeated_body():
    cell = Cell(3, None, CELL.source, CELL.filenames, runs=7000)
    assert sentence([training()], recording(cell=cell)).endswith("; the body ran 7,000 times.")


def test_long_and_odd_source_is_shortened():
    source = "%%gpumem\nx = '`' + " + "very_long_name + " * 9 + "1\n"
    story = Story()
    story.alloc(MIB)
    cell = Cell(1, None, source, CELL.filenames)
    text = sentence([device(story, {0: here(2)}, cell=cell)], recording())
    assert text.startswith("Peak 1.00 MiB at line 2 `x = ''' + very_long_name + very_long_name + ver…`, ")


@pytest.mark.parametrize(
    ("fields", "held", "text"),
    [
        ({}, 0, "Nothing was allocated or freed on a GPU in this cell."),
        ({}, MIB, "Nothing was allocated or freed on a GPU in this cell; 1.00 MiB is allocated, as before."),
        ({"source": SourceKind.CPU}, None, "Nothing was allocated: no CPU tensor was made in this cell."),
        ({"source": SourceKind.NONE}, None, "Nothing to show: torch was not used in this cell."),
        (
            {"source": SourceKind.NONE, "notes": (Note("info", "odd."), Note("warning", "starting failed."))},
            None,
            "Nothing to show: starting failed.",
        ),
        (
            {"cell": replace(CELL, source="# mine\n%%gpumem --top 3\n\n  # nothing yet\n")},
            MIB,
            "There is no code below %%gpumem; 1.00 MiB is allocated, as before.",
        ),
        (
            {"cell": replace(CELL, source="%%gpumem\nx = 1"), "source": SourceKind.NONE},
            None,
            "Nothing to show: torch was not used in this cell.",
        ),
        (
            {"outcome": Outcome.ERROR, "error": "NameError: x"},
            0,
            "Ended with NameError. Nothing was allocated or freed on a GPU in this cell.",
        ),
    ],
)
def test_nothing_to_draw(fields, held, text):
    assert nothing_sentence(recording(**fields), held) == text
