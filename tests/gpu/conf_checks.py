"""What the installed torch really does with settings strings, against what `gpumem_magic.allocator.conf` says.

Each string needs a process of its own: some abort inside ``import torch``.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys

from gpumem_magic.allocator.conf import from_environment, installed_torch
from gpumem_magic.allocator.conf.torch_side import torch_verdict

_PROBE = """
import json, os
import torch
torch.empty(1, device="cuda")
print("SETTINGS " + json.dumps(torch.cuda.memory._snapshot()["allocator_settings"]))
"""

STRINGS = (
    "",
    "expandable_segments:True",
    " expandable_segments : True , ",
    "expandable_segments:True\n",
    "max_split_size_mb:20",
    "max_split_size_mb:128MB",
    "max_split_size_mb:1GB",
    "max_split_size_mb:10",
    "max_split_size_mb=128",
    "max_split_size_mb,128",
    "max_split_size_mb",
    "caching_allocator",
    "nmalloc:3",
    "expandable_segments:true",
    "expandable_segments:1",
    "expandable_segments:True;garbage_collection_threshold:0.8",
    "expandable_segments:True garbage_collection_threshold:0.8",
    "expandable_segments:True:garbage_collection_threshold:0.8",
    "expandable_segments:True,,garbage_collection_threshold:0.8",
    "'expandable_segments:True'",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "garbage_collection_threshold:1.5",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:[256:1,512:2",
    "roundup_power2_divisions:[256:3]",
    "max_split_size_mb:64,max_split_size_mb:128",
    "large_segment_size_mb:64",
    "large_segment_size_mb:64,max_split_size_mb:32",
    "per_process_memory_fraction:0.5",
    "throw_on_cudamalloc_oom:True",
    "pinned_num_register_threads:3",
    "backend:pooled",
    "max_split_size_mb:128,expandable_segments:True",
    "max_split_size_mb:32,large_segment_size_mb:64",
    "max_split_size_mb:-1",
    "max_split_size_mb:18446744073709551616",
    "garbage_collection_threshold:0.8x",
    "garbage_collection_threshold:8e-1",
    "per_process_memory_fraction:80%",
    "roundup_power2_divisions:[256:1,]",
    "roundup_power2_divisions:[256]",
)


def outcome_of(environ: dict[str, str]) -> tuple[str, dict[str, object], str]:
    """Run torch under `environ`; return ("takes" | "raises" | "aborts", its settings, the last line of stderr)."""
    base = {key: value for key, value in os.environ.items() if "ALLOC_CONF" not in key}
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], env=base | environ, capture_output=True, text=True, check=False, timeout=120
    )
    last = (done.stderr.strip().splitlines() or [""])[-1]
    for line in done.stdout.splitlines():
        if line.startswith("SETTINGS "):
            return "takes", json.loads(line.removeprefix("SETTINGS ")), last
    return ("aborts" if done.returncode < 0 else "raises"), {}, last


def table() -> list[tuple[str, str, str, str]]:
    """Return (string, predicted, happened, torch's last line) for every string."""
    version = installed_torch()
    if version is None:
        raise AssertionError("torch has no package metadata here")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        happened = list(pool.map(lambda text: outcome_of({"PYTORCH_CUDA_ALLOC_CONF": text}), STRINGS))
    rows = []
    for text, (outcome, settings, last) in zip(STRINGS, happened, strict=True):
        predicted = torch_verdict(text, version.release).name.lower()
        shown = {key: settings.get(key) for key in ("max_split_size", "expandable_segments")} if settings else last
        rows.append((text, predicted, outcome, str(shown)))
    return rows


def check_conf_predictions() -> str:
    """Every string ends as `conf` says."""
    rows = table()
    lines = [f"{'' if row[1] == row[2] else '!! '}{row[0]!r}: said {row[1]}, was {row[2]} ({row[3]})" for row in rows]
    wrong = [line for line in lines if line.startswith("!!")]
    if wrong:
        raise AssertionError("\n".join(lines))
    return "\n".join(lines)


def check_conf_variable_that_wins() -> str:
    """With two variables set, the one that `from_environment` names is in force."""
    environ = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": "max_split_size_mb:128"}
    version = installed_torch()
    if version is None:
        raise AssertionError("torch has no package metadata here")
    outcome, settings, last = outcome_of(environ)
    said = from_environment(environ, version)
    wanted = int(said.text.split(":")[1]) << 20
    if outcome != "takes" or settings["max_split_size"] != wanted:
        raise AssertionError(f"said {said.variable} ({wanted}), was {settings.get('max_split_size')} {outcome} {last}")
    return f"{said.variable} wins on torch {version}"


def check_conf_in_a_session() -> str:
    """Which cell was too late, that the call which is named works, and what torch resets that it does not name."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output
    from shared import torch_with_cuda

    shell = InteractiveShell.instance()

    def run(cell: str) -> str:
        with capture_output() as captured:
            result = shell.run_cell(cell, store_history=True)
        assert result.success, cell
        return str(captured.stdout)

    for name in [name for name in os.environ if "ALLOC_CONF" in name]:
        del os.environ[name]
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:64"
    run("%load_ext gpumem_magic")
    run("import torch")
    assert "CUDA is not in use" in run("%gpumem_conf")
    run("torch.ones(1, device='cuda')")  # cell 4
    told = run("%gpumem_conf")
    assert "in force: max_split_size_mb:64, as PYTORCH_CUDA_ALLOC_CONF says" in told, told
    run("import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'roundup_power2_divisions:4'")  # cell 6
    told = run("%gpumem_conf")
    assert "was set in cell 6, and torch had read it when CUDA was first used, in cell 4" in told, told
    (line,) = [line for line in told.splitlines() if "or now, in this kernel:" in line]
    run(line.partition("kernel: ")[2])
    torch = torch_with_cuda()
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    assert settings["max_split_size"] == 64 << 20, settings
    assert settings["roundup_power2_divisions"]["1"] == 4, settings
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    after = torch.cuda.memory._snapshot()["allocator_settings"]
    assert after["max_split_size"] == -1, after
    assert after["roundup_power2_divisions"]["1"] in {0, 1}, after
    torch._C._accelerator_setAllocatorSettings("max_split_size_mb:64")
    assert torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"] is True
    return line.strip()
