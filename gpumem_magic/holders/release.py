"""Give back what the notebook keeps by accident, step by step, and say what each step freed, measured."""

from __future__ import annotations

import gc
import re
import sys
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumem_magic._errors import BadUsageError
from gpumem_magic._format import format_bytes
from gpumem_magic.holders.errors import formatters, links, traced_frames
from gpumem_magic.holders.model import HolderKind
from gpumem_magic.holders.scan import who_holds
from gpumem_magic.holders.tensors import live_tensors, loaded_torch
from gpumem_magic.recording.notes import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpumem_magic.holders.tensors import Torch

__all__ = ["Freed", "forget_errors", "in_steps", "kept_by_outputs", "release", "release_text"]

_OUTPUT = re.compile(r"_{1,3}|_\d+")
_CACHE = "torch's free cache"
_GLANCE_SECONDS = 0.5


class Freed(NamedTuple):
    """What one step gave back, in bytes by device: tensors that died, and memory returned to the driver.

    `failed` is the error that ended the step, or None.
    """

    step: str
    tensors: dict[str, int]
    returned: dict[str, int]
    failed: str | None = None


def release(
    shell: Any, *, outputs: bool = False, variables: Iterable[str] = (), compiled: bool = False
) -> tuple[Freed, ...]:
    """Release what is kept by accident; touch no device that has no context.

    Parameters
    ----------
    shell
        IPython's shell.
    outputs
        Also forget ``Out`` and ``_``: they may be wanted.
    variables
        Names to delete from the notebook.
    compiled
        Also forget what torch.compile made: it is made again, slowly, when it is called.

    Raises
    ------
    BadUsageError
        When a name is not defined; nothing was released then.
    """
    names = list(variables)
    unknown = [name for name in names if name not in shell.user_ns]
    if unknown:
        raise BadUsageError(f"not defined in this notebook: {', '.join(unknown)}; nothing was released")
    steps: list[tuple[str, Callable[[], None]]] = [
        # First, so that what is garbage already is not counted as freed by another step.
        ("reference cycles", lambda: None),
        ("last error", lambda: forget_errors(shell)),
    ]
    if outputs:
        steps.append(("output history", lambda: _forget_outputs(shell)))
    if compiled:
        steps.append(("compile cache", _forget_compiled))
    if names:
        steps.append((f"variables {', '.join(names)}", lambda: _forget_variables(shell, names)))
    return in_steps(steps)


def in_steps(steps: Iterable[tuple[str, Callable[[], None]]]) -> tuple[Freed, ...]:
    """Take each step, then give torch's free cache back, and measure what each of them freed.

    A step may fail, as on a device after a kernel's assertion; the others are taken all the same.
    """
    torch = loaded_torch()
    done = []
    before = _measure(torch)
    last = [] if torch is None else [(_CACHE, lambda: _empty_cache(torch))]
    for name, step in [*steps, *last]:
        failed = None
        try:
            step()
        except RuntimeError as error:
            failed = one_line(error)
        # Frames, modules and graphs sit in cycles of their own: what a step let go dies with a collection.
        if name != _CACHE:
            gc.collect()
        after = _measure(torch)
        done.append(Freed(name, _difference(before[0], after[0]), _difference(before[1], after[1]), failed))
        before = after
    return tuple(done)


def _difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {device: size - after.get(device, 0) for device, size in before.items() if size > after.get(device, 0)}


def _contexts(torch: Torch) -> list[int]:
    """Return the CUDA devices that this process has a context on."""
    cuda = torch.module.cuda
    if not cuda.is_initialized():
        return []
    return [index for index in range(cuda.device_count()) if cuda.memory_reserved(index) > 0]


def _measure(torch: Torch | None) -> tuple[dict[str, int], dict[str, int]]:
    """Return bytes held by tensors and bytes reserved, by device."""
    if torch is None:
        return {}, {}
    cuda = torch.module.cuda
    try:
        contexts = _contexts(torch)
    except RuntimeError:  # a pluggable allocator keeps no statistics, as the step that gives its cache back then says
        contexts = []
    held = {f"cuda:{index}": int(cuda.memory_allocated(index)) for index in contexts}
    reserved = {f"cuda:{index}": int(cuda.memory_reserved(index)) for index in contexts}
    with torch.undisturbed():
        storages = {torch.storage(tensor) for tensor in live_tensors(torch)}
    on_cpu = sum(key.size for key in storages if key is not None and key.device == "cpu")
    if on_cpu:
        held["cpu"] = on_cpu
    return held, reserved


def forget_errors(shell: Any) -> None:
    """Let go of the last error in all its holders: the interpreter's, IPython's, the debugger's."""
    known = formatters(shell)
    tracebacks = [getattr(sys, "last_traceback", None), *(getattr(item, "tb", None) for item in known)]
    ended = getattr(shell, "last_execution_result", None)
    errors = [getattr(sys, name, None) for name in ("last_exc", "last_value")]
    errors += [getattr(ended, name, None) for name in ("error_in_exec", "error_before_exec")]
    chain = list(links(*errors))
    tracebacks += [error.__traceback__ for error in chain]
    for name in ("last_exc", "last_value", "last_type", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    for formatter in known:
        formatter.tb = None
        if getattr(formatter, "pdb", None) is not None:
            formatter.pdb = None
        for name in ("etype", "evalue", "_value"):
            if hasattr(formatter, name):
                setattr(formatter, name, None)
    for item in tracebacks:
        if item is not None:
            # Whoever else keeps the traceback keeps empty frames. Running frames are passed over by clear_frames.
            traceback.clear_frames(item)
    _forget_debuggers()
    for error in chain:
        # Python 3.11 leaves in a cleared frame what was once shown of its locals.
        error.__traceback__ = None


def _forget_debuggers() -> None:
    """Let go of debuggers that were left."""
    pdb = getattr(sys.modules.get("pdb"), "Pdb", None)
    if getattr(pdb, "_last_pdb_instance", None) is not None:
        pdb._last_pdb_instance = None  # type: ignore[union-attr]  # noqa: SLF001 - what Python 3.14 keeps
    if sys.gettrace() is None:  # else it is being used
        for frame, _ in traced_frames():
            frame.f_trace = None


def _forget_outputs(shell: Any) -> None:
    for space in (shell.user_ns, getattr(shell, "user_ns_hidden", None) or {}):
        history = space.get("_oh")
        if isinstance(history, dict):
            history.clear()
        for name in [name for name in space if isinstance(name, str) and _OUTPUT.fullmatch(name)]:
            if name in {"_", "__", "___"}:
                space[name] = ""
            else:
                del space[name]
    hook = getattr(shell, "displayhook", None)
    for name in ("_", "__", "___"):
        if hasattr(hook, name):
            setattr(hook, name, "")


def kept_by_outputs(shell: Any) -> dict[str, int]:
    """Return the bytes by device that the output history alone keeps, of all that the notebook's names reach."""
    found: dict[str, int] = {}
    for storage in who_holds(shell, budget=_GLANCE_SECONDS, quick=True).storages:
        if storage.holders[0].kind is HolderKind.OUTPUT:
            found[storage.device] = found.get(storage.device, 0) + storage.size
    return found


def _forget_variables(shell: Any, names: list[str]) -> None:
    for name in names:
        shell.user_ns.pop(name, None)


def _forget_compiled() -> None:
    """Reset torch.compile, where it was used; what inductor froze into its modules is not part of that."""
    # The pools of captured graphs first: a compiled function that something still refers to would keep them.
    reset = getattr(sys.modules.get("torch._inductor.cudagraph_trees"), "reset_cudagraph_trees", None)
    if reset is not None:
        reset()
    dynamo, cache = sys.modules.get("torch._dynamo"), sys.modules.get("torch._inductor.codecache")
    if dynamo is not None:
        dynamo.reset()
    clear = getattr(getattr(cache, "PyCodeCache", None), "cache_clear", None)
    if clear is not None:
        clear()
    for name in [name for name in sys.modules if name.startswith("torch._inductor.runtime.compile_tasks.")]:
        del sys.modules[name]


def _empty_cache(torch: Torch) -> None:
    cuda = torch.module.cuda
    for index in _contexts(torch):
        # Under the device's own guard: the call would otherwise make a context on the current device.
        with cuda.device(index):
            cuda.empty_cache()


def release_text(steps: Iterable[Freed], left: Mapping[str, int] | None = None) -> str:
    """Write what was freed in all, and by each step, one line each.

    Parameters
    ----------
    steps
        What was done.
    left
        What the output history still keeps, by device, where that was not asked for.
    """
    lines, idle, more = [], [], []
    total: dict[str, int] = {}
    back: dict[str, int] = {}
    for step in steps:
        parts = [f"{format_bytes(size)} of tensors on {device}" for device, size in step.tensors.items()]
        parts += [f"{format_bytes(size)} back to the driver on {device}" for device, size in step.returned.items()]
        for sums, sizes in ((total, step.tensors), (back, step.returned)):
            for device, size in sizes.items():
                sums[device] = sums.get(device, 0) + size
        if parts:
            lines.append(f"  {step.step}: {', '.join(parts)}")
        elif step.failed is None:
            idle.append(step.step)
        if step.failed is not None:
            more.append(f"  ! {step.step}: {step.failed}")
    wanted = [f"{format_bytes(size)} on {device}" for device, size in (left or {}).items()]
    if wanted:
        more.append(
            f"  left in Out and _, as it may be wanted: {', '.join(wanted)}; %gpumem_free --out gives that back too"
        )
    freed = [f"{format_bytes(size)} of tensors on {device}" for device, size in total.items()]
    freed += [f"{format_bytes(size)} back to the driver on {device}" for device, size in back.items()]
    if not freed:
        first = (
            f"gpumem: nothing to release: {_list(idle, 'and')} hold no memory; %gpumem_who names what holds the rest"
        )
        return "\n".join([first, *more])
    if idle:
        lines.append(f"  nothing in {_list(idle, 'or')}")
    return "\n".join([f"gpumem: released {', '.join(freed)}", *lines, *more])


def _list(items: list[str], last: str) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"
