"""What sampling tells: sentences, curves, and what is left unsaid."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem_magic.analysis import analyse
from gpumem_magic.book.intake import read_entry
from gpumem_magic.recording.model import (
    Cell,
    DeviceReading,
    Marks,
    Note,
    Outcome,
    ProcessSamples,
    ProcessSeries,
    Recording,
    Sample,
    SourceKind,
)
from gpumem_magic.report import Report
from gpumem_magic.report.container import decode
from gpumem_magic.report.document import view_document

MIB = 1 << 20
GIB = 1 << 30
SECOND = 1_000_000


def _series(key, *used, **more):
    """One sample a tenth of a second, over two seconds at most."""
    return ProcessSeries(key, f"the {key}", 16 * GIB, tuple(range(0, len(used) * 100_000, 100_000)), used, **more)


def _recording(*series, source=SourceKind.NONE, end=2 * SECOND, remarks=(), **more):
    return Recording(
        cell=Cell(3, None, "%%gpumem\na = load()\nb = work(a)", filenames=("cell",)),
        source=source,
        outcome=more.pop("outcome", Outcome.OK),
        started_us=0,
        ended_us=end,
        process=ProcessSamples(series, remarks=remarks, **more.pop("counters", {})),
        **more,
    )


@pytest.mark.parametrize(
    ("used", "sentence"),
    [
        ((100, 400, 100), "This process's host memory rose by 300 MiB to 400 MiB and came back"),
        ((100, 400, 400), "This process's host memory rose by 300 MiB to 400 MiB and stayed there"),
        (
            (100, 400, 150),
            "This process's host memory rose by 300 MiB to 400 MiB, 50.0 MiB more at the end than before",
        ),
        ((100, 400, 20), "This process's host memory rose by 300 MiB to 400 MiB, 80.0 MiB less at the end than before"),
        ((400, 100, 100), "This process's host memory fell from 400 MiB to 100 MiB"),
    ],
)
def test_what_the_host_memory_did(used, sentence):
    analysis = analyse(_recording(_series("host", *(value * MIB for value in used))))
    assert analysis.sentence == f"{sentence}. Sampled, as torch was not used in this cell."
    (device,) = analysis.devices
    assert device.headline.allocated_before == used[0] * MIB
    assert device.headline.allocated_peak == max(used) * MIB
    assert device.headline.allocated_after == used[-1] * MIB
    assert not device.exact
    assert device.headline.stayed is None
    assert "owners unknown" in device.missing["stayed"]
    header, _ = decode(view_document(analysis))
    assert header["devices"][0]["whose"] == "process"  # The view's words for these numbers are not torch's.


@pytest.mark.parametrize(
    ("key", "used", "line_3_since", "said"),
    [
        # The highest sample is of line 3, which only kept what line 2 had taken by then.
        ("host", (100, 300, 304, 100), 150_000, "to 304 MiB while line 2 `a = load()` ran and came back"),
        # Both ran between two samples: host memory takes its time, a GPU's comes at once.
        ("host", (100, 300, 100), 70_000, "to 300 MiB while line 2 `a = load()` ran and came back"),
        ("host", (100, 300, 100), 30_000, "to 300 MiB while line 3 `b = work(a)` ran and came back"),
        ("GPU 0", (100, 300, 100), 70_000, "to 300 MiB between line 2 `a = load()` and line 3 `b = work(a)` and came"),
        ("GPU 0", (100, 100, 300, 100), 30_000, "to 300 MiB while line 3 `b = work(a)` ran and came back"),
    ],
)
def test_the_line_is_the_one_that_ran_while_memory_rose_most(key, used, line_3_since, said):
    places = ((("cell", 2, "<module>"),), (("cell", 3, "<module>"),))
    marks = Marks(
        np.array([0, line_3_since, 900_000]), np.array([1, 1, 1]), np.array([0, 1, -1], np.int32), places=places
    )
    assert said in analyse(_recording(_series(key, *(value * MIB for value in used)), marks=marks)).sentence


def test_the_systems_mark_is_the_peak_and_names_no_line():
    recording = _recording(_series("host", 100 * MIB, 120 * MIB, 100 * MIB, highest=GIB))
    analysis = analyse(recording)
    assert analysis.sentence.startswith("This process's host memory rose by 924 MiB to 1.00 GiB and came back.")
    assert analysis.devices[0].headline.allocated_peak == GIB
    assert "misses nothing" in analysis.notes[-1].text


def test_gpus_come_first_then_the_host_then_child_processes():
    analysis = analyse(
        _recording(
            _series("GPU 1", 0, 3 * GIB, 2 * GIB),
            _series("host", 100 * MIB, 200 * MIB, 150 * MIB),
            _series("child processes", 0, 50 * MIB, 0),
        )
    )
    assert analysis.sentence == (
        "Memory of this process on GPU 1 rose by 3.00 GiB to 3.00 GiB, 2.00 GiB more at the end than before; "
        "this process's host memory up to 200 MiB; child processes held up to 50.0 MiB. "
        "Sampled, as torch was not used in this cell."
    )
    assert [device.key for device in analysis.devices] == ["GPU 1", "host", "child processes"]
    assert "several child processes" in analysis.notes[-1].text


def test_a_whole_device_is_called_so():
    analysis = analyse(_recording(_series("GPU 0", GIB, 3 * GIB, GIB, whole_device=True, reason="host PIDs")))
    assert analysis.sentence.startswith("All memory in use on GPU 0 rose by 2.00 GiB to 3.00 GiB and came back.")
    assert analysis.notes[0].level == "warning"
    assert "(host PIDs)" in analysis.notes[0].text


def _late(*used, **more):
    times = tuple(range(1_200_000, 1_200_000 + 100_000 * len(used), 100_000))
    return ProcessSeries("GPU 0", "the GPU", 16 * GIB, times, used, **more)


def test_a_gpu_that_was_first_read_late_says_nothing_of_the_time_before():
    still = analyse(_recording(_late(GIB, GIB), _series("host", 64 * MIB, 64 * MIB)))
    assert still.sentence == (
        "Nothing to show: torch was not used in this cell; memory of this process on GPU 0 at 1.00 GiB at the end "
        "(before that not known), this process's host memory at 64.0 MiB, as before."
    )
    assert still.notes[0].level == "warning"
    assert still.notes[0].text.startswith("GPU 0 was read twice only from 1.2 s after the cell's beginning on")
    moved = analyse(_recording(_late(3 * GIB, GIB, GIB)))
    assert moved.sentence.startswith(
        "Memory of this process on GPU 0 was up to 3.00 GiB, 1.00 GiB at the end; before that not known. Sampled"
    )
    (device,) = moved.devices
    assert device.headline.allocated_before is None
    assert "allocated_before" in device.missing
    assert device.sampled is not None
    assert int(device.sampled.time_us[0]) == 1_200_000  # the picture begins where the numbers do


@pytest.mark.parametrize(("looks", "often"), [(2, "twice"), (3, "3 times")])
def test_it_is_told_how_often_a_gpu_was_read_late(looks, often):
    second = _late(*[GIB] * looks)._replace(key="GPU 1")
    analysis = analyse(_recording(_late(*[GIB] * looks), second))
    assert analysis.notes[0].text.startswith(f"GPU 0 and GPU 1 were read {often} only from 1.2 s after")


def test_a_gpu_that_was_read_in_time_has_no_such_note():
    analysis = analyse(_recording(_series("GPU 0", GIB, GIB)))
    assert analysis.sentence.endswith("memory of this process on GPU 0 at 1.00 GiB, as before.")
    assert analysis.notes == ()


def test_a_share_that_is_not_counted_is_said():
    why = "what its child process 7 holds there is not known and not counted: no permission"
    analysis = analyse(_recording(_series("GPU 0", 0, GIB, reason=why)))
    assert analysis.notes[0] == Note("warning", f"GPU 0: {why}")


def test_what_did_not_move_is_one_sentence():
    analysis = analyse(_recording(_series("host", 64 * MIB, 65 * MIB, 64 * MIB)))
    assert not analysis.drawable
    assert analysis.sentence == (
        "Nothing to show: torch was not used in this cell; this process's host memory at 64.0 MiB, as before."
    )


def test_beside_torch_what_our_own_imports_take_is_not_told():
    quiet = analyse(_recording(_series("host", 64 * MIB, 120 * MIB), source=SourceKind.CPU))
    assert quiet.sentence == "Nothing was allocated: no CPU tensor was made in this cell."
    loud = analyse(_recording(_series("host", 64 * MIB, 200 * MIB), source=SourceKind.CPU))
    assert loud.sentence == (
        "This process's host memory rose by 136 MiB to 200 MiB and stayed there. "
        "Sampled, as the cell made no CPU tensor."
    )


def test_an_error_is_said_first():
    recording = _recording(_series("host", MIB, GIB, MIB), outcome=Outcome.ERROR, error="ValueError: no")
    assert analyse(recording).sentence.startswith("Ended with ValueError. This process's host memory rose by")


@pytest.mark.parametrize(
    ("seconds", "samples", "rate"), [(2, 21, "read 10 times a second"), (9, 4, "read 4 times in all")]
)
def test_the_rate_is_the_one_that_was_reached(seconds, samples, rate):
    values = [MIB] * (samples - 1) + [GIB]
    if seconds == 2:
        values.append(MIB)
    analysis = analyse(_recording(_series("host", *values), end=seconds * SECOND))
    assert analysis.notes[-1].text.startswith(f"{rate}, from the driver")


def test_a_thinned_recording_still_tells_how_often_memory_was_read():
    counters = {"looks": 40}
    seen = analyse(_recording(_series("host", MIB, MIB, GIB, MIB), counters=counters))
    assert seen.notes[-1].text.startswith("read 20 times a second, from the driver")
    children = analyse(_recording(_series("child processes", 0, GIB, 0, 0), counters=counters))
    assert any(note.text.startswith("sampled, from the driver") for note in children.notes)


def test_the_frameworks_own_remarks_are_told():
    assert analyse(_recording(_series("host", MIB, GIB), remarks=("JAX: …",))).notes[0].text == "JAX: …"


def test_jaxs_counters_come_first_and_are_exact_where_their_peak_rose():
    before = DeviceReading("cuda:0", 0, allocated=GIB, max_allocated=2 * GIB)
    after = DeviceReading("cuda:0", 2 * SECOND, allocated=GIB, max_allocated=5 * GIB, name="NVIDIA H200")
    counters = {
        "before": (before,),
        "after": (after,),
        "samples": (Sample(SECOND, "cuda:0", 3 * GIB, None, None, None),),
    }
    analysis = analyse(_recording(_series("host", MIB, 2 * GIB, MIB), counters=counters))
    assert analysis.sentence == "Peak 5.00 GiB, as much after as before, by counters only."
    assert [device.key for device in analysis.devices] == ["cuda:0", "host"]
    assert not analysis.is_of_process


def test_jax_that_was_started_in_the_cell_had_nothing_before():
    after = DeviceReading("cuda:0", 2 * SECOND, allocated=GIB, max_allocated=2 * GIB)
    (device,) = analyse(_recording(counters={"after": (after,)})).devices
    assert device.headline.allocated_before == 0
    assert device.headline.allocated_peak == 2 * GIB


def test_what_lies_outside_torch_is_seen_where_torch_itself_did_nothing():
    def reading(time_us, used):
        return DeviceReading("cuda:0", time_us, allocated=GIB, reserved=GIB, process_used=used)

    recording = Recording(
        Cell(1, None, "cupy.ones(1)"),
        SourceKind.CUDA,
        Outcome.OK,
        0,
        SECOND,
        before=(reading(0, 2 * GIB),),
        after=(reading(SECOND, 4 * GIB),),
    )
    analysis = analyse(recording)
    assert analysis.sentence == (
        "Memory of this process on cuda:0 rose by 2.00 GiB to 4.00 GiB and stayed there. "
        "Sampled, as torch allocated nothing in this cell."
    )


def test_the_ledger_is_of_allocations_only():
    recording = _recording(_series("host", MIB, GIB, MIB))
    analysis = analyse(recording)
    assert analysis.is_of_process
    assert read_entry(recording, analysis, None) is None


def test_every_form_of_the_report_can_show_it(tmp_path):
    report = Report(analyse(_recording(_series("host", MIB, GIB, MIB), _series("child processes", 0, GIB))))
    text = report.to_text()
    assert "host: before 1.00 MiB · peak 1.00 GiB · after 1.00 MiB" in text
    assert "this process's host memory" in text
    assert (report.to_png() or b"").startswith(b"\x89PNG")
    assert "host memory" in report.save(tmp_path / "report.html").read_text(encoding="utf-8")
