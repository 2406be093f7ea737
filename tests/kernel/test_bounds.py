"""A cell that makes tensors without end takes a bounded amount of memory of ours, however often it is run."""

from __future__ import annotations

import pytest

ALLOWED = 50_000
FLOOD = f"""%%gpumem --max-entries {ALLOWED}
made = unwatched = 0
while True:
    torch.empty(1)
    made += 1
    unwatched += not torch._C._autograd._profiler_enabled()
    if unwatched == 1000:
        THERE
"""


@pytest.mark.parametrize("time", ["first", "second", "third"])
def test_an_endless_loop_of_tensors_is_watched_only_so_far(kernel, there, time):
    """The profiler is off long before the button is pressed, and what it held was near the limit."""
    cell = kernel.run(FLOOD.replace("THERE", there), during=kernel.press_stop_there)
    assert cell.kinds == ["KeyboardInterrupt", "report"], time
    assert "only the first 50,000 events were kept; --max-entries 100000 keeps more" in cell.report
    numbers = kernel.run("[made, unwatched]")
    made, unwatched = numbers.result.strip("[]").split(", ")
    assert int(unwatched) > 0
    # Each makes two events; the rest are made between two looks.
    assert 2 * (int(made) - int(unwatched)) < 12 * ALLOWED


def test_numbers_of_a_cut_recording_are_called_so(kernel):
    cell = kernel.run("%%gpumem --max-entries 100\nheld = [torch.ones(16) for _ in range(500)]")
    assert "first 100 events" in cell.report
    assert cell.report.startswith("gpumem: Peak at least 6.25 KiB at line 2 ")
    assert "stayed" not in cell.report
    peak = kernel.run("import gpumem_magic\ngpumem_magic.last.devices[0].headline.allocated_peak")
    assert peak.result == "6400"
