"""Leaks, scratch cells and who holds what, on a real GPU; `run_all.py` runs it."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import subprocess
import sys
from typing import Any

from shared import Skip

MODEL = """
import torch
from torch import nn
%load_ext gpumem_magic
net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
opt = torch.optim.Adam(net.parameters())
losses = []
"""
CLEAN = """%%gpumem --quiet --assert-no-leak
for step in range(20):
    x = torch.randn(256, 1024, device='cuda')
    loss = net(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""
LEAKS = """%%gpumem --quiet
for step in range(20):
    x = torch.randn(256, 1024, device='cuda')
    loss = net(x).pow(2).mean()
    losses.append(loss)
"""


def _shell() -> Any:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    assert shell.run_cell(MODEL, store_history=True).success
    return shell


def _last() -> Any:
    import gpumem_magic

    return gpumem_magic.last


def check_a_clean_training_loop() -> str:
    """No verdict on a plain training loop, whose optimizer state is told as twice the parameters."""
    shell = _shell()
    assert shell.run_cell(CLEAN, store_history=True).success, _last().sentence
    assert _last().leaks == (), _last().sentence
    once = [item for item in _last().analysis.once if item.what == "optimizer state"]
    assert once, _last().analysis.growth_notes
    assert "2.0 × the parameters" in once[0].sentence, once
    return str(once[0].sentence)


def check_a_list_of_losses() -> str:
    """A list of losses keeps every iteration's graph, and is named."""
    shell = _shell()
    shell.run_cell("net(torch.randn(256, 1024, device='cuda')).sum().item();", store_history=True)
    assert shell.run_cell(LEAKS, store_history=True).success
    (leak,) = _last().leaks
    assert leak.grown == leak.iterations == 20, leak.sentence
    assert leak.keepers[0].root == "losses", leak.keepers
    # The input, the first layer's output and ReLU's result are saved: 1 MiB each, and two of them share memory or not.
    assert 2 << 20 <= leak.bytes_per_iteration <= 4 << 20, leak.bytes_per_iteration
    return str(leak.sentence)


def check_a_scratch_cell() -> str:
    """What a scratch cell allocated is given back to the driver."""
    shell = _shell()
    torch = shell.user_ns["torch"]
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        cell = "%%gpumem --quiet --scratch\nbig = torch.ones(256, 1024, 1024, device='cuda')\nother = big[:4] * 2"
        assert shell.run_cell(cell, store_history=True).success
    assert "big" not in shell.user_ns
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before, out.getvalue()
    assert "back to the driver on cuda:0" in out.getvalue(), out.getvalue()
    from gpumem_magic import magics

    newest = magics._loaded[id(shell)][1].keeper.ledger.entries[-1]
    assert (newest.stayed, newest.peak) == (0, before[0] + (1 << 30) + (16 << 20)), newest
    return " | ".join(out.getvalue().splitlines())


def check_who_made_a_storage() -> str:
    """A storage keeps its maker through cells that are not measured; what they put in a freed one's place has none."""
    shell = _shell()
    cell = (
        "%%gpumem --quiet\nkept = torch.ones(1024, 1024, device='cuda')\ngone = torch.ones(1024, 1024, device='cuda')"
    )
    assert shell.run_cell(cell, store_history=True).success
    address = shell.user_ns["gone"].data_ptr()
    later = "del gone\nother = torch.ones(1024, 1024, device='cuda')"
    assert shell.run_cell(later, store_history=True).success
    same = "in the same place" if shell.user_ns["other"].data_ptr() == address else "elsewhere"
    # A measured cell looks at everything that is there.
    assert shell.run_cell("%%gpumem --quiet\nz = kept * 2", store_history=True).success
    assert shell.run_cell("1;", store_history=True).success
    from gpumem_magic import magics
    from gpumem_magic.holders import who_holds

    origins = magics._loaded[id(shell)][1].keeper.origins(who_holds(shell, budget=20))
    assert ("cuda:0", address) not in origins, origins
    return f"{origins['cuda:0', shell.user_ns['kept'].data_ptr()]}; a later tensor lies {same}, and has no maker"


def check_what_no_python_object_holds() -> str:
    """%gpumem_who adds up to torch's counter: storages, and the blocks that only libraries know."""
    shell = _shell()
    cell = "%%gpumem --quiet\ny = net(torch.randn(256, 1024, device='cuda'))"
    assert shell.run_cell(cell, store_history=True).success
    from gpumem_magic import magics
    from gpumem_magic.holders import who_holds

    keeper = magics._loaded[id(shell)][1].keeper
    scan = who_holds(shell, budget=20)
    unowned = sum(item.bytes for item in keeper.unowned(scan) if item.device == "cuda:0")
    held = sum(-(-storage.size // 512) * 512 for storage in scan.storages if storage.device == "cuda:0")
    counted = shell.user_ns["torch"].cuda.memory_allocated()
    # Tensors that only the graph holds are found behind it; blocks may end in a remainder that was not split off.
    assert held + unowned <= counted <= 1.05 * (held + unowned) + (1 << 20), (held, unowned, counted)
    return f"{held:,} B held, {unowned:,} B unowned, {counted:,} B counted"


GRAPH_TREES = """%%gpumem --quiet
with torch.no_grad():
    for step in range(6):
        y = fast(x).clone()
"""


def _told(shell: Any, cell: str) -> str:
    """Run a cell and return what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert shell.run_cell(cell, store_history=True).success, cell
    return printed.getvalue()


def check_graph_trees() -> str:
    """What torch.compile's CUDA graphs keep is told by its holder or as what no tensor holds, and is no leak."""
    shell = _shell()
    _told(shell, "x = torch.randn(256, 1024, device='cuda')\nfast = torch.compile(net, mode='reduce-overhead')")
    _told(shell, GRAPH_TREES)
    assert _last().leaks == (), _last().sentence
    _told(shell, GRAPH_TREES)
    assert _last().leaks == (), _last().sentence
    from gpumem_magic.holders import HolderKind, who_holds

    scan = who_holds(shell, budget=20)
    large = [storage for storage in scan.storages if storage.device == "cuda:0" and storage.size >= 1 << 18]
    bad = {HolderKind.CYCLE, HolderKind.GRAPH_CYCLE}
    assert not [storage for storage in large if storage.holders[0].kind in bad], large
    who = _told(shell, "%gpumem_who --budget 20")
    unowned = [line.strip() for line in who.splitlines() if "no Python object holds" in line]
    cuda = shell.user_ns["torch"].cuda
    before = cuda.memory_reserved()
    _told(shell, "del fast, y")
    freed = _told(shell, "%gpumem_free --compiled")
    after = cuda.memory_reserved()
    assert after < before, (before, after, freed)
    others = sorted({storage.holders[0].path for storage in large if storage.holders[0].kind.name != "VARIABLE"})
    return f"{others} | {' | '.join(unowned)} | {' '.join(freed.split())}"


def check_workspaces_of_threads() -> str:
    """Threads that multiply get workspaces, which are counted as what they are."""
    import threading

    shell = _shell()
    torch = shell.user_ns["torch"]
    a = torch.randn(512, 512, device="cuda")
    leave, ready = threading.Event(), threading.Barrier(5)

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                a @ a
        torch.cuda.synchronize()
        ready.wait(60)
        leave.wait(60)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait(60)
    try:
        who = _told(shell, "%gpumem_who --budget 20")
    finally:
        leave.set()
        for thread in threads:
            thread.join()
    rows = [line.strip() for line in who.splitlines() if "workspaces of" in line]
    assert rows, who
    return " | ".join(rows)


def check_memory_that_only_a_capsule_shows() -> str:
    """A block whose tensor is gone is named by the object of another library that lies over it."""
    shell = _shell()
    _told(shell, "capsule = torch.utils.dlpack.to_dlpack(torch.ones(3 << 20, device='cuda'))")
    who = _told(shell, "%gpumem_who --budget 20")
    rows = [line.strip() for line in who.splitlines() if "capsule" in line]
    assert rows, who
    return " | ".join(rows)


_TOUCH = "import sys, torch; torch.zeros(1, device='cuda'); print('there', flush=True); sys.stdin.read()"


def check_contexts_of_workers() -> str:
    """Processes that only touched the GPU, as a data loader's workers do by accident, are counted beside the report."""
    shell = _shell()
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", _TOUCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for _ in range(2)
        ]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"there\n"
        assert shell.run_cell("%%gpumem --quiet\nkept = torch.ones(1 << 20, device='cuda')").success
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.close()
    notes = [note.text for note in _last().analysis.notes]
    told = [text for text in notes if "that this notebook started" in text]
    if not told and _last().devices[0].headline.process_used is None:
        raise Skip("the driver does not tell processes apart here")
    assert told, notes
    assert told[0].startswith("2 processes that this notebook started are on cuda:0 and hold "), told
    assert "each has little more than a CUDA context" in told[0], told
    return str(told[0])


def check_data_parallel() -> str:
    """What nn.DataParallel gathers on the first of two devices is told with its bytes and line."""
    import torch

    if torch.cuda.device_count() < 2:
        raise Skip("needs two devices")
    shell = _shell()
    wide = "wide = torch.nn.DataParallel(nn.Linear(256, 8192).cuda(), device_ids=[0, 1])"
    assert shell.run_cell(f"{wide}\nx = torch.ones(8192, 256, device='cuda')").success
    cell = "%%gpumem --quiet\nouts = []\nfor i in range(4):\n    outs.append(wide(x))"
    assert shell.run_cell(cell, store_history=True).success
    notes = [note.text for note in _last().analysis.notes]
    told = [text for text in notes if "nn.DataParallel gathers there" in text]
    assert len(told) == 1, notes
    # Four outputs of 8192 × 8192 numbers.
    assert "1.00 GiB at the peak (line 4 `outs.append(wide(x))`)" in told[0], told
    return str(told[0])


def check_memory_past_torch() -> str:
    """What the driver gave somebody beside torch's allocator in a cell is told by the report."""
    shell = _shell()
    shell.user_ns["allocate"] = importlib.import_module("process_checks").driver()
    cell = "%%gpumem --quiet\nlet_go = allocate(1 << 30)\nkept = torch.ones(1 << 20, device='cuda')"
    assert shell.run_cell(cell, store_history=True).success
    shell.user_ns["let_go"]()
    notes = [note.text for note in _last().analysis.notes]
    told = [text for text in notes if "past torch's allocator" in text]
    assert told, notes
    # The allocation, and the kernels that the first use of torch's own loads.
    took = re.search(r"took (1\.\d\d) GiB", told[0])
    assert took is not None, told
    assert float(took[1]) < 1.3, told
    return str(told[0])
