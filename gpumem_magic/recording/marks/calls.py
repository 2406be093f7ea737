"""Which of torch's own calls is under way: modules by their path, ``backward``, optimizer steps, a loader's batches.

``sys.monitoring`` (Python 3.12 and later) tells when five of torch's code objects begin and end: the one through which
every module is called (``torch.nn.Module._call_impl``), the one that starts autograd's engine, the wrapper around
every optimizer's step, ``zero_grad`` and a loader's ``__next__``. Nothing is hooked on a model, no class is patched,
and ``torch.compile`` sees nothing of it. Only these code objects have events of their own; PY_UNWIND exists as a global
event only, and a checkpoint's early stop leaves modules by it. A module's call and its end cost about 1.5 µs together,
half of it for reading ``self``.

Beginnings are also the moments at which a role can be seen by storage: a step's optimizer names the gradients, what
the outermost module is called with are inputs, and the graph behind ``backward`` holds the activations. The looks are
the caller's (`Looks`); frames and modules are never held.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
import weakref
from _thread import get_ident
from time import time_ns
from typing import TYPE_CHECKING, Any, Protocol

from gpumem_magic.recording.marks.store import ThreadLog
from gpumem_magic.recording.model import Calls, Note
from gpumem_magic.recording.module_paths import relative_path
from gpumem_magic.recording.notes import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType

__all__ = ["NO_CALLS", "CallMarks", "Looks", "watched_code"]

NO_CALLS = "module paths need Python 3.12"

_mon: Any = getattr(sys, "monitoring", None)
_TOOL = "gpumem_magic calls"
_FREE_IDS = (4, 3)  # lines take 3 first
_MAX_NODES = 65_536
_MAX_MARKS = 4_000_000  # 48 MB; a launch-bound step of 9 ms writes about 114


class Looks(Protocol):
    """Sees what storages are for. May be slow only within its own budget; must not raise."""

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

    add(torch.nn.Module._call_impl, "module")
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
    if sys.version_info >= (3, 13):
        return lambda frame, name: frame.f_locals[name]
    # Before 3.13, f_locals is a copy that lives as long as the frame and would keep what the call lets go of.
    read = ctypes.pythonapi.PyFrame_GetVar
    read.argtypes = (ctypes.py_object, ctypes.py_object)
    read.restype = ctypes.py_object
    return read


class _Node:
    """A call and its callers: a node of the tree of all stacks of calls.

    A module is named by `tail`, its path below the module of `origin`; `origin` is the node itself where no caller's
    module holds it.
    """

    __slots__ = ("below", "kin", "kind", "number", "origin", "ref", "tail", "type_name")

    def __init__(self, number: int, below: _Node | None, kind: str, type_name: str = "") -> None:
        self.number = number
        self.below = below
        self.kind = kind
        self.type_name = type_name
        self.origin = self
        self.tail = ""
        self.ref: Callable[[], Any] | None = None
        self.kin: dict[Any, _Node] = {}


class _Thread(ThreadLog):
    """A thread's marks and its stack of calls: entries are (id of the code object, node)."""

    __slots__ = ("stack",)

    def __init__(self, ident: int, root: _Node) -> None:
        super().__init__(ident)
        self.stack: list[tuple[int, _Node]] = [(0, root)]


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
        self._looks = looks
        self._root = _Node(0, None, "")
        self._nodes = [self._root]
        self._threads: dict[int, _Thread] = {}
        self._kinds: dict[int, str] = {}
        self._code: dict[CodeType, str] = {}
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
        self._kinds = {id(code): kind for code, kind in self._code.items()}
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
        _mon.register_callback(self._tool, events.PY_START, self._on_start)
        _mon.register_callback(self._tool, events.PY_RETURN, self._on_leave)
        _mon.register_callback(self._tool, events.PY_UNWIND, self._on_leave)
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
        text = f"module paths end early ({type(error).__name__}: {one_line(error)}); the cell itself is not affected"
        self.notes.append(Note("warning", text))
        try:
            self._release()
        except Exception as second:  # noqa: BLE001 - a failing interpreter hook must not fail the cell
            self.notes.append(Note("warning", f"sys.monitoring could not be released: {one_line(second)}"))

    def stop(self) -> None:
        """Stop watching and leave nothing hooked. A second call does nothing."""
        try:
            self._release()
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)

    def result(self, name_of: Callable[[object], str | None] = lambda _module: None) -> Calls | None:
        """Return the marks once stopped; None when torch's calls could not be watched.

        Parameters
        ----------
        name_of
            How the notebook calls a module that is called by no other; None when it has no name for it.
        """
        if not self._code:
            return None
        return _build(list(self._threads.values()), self._named(name_of))

    # Events

    def _on_start(self, code: CodeType, offset: int) -> None:
        del offset
        try:
            key = id(code)
            kind = self._kinds[key]
            ident = get_ident()
            thread = self._threads.get(ident)
            if thread is None:
                thread = self._threads.setdefault(ident, _Thread(ident, self._root))
            stack = thread.stack
            top = stack[-1][1]
            if kind == "module":
                module = self._variable(sys._getframe(1), "self")
                node = top.kin.get(id(module))
                if node is None or node.ref is None or node.ref() is not module:
                    node = self._module_node(top, module)
            else:
                node = top.kin.get(kind) or self._add(top, kind, kind)
            stack.append((key, node))
            count = thread.count
            try:
                thread.times[count] = time_ns()
                thread.spots[count] = node.number
                thread.count = count + 1
            except IndexError:
                self._write_after_flush(thread, node.number)
            if (kind != "module" or top is self._root) and self._looks is not None:
                self._look(self._looks, kind, sys._getframe(1))
        except RecursionError:  # the cell's own, at its limit: the mark is lost
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)

    def _on_leave(self, code: CodeType, offset: int, value: object) -> None:
        del offset, value
        key = id(code)
        if key not in self._kinds:  # the global event of somebody else's code
            return
        try:
            thread = self._threads.get(get_ident())
            if thread is None:
                return  # began before the watch
            stack = thread.stack
            if stack[-1][0] != key:
                if not any(entry[0] == key for entry in stack):
                    return
                while stack[-1][0] != key:  # a greenlet's, or one whose end was not told
                    stack.pop()
            stack.pop()
            count = thread.count
            try:
                thread.times[count] = time_ns()
                thread.spots[count] = stack[-1][1].number
                thread.count = count + 1
            except IndexError:
                self._write_after_flush(thread, stack[-1][1].number)
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001 - becomes a note
            self._fail(error)

    def _write_after_flush(self, thread: _Thread, number: int) -> None:
        thread.flush(_MAX_MARKS // len(self._threads))
        thread.times[0] = time_ns()
        thread.spots[0] = number
        thread.count = 1

    def _look(self, looks: Looks, kind: str, frame: FrameType) -> None:
        read = self._variable
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

    # The tree of calls

    def _module_node(self, top: _Node, module: Any) -> _Node:
        node = self._add(top, id(module), "module", type(module).__name__)
        if node is top:
            return top
        node.ref = weakref.ref(module)
        caller: _Node | None = top
        while caller is not None:
            parent = caller.ref() if caller.ref is not None else None
            tail = None if parent is None else relative_path(parent, module)
            if tail is not None:
                node.origin, node.tail = caller.origin, caller.tail + tail
                break
            caller = caller.below
        return node

    def _add(self, top: _Node, key: Any, kind: str, type_name: str = "") -> _Node:
        if len(self._nodes) >= _MAX_NODES:
            return top
        node = top.kin[key] = _Node(len(self._nodes), top, kind, type_name)
        self._nodes.append(node)
        return node

    def _named(self, name_of: Callable[[object], str | None]) -> list[tuple[tuple[str, str, str], ...]]:
        """Return each node's stack, innermost first, with the notebook's names at the beginning of paths."""
        origins: dict[int, str] = {}
        stacks: list[tuple[tuple[str, str, str], ...]] = [()]
        for node in self._nodes[1:]:
            name = node.kind
            if node.kind == "module":
                origin = node.origin
                if origin.number not in origins:
                    module = origin.ref() if origin.ref is not None else None
                    known = None if module is None else name_of(module)
                    origins[origin.number] = known or origin.type_name
                name = origins[origin.number] + node.tail
            below = stacks[node.below.number] if node.below is not None else ()
            stacks.append(((node.kind, name, node.type_name), *below))
        return stacks


def _build(logs: Iterable[ThreadLog], stacks: list[tuple[tuple[str, str, str], ...]]) -> Calls:
    import numpy as np

    logs = list(logs)
    columns = [log.columns() for log in logs]
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
