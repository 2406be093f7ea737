"""What the checks share: a torch that works, recordings made the way a cell makes them, and torch's own counters."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from gpumem_magic.analysis.build import analyse
from gpumem_magic.recording.model import Cell, SourceKind
from gpumem_magic.recording.options import RecordOptions
from gpumem_magic.recording.outcome import classify
from gpumem_magic.recording.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem_magic.recording.model import Recording

MIB, GIB = 1 << 20, 1 << 30


class Skip(Exception):  # noqa: N818 - not an error
    """This machine cannot run the check."""


def torch_with_cuda() -> Any:
    """Import torch and initialise CUDA, which must be usable."""
    import torch

    if not torch.cuda.is_available():
        raise Skip("needs a CUDA device")
    torch.cuda.init()
    return torch


def torch_module() -> Any:
    """Import torch late: some checks must run before that."""
    import torch

    return torch


def record(run: Callable[[], Any], **options: Any) -> Recording:
    """Record a call the way a cell is recorded."""
    recorder = Recorder(RecordOptions(**options))
    error: BaseException | None = None
    recorder.start()
    try:
        run()
    except Exception as raised:  # noqa: BLE001 - judged by the check
        error = raised
    recording = recorder.stop(Cell(None, None, ""), *classify(error))
    if error is not None:
        traceback.clear_frames(error.__traceback__)
    return recording


def truth_of(run: Callable[[], Any], **options: Any) -> tuple[Recording, dict[str, tuple[int, int, int]]]:
    """Record a call and read torch's own start, peak and end around it, for every device."""
    torch = torch_module()
    torch.cuda.init()
    start = {}
    for device in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(device)
        start[device] = torch.cuda.memory_allocated(device)
    recording = record(run, **options)
    return recording, {
        f"cuda:{device}": (start[device], torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device))
        for device in start
    }


def compare(recording: Recording, truth: dict[str, tuple[int, int, int]]) -> None:
    """Hold the report's numbers against torch's, to the byte."""
    devices = {device.key: device.headline for device in analyse(recording).devices}
    for key, (start, peak, end) in truth.items():
        if (start, peak, end) == (0, 0, 0):
            continue
        headline = devices[key]
        told = (headline.allocated_before, headline.allocated_peak, headline.allocated_after)
        assert told == (start, peak, end), f"{key}: report {told}, torch {(start, peak, end)}; {recording.notes}"


def compare_run(run: Callable[[], Any], **options: Any) -> Recording:
    """Record, compare, and check that nothing is left behind."""
    recording, truth = truth_of(run, **options)
    compare(recording, truth)
    assert recording.source is SourceKind.CUDA
    assert not [note for note in recording.notes if note.level == "warning"], recording.notes
    nothing_left()
    return recording


def nothing_left() -> None:
    """Check that the recorder is off and every hook is gone."""
    torch = torch_module()
    assert torch._C._cuda_isHistoryEnabled() is False
    assert type(torch._C._cuda_record_memory_history).__name__ == "builtin_function_or_method"
    assert not [call for call in torch.cuda._queued_calls if "gpumem" in str(call[0])]


def small_model() -> tuple[Any, Any, Any]:
    """Build a model, an optimizer and a batch on the GPU."""
    torch = torch_module()
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6))).cuda()
    return model, torch.optim.Adam(model.parameters()), torch.randn(256, 1024, device="cuda")


def train(model: Any, optimizer: Any, batch: Any, steps: int = 3) -> None:
    """Run a few training steps."""
    for _ in range(steps):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def lines_of(code: str) -> list[Recording]:
    """Run cells (separated by lines of dashes) in a real shell and return what was recorded."""
    from IPython.core.interactiveshell import InteractiveShell

    from gpumem_magic import _reports

    seen: list[Recording] = []
    original = _reports.build

    def keep(recording: Recording, **named: Any) -> Any:
        seen.append(recording)
        return original(recording, **named)

    _reports.build = keep
    shell = InteractiveShell.instance()
    for cell in ("%load_ext gpumem_magic", *code.split("-----\n")):
        result = shell.run_cell(cell, store_history=True)
        assert result.error_before_exec is None
        assert result.error_in_exec is None or "OutOfMemory" in type(result.error_in_exec).__name__
    return seen
