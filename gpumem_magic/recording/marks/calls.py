"""Which of torch's own calls is under way: modules by their path, ``backward``, optimizer steps, a loader's batches.

``sys.monitoring`` (Python 3.12 and later) tells when five of torch's code objects begin and end: the one through which
every module is called (``torch.nn.Module.__call__``), the one that starts autograd's engine, the wrapper around
every optimizer's step, ``zero_grad`` and a loader's ``__next__``. Nothing is hooked on a model, no class is patched,
and ``torch.compile`` sees nothing of it. Only these code objects have events of their own; PY_UNWIND exists as a global
event only, and a checkpoint's early stop leaves modules by it.

A module's call and its end cost 0.27 µs together where they are written down in C, and 0.94 µs in Python; up to twice
that between operators, where caches are cold (`tests/benchmarks/bench_events.py`). A third of it is reading ``self``,
in Python from a frame of three variables, because a frame's variables are copied before Python 3.13.

Beginnings are also the moments at which a role can be seen by storage: a step's optimizer names the gradients, what
the outermost module is called with are inputs, and the graph behind ``backward`` holds the activations. The looks are
the caller's (`Looks`); frames and modules are never held.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from _thread import get_ident
from time import time_ns
from typing import TYPE_CHECKING, Any, Protocol

from gpumem_magic._format import format_count
from gpumem_magic.recording.marks.call_log import IS_COPY, Slow, make_call_log
from gpumem_magic.recording.marks.call_tree import MAX_NODES, CallTree
from gpumem_magic.recording.marks.store import is_foreign_thread
from gpumem_magic.recording.model import Calls, Note
from gpumem_magic.recording.notes import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from types import CodeType, FrameType

    from gpumem_magic.recording.marks.call_log import CallLog, Written
    from gpumem_magic.recording.marks.call_tree import Node

__all__ = ["NO_CALLS", "CallMarks", "Looks", "watched_code"]

NO_CALLS = "module paths need Python 3.12"

_mon: Any = getattr(sys, "monitoring", None)
_TOOL = "gpumem_magic calls"
_FREE_IDS = (4, 3)  # lines take 3 first
_MAX_MARKS = 4_000_000  # 48 MB; a launch-bound step of 9 ms writes about 114


class Looks(Protocol):
    """Sees what storages are for. May be slow only within its own budget; must not raise."""

    @property
    def next_ns(self) -> int:
        """Unix nanoseconds before which a look would be turned down, so that it need not be asked for."""

    def inputs(self, *values: object) -> None:
        """See what the outermost module is called with."""

    def graph(self, outputs: object) -> None:
        """See what the graph behind these tensors saved."""

    def optimizer(self, optimizer: object) -> None:
        """See an optimizer's parameters, gradients and state."""

    def module(self, module: object) -> None:
        """See a module's parameters and gradients."""


def watched_code(torch: Any) -> dict[CodeType, str]:
    """Return the code objects of this torch that are worth an event, and what each stands for."""
    found: dict[CodeType, str] = {}

    def add(function: Any, kind: str) -> None:
        code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
        if code is not None:
            found[code] = kind

    # __call__, whose variables are cheap to read, because it has only `self`, `args` and `kwargs`. Not looked up under
    # that name, which tracers patch.
    add(getattr(torch.nn.Module, "_wrapped_call_impl", torch.nn.Module._call_impl), "module")
    engine = getattr(getattr(torch.autograd, "graph", None), "_engine_run_backward", None)
    if engine is not None:
        add(engine, "backward")
    else:  # before torch 2.3
        add(torch.autograd.backward, "backward")
        add(torch.autograd.grad, "backward")
    optimizer = torch.optim.Optimizer
    hooked = getattr(inspect.unwrap(optimizer.profile_hook_step), "__code__", None)
    for constant in hooked.co_consts if hooked is not None else ():
        if inspect.iscode(constant) and constant.co_name == "wrapper":
            found[constant] = "step"
    add(getattr(optimizer, "zero_grad", None), "zero_grad")
    add(getattr(torch.nn.Module, "zero_grad", None), "zero_grad")
    loader = sys.modules.get("torch.utils.data.dataloader")
    add(getattr(getattr(loader, "_BaseDataLoaderIter", None), "__next__", None), "loader")
    return found


def _variable_reader() -> Callable[[FrameType, str], Any]:
    if not IS_COPY:
        return lambda frame, name: frame.f_locals[name]
    read = ctypes.pythonapi.PyFrame_GetVar
    read.argtypes = (ctypes.py_object, ctypes.py_object)
    read.restype = ctypes.py_object
    return read


class _NoLooks:
    next_ns = sys.maxsize


class CallMarks:
    """A running watch over torch's own calls. No method raises; failures become `notes`.

    Parameters
    ----------
    torch
        The imported module.
    looks
        Sees roles at the moments that tell them, or None.
    """

    def __init__(self, torch: Any, looks: Looks | None = None) -> None:
        self.notes: list[Note] = []
        self._looks: Any = looks if looks is not None else _NoLooks
        self._tree = CallTree()
        self._log: CallLog | None = None
        self._outside: dict[int, int] = {}  # by thread, how many calls were under way when the watch began
        self._foreign: set[int] = set()
        self._code: dict[CodeType, str] = {}
        self._watched: set[int] = set()
        self._tool: int | None = None
        if _mon is None:
            self.notes.append(Note("info", NO_CALLS))
            return
        try:
            self._begin(torch)
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)

    # Beginning and end

    def _begin(self, torch: Any) -> None:
        self._code = watched_code(torch)
        self._module_code = next(code for code, kind in self._code.items() if kind == "module")
        self._variable = _variable_reader()
        for tool in _FREE_IDS:
            if _mon.get_tool(tool) is None:
                _mon.use_tool_id(tool, _TOOL)
                self._tool = tool
                break
        if self._tool is None:
            self._code = {}
            names = " and ".join(str(_mon.get_tool(tool)) for tool in _FREE_IDS)
            text = f"module paths are unknown: {names} hold sys.monitoring's free tool ids; end one of them"
            self.notes.append(Note("info", text))
            return
        events = _mon.events
        self._watched = {id(code) for code in self._code}
        slow = Slow(self._begins, self._ends, self._unwinds, self._look)
        self._log = log = make_call_log(
            self._tree.root, self._module_code, tuple(self._code), looks=self._looks, slow=slow, limit=_MAX_MARKS
        )
        _mon.register_callback(self._tool, events.PY_START, log.on_begin)
        _mon.register_callback(self._tool, events.PY_RETURN, log.on_end)
        _mon.register_callback(self._tool, events.PY_UNWIND, log.on_unwind)
        for code in self._code:
            _mon.set_local_events(self._tool, code, events.PY_START | events.PY_RETURN)
        _mon.set_events(self._tool, events.PY_UNWIND)

    def _release(self) -> None:
        tool, self._tool = self._tool, None
        if tool is None:
            return
        events = _mon.events
        _mon.set_events(tool, 0)
        for code in self._code:
            _mon.set_local_events(tool, code, 0)
        for event in (events.PY_START, events.PY_RETURN, events.PY_UNWIND):
            _mon.register_callback(tool, event, None)
        _mon.free_tool_id(tool)

    def _fail(self, error: Exception) -> None:
        text = f"module paths end early ({one_line(error)}); the cell itself is not affected"
        self.notes.append(Note("warning", text))
        try:
            self._release()
        except Exception as second:  # noqa: BLE001 - a failing interpreter hook must not fail the cell
            self.notes.append(Note("warning", f"sys.monitoring could not be released: {one_line(second)}"))

    def stop(self) -> None:
        """Stop watching and leave nothing hooked. A second call does nothing."""
        was_watching = self._tool is not None
        try:
            self._release()
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)
        if was_watching and self._tree.is_full:
            text = f"more than {format_count(MAX_NODES)} different calls of modules: the others count as their caller's"
            self.notes.append(Note("warning", text))

    def result(self, name_of: Callable[[object], str | None] = lambda _module: None) -> Calls | None:
        """Return the marks once stopped; None when torch's calls could not be watched, and at a second time.

        Parameters
        ----------
        name_of
            How the notebook calls a module that is called by no other; None when it has no name for it.
        """
        log, self._log = self._log, None  # which calls this: tens of megabytes would be left to the collector
        if log is None:
            return None
        return _build(log.written(), self._foreign, lambda: self._tree.named(name_of))

    # Events

    def _depth(self, frame: FrameType | None) -> int:
        """Return how many of torch's calls are under way in `frame` and its callers."""
        depth, watched = 0, self._watched
        while frame is not None:
            depth += id(frame.f_code) in watched
            frame = frame.f_back
        return depth

    def _unwinds(self, code: CodeType, frame: FrameType) -> None:
        """End a call by an exception, which may have come before the call was noted: an interrupt, the cell's limit."""
        ident = get_ident()
        node = self._top(ident)
        if node is None:
            return
        noted = self._outside.get(ident, 0)
        while node.below is not None:
            noted, node = noted + 1, node.below
        if noted > self._depth(frame.f_back):
            self._ends(code, frame)

    def _top(self, ident: int) -> Node | None:
        return self._log.top(ident) if self._log is not None else None

    def _move(self, ident: int, node: Node) -> None:
        if self._log is not None:
            self._log.move(ident, node)

    def _begins(self, code: CodeType, frame: FrameType) -> None:
        try:
            ident = get_ident()
            top = self._top(ident)
            if top is None:
                top = self._tree.root
                self._outside[ident] = self._depth(frame.f_back)
                if is_foreign_thread(ident):
                    self._foreign.add(ident)
            if code is self._module_code:
                names = frame.f_locals
                module = names["self"]
                if IS_COPY:
                    names.clear()
                node = top.kin.get(id(module)) or self._tree.of_module(top, code, module)
            else:
                node = self._tree.of_kind(top, code, self._code[code])
            self._move(ident, node)
            if time_ns() >= self._looks.next_ns and (code is not self._module_code or top is self._tree.root):
                self._look(code, frame)
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)

    def _ends(self, code: CodeType, frame: FrameType) -> None:
        del frame
        try:
            ident = get_ident()
            top = self._top(ident)
            while top is not None and top.code is not code:  # a greenlet's, or one whose end was not told
                top = top.below
            if top is not None and top.below is not None:
                self._move(ident, top.below)
            elif self._outside.get(ident):
                self._outside[ident] -= 1
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)

    def _look(self, code: CodeType, frame: FrameType) -> None:
        """Look at what a call has."""
        kind, looks, read = self._code[code], self._looks, self._variable
        try:
            if kind == "module":
                looks.inputs(read(frame, "args"), read(frame, "kwargs"))
            elif kind == "backward":
                looks.graph(read(frame, frame.f_code.co_varnames[0]))  # t_outputs, tensors or outputs
            elif kind == "step":
                looks.optimizer(read(frame, "args")[0])
            elif kind == "zero_grad":
                owner = read(frame, "self")
                if hasattr(type(owner), "add_param_group"):
                    looks.optimizer(owner)
                else:
                    looks.module(owner)
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)


def _build(
    logs: Iterable[Written], foreign: Collection[int], name: Callable[[], list[tuple[tuple[str, str, str], ...]]]
) -> Calls:
    import numpy as np

    logs = list(logs)
    # After the marks, so that every mark of a thread that was in the middle of a call has its name.
    stacks = name()
    time_ns_ = np.concatenate([np.zeros(0, np.int64), *(log.time_ns for log in logs)])
    number = np.concatenate([np.zeros(0, np.int64), *(log.number for log in logs)])
    thread = np.repeat(np.array([log.ident for log in logs], np.int64), [len(log.time_ns) for log in logs])
    order = np.argsort(time_ns_, kind="stable")
    # Node 0 is "none under way": places begin at node 1.
    return Calls(
        time_us=time_ns_[order] // 1000,
        thread=thread[order],
        place=number[order].astype(np.int32) - 1,
        places=tuple(stacks[1:]),
        dropped=sum(log.dropped for log in logs),
        foreign=tuple(log.ident for log in logs if log.ident in foreign),
    )
