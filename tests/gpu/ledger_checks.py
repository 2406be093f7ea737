"""The ledger against torch's own counters, on a real GPU; `run_all.py` runs it."""

from __future__ import annotations

import time
from typing import Any

MIB = 1 << 20


def _shell() -> Any:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext gpumem_magic")
    return shell


def _keeper(shell: Any) -> Any:
    from gpumem_magic import magics

    return magics._loaded[id(shell)][1].keeper


def _alive(shell: Any) -> tuple[dict[str, int], int]:
    from gpumem_magic.book import LiveBlocks
    from gpumem_magic.recording.alive import allocated_blocks

    now = {key: LiveBlocks(*columns) for key, columns in allocated_blocks().items()}
    devices = {device.key: device for device in _keeper(shell).ledger.alive(now)}
    device = devices["cuda:0"]
    assert device.total == shell.user_ns["torch"].cuda.memory_allocated(), device
    assert sum(row.bytes for row in device.rows) == device.total, device
    return {row.entry.title if row.entry else "unseen": row.bytes for row in device.rows}, device.total


def check_alive_by_cell() -> str:
    """What is alive adds up to torch's counter, cell by cell, through frees in later and in unmeasured cells."""
    shell = _shell()
    cells = [
        "import torch",
        "%gpumem_auto on",
        "a = [torch.ones(4, 1024, 1024, device='cuda') for _ in range(4)]",  # 4 x 16 MiB
        "b = torch.ones(8, 1024, 1024, device='cuda')",  # 32 MiB
        "del a[0]; c = torch.ones(4, 1024, 1024, device='cuda')",  # takes the place of a[0]
        "%gpumem_auto off",
        "pass",
        "a.pop(); d = torch.ones(1024, 1024, device='cuda')",  # not measured
        "a.pop();",
    ]
    first = shell.execution_count
    numbers = {}
    for number, source in enumerate(cells, first):
        result = shell.run_cell(source, store_history=True)
        assert result.success, source
        numbers[source] = number
    found, total = _alive(shell)
    numbered = [f"In [{numbers[source]}]" for source in (cells[2], cells[3], cells[4])]
    made = [found.get(title) for title in numbered]
    # Out keeps what a.pop() returned in the cell without a semicolon; with one, nothing does.
    del shell.user_ns["b"]
    after, _ = _alive(shell)
    assert made[1] == 32 * MIB, found
    assert made[2] == 16 * MIB, found
    assert numbered[1] not in after, after
    assert _keeper(shell).cuda_since == numbered[0], _keeper(shell).cuda_since
    text = shell.run_cell("%gpumem_ledger") and _keeper(shell).view(newest_first=False, top=10, budget=2.0).text
    assert "c (last used in" in text, text
    return f"{total / MIB:.0f} MiB = {found}"


def check_numbers_for_the_sidebar() -> str:
    """Read torch's numbers between cells and beside one, and hold them against torch."""
    import torch

    from gpumem_magic.recording.torch_numbers import read_now, read_on_main_thread

    assert read_on_main_thread() == []
    assert read_now([]) == []
    assert not torch.cuda.is_initialized()
    kept = torch.ones(8, 1024, 1024, device="cuda")
    beside = read_now([])[0]
    assert (beside.allocated, beside.uuid) == (kept.nbytes, None), beside
    known = read_on_main_thread()
    now = read_now(known)
    assert now[0] == known[0], (now[0], known[0])
    assert len(now) == len(known) == torch.cuda.device_count()
    assert known[0].reserved == torch.cuda.memory_reserved(0)
    assert known[0].outside is None or known[0].outside > 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static = kept * 2
        during = read_now(known)  # must not break the capture
    graph.replay()
    torch.cuda.synchronize()
    assert float(static[0, 0, 0]) == 2.0
    assert during[0].allocated is not None
    return str(known[0])


def _step_seconds(shell: Any, magic: str, steps: int) -> float:
    began = time.perf_counter()
    result = shell.run_cell(
        f"{magic}for _ in range({steps}):\n    train()\ntorch.cuda.synchronize()", store_history=True
    )
    assert result.success
    return time.perf_counter() - began


def check_cost_auto() -> str:
    """Measure a launch-bound step: under %%gpumem, and as any cell while every cell is measured."""
    shell = _shell()
    shell.run_cell(
        "import torch\nmodel = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20))).cuda()\n"
        "opt = torch.optim.SGD(model.parameters(), 0.01)\nx = torch.ones(8, 64, device='cuda')\n"
        "def train():\n    opt.zero_grad()\n    model(x).sum().backward()\n    opt.step()\nfor _ in range(50): train()"
    )
    for magic in ("", "%%gpumem\n"):
        _step_seconds(shell, magic, 50)
    plain, asked, auto = [], [], []
    for _ in range(7):
        plain.append(_step_seconds(shell, "", 300))
        asked.append(_step_seconds(shell, "%%gpumem\n", 300))
        shell.run_cell("%gpumem_auto on")
        auto.append(_step_seconds(shell, "", 300))
        shell.run_cell("%gpumem_auto off")
    ratios = sorted(one / two for one, two in zip(auto, asked, strict=True))
    above = sorted(one / two for one, two in zip(auto, plain, strict=True))
    middle = len(ratios) // 2
    assert ratios[middle] <= 1.05, ratios
    return f"auto/%%gpumem {ratios[middle]:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}), auto/plain {above[middle]:.3f}"
