"""Which of torch's own calls is under way: modules by their path, ``backward``, optimizer steps, a loader's batches.

``sys.monitoring`` (Python 3.12 and later) tells when five of torch's code objects begin and end: the one through which
every module is called (``torch.nn.Module.__call__``), the one that starts autograd's engine, the wrapper around
every optimizer's step, ``zero_grad`` and a loader's ``__next__``. Nothing is hooked on a model, no class is patched,
and ``torch.compile`` sees nothing of it. Only these code objects have events of their own; PY_UNWIND exists as a global
event only, and a checkpoint's early stop leaves modules by it.

A module's call and its end cost 1 µs together in a loop and up to twice that between operators, where caches are cold
(`tests/benchmarks/bench_events.py`): about 1 % of a launch-bound step of 9 ms with 50 modules. A third of it is reading
``self``, from a frame of three variables, because a frame's variables are copied before Python 3.13.

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
from gpumem_magic.recording.marks.call_tree import MAX_NODES, CallTree
from gpumem_magic.recording.marks.store import BLOCK, ThreadLog
from gpumem_magic.recording.model import Calls, Note
from gpumem_magic.recording.notes import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType

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


# Before 3.13, f_locals is a copy that lives as long as the frame and would keep what the call lets go of.
_IS_COPY = sys.version_info < (3, 13)


def _variable_reader() -> Callable[[FrameType, str], Any]:
    if not _IS_COPY:
        return lambda frame, name: frame.f_locals[name]
    read = ctypes.pythonapi.PyFrame_GetVar
    read.argtypes = (ctypes.py_object, ctypes.py_object)
    read.restype = ctypes.py_object
    return read


class _NoLooks:
    next_ns = sys.maxsize


class _Thread(ThreadLog):
    """A thread's marks, the innermost call under way, and how many were under way when the watch began."""

    __slots__ = ("outside", "top")

    def __init__(self, ident: int, root: Node) -> None:
        super().__init__(ident)
        self.top = root
        self.outside = 0


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
        self._threads: dict[int, _Thread] = {}
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
        _mon.register_callback(self._tool, events.PY_START, self._beginning())
        _mon.register_callback(self._tool, events.PY_RETURN, self._ending())
        _mon.register_callback(self._tool, events.PY_UNWIND, self._unwinding())
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
        """Return the marks once stopped; None when torch's calls could not be watched.

        Parameters
        ----------
        name_of
            How the notebook calls a module that is called by no other; None when it has no name for it.
        """
        if not self._code:
            return None
        return _build(list(self._threads.values()), lambda: self._tree.named(name_of))

    # Events

    # What is called for each module of a step: closures, because their names are found faster than attributes. Each
    # does the common case only, and leaves all others to a method: a thread, module or code that is new, a block of
    # marks that is full, and looks.

    def _beginning(self) -> Callable[[CodeType, int], None]:
        threads, root, module_code, is_copy = self._threads, self._tree.root, self._module_code, _IS_COPY
        looks, getframe, thread_of, now_ns, ident_of = self._looks, sys._getframe, get_ident, time_ns, id
        begins_slowly, look = self._begins, self._look

        def begins(code: CodeType, offset: int) -> None:
            del offset
            try:
                thread = threads[thread_of()]
                top = thread.top
                if code is module_code:
                    names = getframe(1).f_locals
                    node = top.kin[ident_of(names["self"])]
                    if is_copy:
                        names.clear()
                else:
                    node = top.kin[ident_of(code)]
                count = thread.count
                thread.times[count] = now = now_ns()
                thread.spots[count] = node.number
                # Last, so that an interrupt in between loses a mark and mixes up none.
                thread.count = count + 1
                thread.top = node
                # Most calls are of inner modules, which have nothing to look at.
                if (top is not root and code is module_code) or now < looks.next_ns:
                    return
                slowly = look
            except LookupError:
                slowly = begins_slowly
            try:  # noqa: SIM105 - suppress() is a call, for which there is no room
                slowly(code, getframe(1))
            except RecursionError:  # the cell's own, at its limit: the mark is lost
                pass

        return begins

    def _ending(self) -> Callable[[CodeType, int, object], None]:
        threads, thread_of, now_ns, ends_slowly = self._threads, get_ident, time_ns, self._ends

        def ends(code: CodeType, offset: int, value: object) -> None:
            del offset, value
            try:
                thread = threads[thread_of()]
                top = thread.top
                if top.code is code:
                    below: Any = top.below  # only the root has none
                    count = thread.count
                    thread.times[count] = now_ns()
                    thread.spots[count] = below.number
                    thread.count = count + 1
                    thread.top = below
                    return
            except LookupError:
                pass
            try:  # noqa: SIM105
                ends_slowly(code)
            except RecursionError:
                pass

        return ends

    def _unwinding(self) -> Callable[[CodeType, int, BaseException], None]:
        watched, getframe = self._watched, sys._getframe

        def unwinds(code: CodeType, offset: int, error: BaseException) -> None:
            del offset, error
            if id(code) in watched:  # a global event: mostly of somebody else's code
                try:  # noqa: SIM105
                    self._unwinds(code, getframe(1))
                except RecursionError:
                    pass

        return unwinds

    def _depth(self, frame: FrameType | None) -> int:
        """Return how many of torch's calls are under way in `frame` and its callers."""
        depth, watched = 0, self._watched
        while frame is not None:
            depth += id(frame.f_code) in watched
            frame = frame.f_back
        return depth

    def _unwinds(self, code: CodeType, frame: FrameType) -> None:
        """End a call by an exception, which may have come before the call was noted: an interrupt, the cell's limit."""
        thread = self._threads.get(get_ident())
        if thread is None:
            return
        noted, node = thread.outside, thread.top
        while node.below is not None:
            noted, node = noted + 1, node.below
        if noted > self._depth(frame.f_back):
            self._ends(code)

    def _begins(self, code: CodeType, frame: FrameType) -> None:
        try:
            ident = get_ident()
            thread = self._threads.get(ident)
            if thread is None:
                thread = self._threads.setdefault(ident, _Thread(ident, self._tree.root))
                thread.outside = self._depth(frame.f_back)
            top = thread.top
            if code is self._module_code:
                names = frame.f_locals
                module = names["self"]
                if _IS_COPY:
                    names.clear()
                node = top.kin.get(id(module)) or self._tree.of_module(top, code, module)
            else:
                node = self._tree.of_kind(top, code, self._code[code])
            self._write(thread, node.number)
            thread.top = node
            if time_ns() >= self._looks.next_ns and (code is not self._module_code or top is self._tree.root):
                self._look(code, frame)
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)

    def _ends(self, code: CodeType) -> None:
        try:
            thread = self._threads.get(get_ident())
            top = thread.top if thread is not None else self._tree.root
            while top.code is not code and top.below is not None:  # a greenlet's, or one whose end was not told
                top = top.below
            if thread is not None and top.below is not None:
                thread.top = top.below
                self._write(thread, top.below.number)
            elif thread is not None and thread.outside:
                thread.outside -= 1
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)

    def _write(self, thread: _Thread, number: int) -> None:
        if thread.count >= BLOCK:
            thread.flush(_MAX_MARKS // len(self._threads))
        count = thread.count
        thread.times[count] = time_ns()
        thread.spots[count] = number
        thread.count = count + 1

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


def _build(logs: Iterable[ThreadLog], name: Callable[[], list[tuple[tuple[str, str, str], ...]]]) -> Calls:
    import numpy as np

    logs = list(logs)
    columns = [log.columns() for log in logs]
    # After the marks, so that every mark of a thread that was in the middle of a call has its name.
    stacks = name()
    time_ns_ = np.concatenate([np.zeros(0, np.int64), *(times for times, _ in columns)])
    number = np.concatenate([np.zeros(0, np.int32), *(numbers for _, numbers in columns)])
    thread = np.repeat(np.array([log.ident for log in logs], np.int64), [len(times) for times, _ in columns])
    order = np.argsort(time_ns_, kind="stable")
    # Node 0 is "none under way": places begin at node 1.
    return Calls(
        time_us=time_ns_[order] // 1000,
        thread=thread[order],
        place=number[order].astype(np.int32) - 1,
        places=tuple(stacks[1:]),
        dropped=sum(log.dropped for log in logs),
        foreign=tuple(log.ident for log in logs if log.is_foreign),
    )
