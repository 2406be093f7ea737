"""Real out-of-memory errors, made on purpose, against the verdict that each must get.

Those named ``full_`` fill the card, and nothing else may run beside them.
``run_all.py`` runs each in a process of its own.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared import torch_with_cuda

import gpumem_magic
from gpumem_magic.analysis.oom import Cause, parse_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumem_magic.analysis.oom import OomVerdict

MIB, GIB = 1 << 20, 1 << 30


def block(torch: Any, size: int) -> Any:
    """Return a tensor of `size` bytes; nothing is written, so this takes no time."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def failed(work: Callable[[], object]) -> tuple[OomVerdict, str]:
    """Record `work`, which must run out of memory; return the verdict and the whole report."""
    error = None
    with gpumem_magic.record() as r:
        try:
            work()
        except RuntimeError as raised:
            error = str(raised)
            # What it holds goes before the next allocation, as in a cell.
            del raised
    assert error is not None, "it did not run out of memory"
    assert parse_message(error) is not None, error
    verdict = r.report.analysis.oom
    assert verdict is not None, r.report.to_text()
    text = r.report.to_text()
    assert text.startswith(f"gpumem: {verdict.sentence}"), text
    return verdict, text


def raised_by(work: Callable[[], object]) -> tuple[OomVerdict, str]:
    """Record `work` and let its error pass, so that the report also has the error's own text."""
    recorder = gpumem_magic.record()
    try:
        with recorder:
            work()
    except RuntimeError:
        pass
    else:
        raise AssertionError("it did not run out of memory")
    verdict = recorder.report.analysis.oom
    assert verdict is not None, recorder.report.to_text()
    return verdict, recorder.report.to_text()


def expect(verdict: OomVerdict, text: str, cause: Cause) -> str:
    """Hold a verdict against the cause that was made; return its sentence."""
    assert verdict.cause is cause, f"{verdict.cause} instead of {cause}\n{text}"
    return verdict.sentence


def check_request_alone() -> str:
    """One request is larger than the card."""
    torch = torch_with_cuda()
    total = torch.cuda.mem_get_info()[1]
    verdict, text = raised_by(lambda: block(torch, 2 * total))
    assert verdict.evidence.request is not None
    assert verdict.evidence.request.value == -(-2 * total // 512) * 512
    return expect(verdict, text, Cause.REQUEST)


def check_fragmentation() -> str:
    """Every other half of large segments stays, under a limit: enough is free, and no piece is large enough."""
    torch = torch_with_cuda()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1900 * MIB / total)
    kept = []

    def work() -> None:
        large = [block(torch, 256 * MIB) for _ in range(7)]
        large.clear()
        halves = [block(torch, 64 * MIB) for _ in range(28)]
        kept.extend(halves[::2])
        del halves
        block(torch, 200 * MIB)

    verdict, text = raised_by(work)
    state = verdict.evidence.state
    assert state is not None
    assert state.largest == 64 * MIB, state
    assert state.usable == 14 * 64 * MIB, state
    assert state.pins, state
    # Not only recommended: replayed, and it would have fitted.
    retrial = verdict.evidence.retrial
    assert retrial is not None
    assert retrial.fits is True, retrial
    assert any("os.environ" in line and "expandable_segments:True" in line for line in verdict.suggestions), verdict
    # torch's own counters of that moment: nothing was freed since.
    assert state.reserved == torch.cuda.memory_reserved()
    return expect(verdict, text, Cause.FRAGMENTATION)


def check_own_limit() -> str:
    """Live tensors fill a small memory fraction of an empty card."""
    torch = torch_with_cuda()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(GIB / total)
    kept: list[Any] = []

    def work() -> None:
        while True:
            kept.append(block(torch, 64 * MIB))

    verdict, text = raised_by(work)
    assert "set_per_process_memory_fraction" in verdict.suggestions[0], verdict.suggestions
    return expect(verdict, text, Cause.LIMIT)


def check_request_beyond_the_limit() -> str:
    """One request is larger than the limit of the process, and smaller than the card."""
    torch = torch_with_cuda()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(GIB / total)
    verdict, text = raised_by(lambda: block(torch, 2 * GIB))
    return expect(verdict, text, Cause.LIMIT)


def check_full_true_demand() -> str:
    """Live tensors fill the card."""
    torch = torch_with_cuda()
    kept: list[Any] = []

    def work() -> None:
        while True:
            kept.append(block(torch, 4 * GIB))

    verdict, text = raised_by(work)
    assert verdict.evidence.state is not None
    assert verdict.evidence.state.allocated == len(kept) * 4 * GIB
    assert not any("expandable" in line for line in verdict.suggestions), verdict.suggestions
    return expect(verdict, text, Cause.DEMAND)


def check_caught() -> str:
    """The program catches the error and goes on: the report still says why."""
    torch = torch_with_cuda()
    total = torch.cuda.mem_get_info()[1]
    verdict, text = failed(lambda: block(torch, 2 * total))
    assert verdict.sentence.startswith("Ran out of memory"), verdict.sentence
    return expect(verdict, text, Cause.REQUEST)


def check_without_a_recording() -> str:
    """From the error's text alone."""
    torch = torch_with_cuda()
    try:
        block(torch, 2 * torch.cuda.mem_get_info()[1])
    except RuntimeError as error:
        message = parse_message(str(error))
    assert message is not None
    assert message.total is not None, message
    assert message.tried is not None, message
    assert message.tried.low > message.total.high
    return f"tried {message.tried}, total {message.total}, missing {dict(message.missing)}"


_RETRY = """%%gpumem --quiet
def step(size):
    acts = torch.empty(size, dtype=torch.uint8, device="cuda")
    return torch.empty(size, dtype=torch.uint8, device="cuda")
try:
    y = step(1200 << 20)
except torch.OutOfMemoryError:
    y = step(700 << 20)
"""


def _limited_shell() -> Any:
    """Return a shell with the extension, whose process may have 2,000 MiB of the card."""
    from IPython.core.interactiveshell import InteractiveShell

    torch = torch_with_cuda()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(2000 * MIB / total)
    shell = InteractiveShell.instance()
    assert shell.run_cell("import torch\n%load_ext gpumem_magic").success
    return shell


def check_retry_in_the_handler() -> str:
    """What stands in the way of a retry inside ``except`` is the first attempt, which the handled error keeps."""
    shell = _limited_shell()
    assert not shell.run_cell(_RETRY, store_history=True).success
    report: Any = gpumem_magic.last
    verdict = report.analysis.oom
    assert verdict is not None, report.to_text()
    assert "the error that was being handled when this line ran" in verdict.sentence, report.to_text()
    return expect(verdict, report.to_text(), Cause.ACCIDENT)


_UNMEASURED = """kept = torch.empty(1500 << 20, dtype=torch.uint8, device="cuda")
more = torch.empty(700 << 20, dtype=torch.uint8, device="cuda")
"""


def check_unmeasured_cell() -> str:
    """A cell without ``%%gpumem`` is told why it ran out, from its error and the driver."""
    from IPython.utils.capture import capture_output

    shell = _limited_shell()
    with capture_output() as shown:
        assert not shell.run_cell(_UNMEASURED, store_history=True).success
    text = "".join([shown.stdout, *(one.data.get("text/plain", "") for one in shown.outputs)])
    told = text[text.index("gpumem: Out of memory") :].splitlines()
    assert "line 2 `more = torch.empty(700 << 20" in told[0], text
    assert "it asked for 698 to 700 MiB" in told[0], text
    assert "the limit of this process" in told[0], text
    assert any(line.startswith("  do: raise the limit") for line in told), text
    assert any("as this cell was not measured" in line for line in told), text
    return told[0]


_FILLER = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
kept = torch.empty(free - (3 << 30), dtype=torch.uint8, device="cuda")
print("filled", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def filled_by_another() -> Iterator[None]:
    """Let another process take all of the card but 3 GiB for as long as the block runs."""
    with subprocess.Popen(
        [sys.executable, "-c", _FILLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        try:
            line = other.stdout.readline()
            assert line.startswith("filled"), line
            yield
        finally:
            other.stdin.close()


def check_full_other_process() -> str:
    """Another process fills the card."""
    torch = torch_with_cuda()
    block(torch, MIB)
    with filled_by_another():
        verdict, text = raised_by(lambda: block(torch, 8 * GIB))
    return expect(verdict, text, Cause.OTHERS)


def check_full_squeezed_file() -> str:
    """A snapshot of torch's own shows that another process took what this one had had; no driver is asked."""
    torch = torch_with_cuda()
    torch.cuda.memory._record_memory_history(stacks="python")
    had = [block(torch, 4 * GIB) for _ in range(5)]
    had.clear()
    torch.cuda.empty_cache()
    with filled_by_another():
        try:
            block(torch, 8 * GIB)
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("it did not run out of memory")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "squeezed.pickle"
        torch.cuda.memory._dump_snapshot(str(path))
        report: Any = gpumem_magic.read_snapshot(path)
    verdict = report.analysis.oom
    assert verdict is not None, report.to_text()
    assert "that it had here at another time" in verdict.sentence, verdict.sentence
    return expect(verdict, report.to_text(), Cause.OTHERS)


def check_expandable_set_too_late() -> str:
    """The variable is set after torch first used the card; the memory is then in pieces."""
    import os

    torch = torch_with_cuda()
    block(torch, MIB)
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1900 * MIB / total)
    kept = []

    def work() -> None:
        large = [block(torch, 256 * MIB) for _ in range(7)]
        large.clear()
        halves = [block(torch, 64 * MIB) for _ in range(28)]
        kept.extend(halves[::2])
        del halves
        block(torch, 200 * MIB)

    verdict, text = raised_by(work)
    return expect(verdict, text, Cause.SETTING)
