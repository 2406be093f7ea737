"""What memory is for, by storage: parameters, buffers, gradients, optimizer state, activations, inputs.

A role is seen, not guessed: a module says what its parameters and buffers are, an optimizer its state, a parameter its
gradient, the autograd graph what it saved for backward. `RoleBook` looks at the moments that tell (an optimizer's step,
the call of the outermost module, ``backward``) and, at the end, at everything alive. What it notes is addresses and
names; it keeps no tensor.

Looks in the middle of the cell cost the cell's own time: together they take at most `_SHARE` of it and a first few
milliseconds, which are for the first step of a training loop alone, and a look that is not affordable is left out. The
analysis then infers from the looks that were taken.
"""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING, Any

from gpumem_magic.holders.budget import Budget
from gpumem_magic.holders.census import census
from gpumem_magic.holders.edges import type_name
from gpumem_magic.holders.graph import GraphWalk
from gpumem_magic.holders.tensors import loaded_torch
from gpumem_magic.recording.module_paths import attribute, children, joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpumem_magic.holders.tensors import Torch
    from gpumem_magic.recording.model import Roles

__all__ = ["ROLES", "RoleBook"]

# In order of precedence: a parameter or a batch that the graph saved is still one.
ROLES = ("parameter", "buffer", "gradient", "optimizer", "input", "activation", "tensor")
_PARAMETER, _BUFFER, _GRADIENT, _OPTIMIZER, _INPUT, _ACTIVATION, _TENSOR = range(7)

_SHARE = 0.003  # of the cell's time
_FIRST_SECONDS = 0.002
# Looks of each kind that need not wait for their share: those of one step, of which its optimizer has two.
_FIRST = {"inputs": 1, "graph": 1, "optimizer": 2, "module": 1}
_LONGEST_SECONDS = 0.05  # one look in the middle
_END_SECONDS = 0.5  # the look after the code
_MOST_ROWS = 500_000
_NESTED = 3  # containers in containers that inputs come in


class RoleBook:
    """Notes what storages are for. Implements `gpumem_magic.recording.marks.calls.Looks`; nothing raises.

    Parameters
    ----------
    namespace
        Returns the notebook's variables, which give models their names.
    """

    def __init__(self, namespace: Callable[[], Mapping[str, object]]) -> None:
        self._namespace = namespace
        self._torch: Torch | None = loaded_torch()
        self._began = time.perf_counter()
        self._spent = 0.0
        self._first = dict(_FIRST)
        self.next_ns = 0  # before that time, a look would be turned down: see `Looks`
        self._names: dict[int | str, int] = {}
        self._devices: dict[str, int] = {}
        self._rows: list[tuple[int, int, int, int, int]] = []  # time, device, address, role, name
        self._seen: dict[tuple[str, int], tuple[int, int | str]] = {}
        self._module_names: dict[int, str] = {}
        self._parameter_names: dict[int, str] = {}
        self._complete = False
        # Modules may be called on several threads; a look that would wait for another one is left out.
        self._lock = threading.Lock()

    # What the watch over torch's calls asks for

    def inputs(self, *values: object) -> None:
        """See what the outermost module is called with."""

        def look(torch: Torch) -> None:
            for tensor in _tensors_in(torch, values, _NESTED):
                # What needs a gradient was computed from parameters: it belongs to the model.
                if not tensor.requires_grad:
                    self._note(torch, tensor, _INPUT)

        self._guarded(look, "inputs")

    def graph(self, outputs: object) -> None:
        """See what the graph behind these tensors saved."""

        def look(torch: Torch) -> None:
            walk = GraphWalk(torch, Budget(_LONGEST_SECONDS))
            for tensor in _tensors_in(torch, (outputs,), 2):
                self._saved(torch, walk, tensor)

        self._guarded(look, "graph")

    def optimizer(self, optimizer: object) -> None:
        """See an optimizer's parameters, gradients and state."""
        self._guarded(lambda torch: self._note_optimizer(torch, optimizer), "optimizer")

    def module(self, module: object) -> None:
        """See a module's parameters and gradients."""

        def look(torch: Torch) -> None:
            for _, parameter in _registered(module, "_parameters", torch):
                self._note_parameter(torch, parameter)

        self._guarded(look, "module")

    def _guarded(self, look: Callable[[Torch], None], kind: str) -> None:
        """Take a look when the budget allows it, and write down what it saw."""
        torch = self._torch or loaded_torch()
        self._torch = torch
        now = time.perf_counter()
        if torch is None or self._rest(now):
            return
        first = self._first.get(kind, 0)
        over = self._spent - _SHARE * (now - self._began)
        if not first and over > 0:
            self._wait(over)
            return
        self._first[kind] = max(0, first - 1)
        if len(self._rows) >= _MOST_ROWS or not self._lock.acquire(blocking=False):
            return
        try:
            moment = time.time_ns() // 1000
            try:
                with torch.undisturbed():
                    look(torch)
            except Exception:  # noqa: BLE001 - any object may be hostile; what was seen before it counts
                self._spent += _LONGEST_SECONDS
            self._flush(moment)
            after = time.perf_counter()
            self._spent += after - now
            self._rest(after)
        finally:
            self._lock.release()

    def _rest(self, now: float) -> bool:
        """Tell whether the budget is spent, and until when nobody need ask."""
        over = self._spent - _FIRST_SECONDS - _SHARE * (now - self._began)
        if over <= 0:
            return False
        self._wait(over)
        return True

    def _wait(self, over: float) -> None:
        """Say until when looks are turned down: to be asked at each call of a tiny step takes an eighth of it."""
        self.next_ns = time.time_ns() + int(over / _SHARE * 1e9)

    # The look after the code

    def end(self) -> None:
        """See everything that is alive, within half a second. The collector must not run meanwhile."""
        torch = self._torch = self._torch or loaded_torch()
        if torch is None or not self._lock.acquire(timeout=_END_SECONDS):
            return
        moment = time.time_ns() // 1000
        budget = Budget(_END_SECONDS)
        enabled = gc.isenabled()
        gc.disable()
        try:
            with torch.undisturbed():
                self._complete = self._everything(torch, budget)
        except Exception:  # noqa: BLE001 - any object may be hostile; what was seen before it counts
            self._complete = False
        finally:
            if enabled:
                gc.enable()
            self._flush(moment)
            self._lock.release()

    def _everything(self, torch: Torch, budget: Budget) -> bool:
        modules, optimizers, tensors = census.alive(torch)
        self._name_modules(modules, torch)
        for module in modules:
            prefix = self._module_names[id(module)]
            for name, parameter in _registered(module, "_parameters", torch, deep=False):
                self._parameter_names.setdefault(id(parameter), joined(prefix, name))
                self._note_parameter(torch, parameter)
            for name, buffer in _registered(module, "_buffers", torch, deep=False):
                self._note(torch, buffer, _BUFFER, joined(prefix, name))
            if budget.is_spent():
                return False
        for optimizer in optimizers:
            self._note_optimizer(torch, optimizer)
        walk = GraphWalk(torch, budget)
        complete = True
        for count, tensor in enumerate(tensors):
            try:
                if issubclass(type(tensor), torch.parameter_type):
                    self._note_parameter(torch, tensor)
                else:
                    self._note(torch, tensor, _TENSOR)
                    self._note_gradient(torch, tensor)
                    self._saved(torch, walk, tensor)
            except Exception:  # noqa: BLE001 - one broken tensor does not hide the others
                complete = False
            if count % 256 == 0 and budget.is_spent():
                return False
        return complete and not walk.cut

    def name_of(self, module: object) -> str | None:
        """Return the notebook's name of a module, as seen by `end`; None when it has none."""
        return self._module_names.get(id(module)) or self._variable_names().get(id(module))

    def _variable_names(self) -> dict[int, str]:
        return {
            id(value): name
            for name, value in reversed(list(self._namespace().items()))
            if isinstance(name, str) and not (name.startswith("_") and name.strip("_0123456789iho") == "")
        }

    def _name_modules(self, modules: list[Any], torch: Torch) -> None:
        variables = self._variable_names()
        below: dict[int, list[tuple[str, Any]]] = {}
        is_below: set[int] = set()
        for module in modules:
            items = [
                (str(name), child)
                for name, child in children(module).items()
                if issubclass(type(child), torch.module_type)
            ]
            below[id(module)] = items
            is_below.update(id(child) for _, child in items)
        named = self._module_names
        roots = [module for module in modules if id(module) not in is_below]
        # Variables first: what the user calls `model` may be a part of a wrapper that has no name.
        starts = [module for module in roots if id(module) in variables]
        starts += [module for module in roots if id(module) not in variables]
        starts += modules  # cycles have no root
        for start in starts:
            if id(start) in named:
                continue
            named[id(start)] = variables.get(id(start), type_name(type(start)))
            pending = [start]
            while pending:
                module = pending.pop()
                for name, child in below.get(id(module), ()):
                    if id(child) not in named:
                        named[id(child)] = joined(named[id(module)], name)
                        pending.append(child)

    # Notes

    def _note(self, torch: Torch, tensor: Any, role: int, name: int | str = "") -> None:
        key = torch.storage(tensor)
        if key is None:
            # A distributed tensor's memory is that of its local part.
            local = attribute(tensor, "_local_tensor")
            key = torch.storage(local) if torch.is_tensor(type(local)) else None
        if key is None:
            return
        place = (key.device, key.address)
        known = self._seen.get(place)
        if known is None or role < known[0] or (role == known[0] and not known[1]):
            self._seen[place] = (role, name)

    def _note_parameter(self, torch: Torch, parameter: Any) -> None:
        # Its name is known once all modules are: until then, its identity stands for it.
        self._note(torch, parameter, _PARAMETER, id(parameter))
        self._note_gradient(torch, parameter)

    def _note_gradient(self, torch: Torch, leaf: Any) -> None:
        gradient = leaf.grad if leaf.is_leaf else None
        if gradient is not None:
            self._note(torch, gradient, _GRADIENT, id(leaf))

    def _note_optimizer(self, torch: Torch, optimizer: Any) -> None:
        groups, states = attribute(optimizer, "param_groups"), attribute(optimizer, "state")
        for group in groups if isinstance(groups, list) else ():
            for parameter in group.get("params", ()) if isinstance(group, dict) else ():
                if torch.is_tensor(type(parameter)):
                    self._note_parameter(torch, parameter)
        for parameter, state in list(dict.items(states)) if isinstance(states, dict) else ():
            for tensor in _tensors_in(torch, (state,), 2):
                self._note(torch, tensor, _OPTIMIZER, id(parameter))

    def _saved(self, torch: Torch, walk: GraphWalk, tensor: Any) -> None:
        if torch.grad_fn(tensor) is None:
            return
        saved, _ = walk.behind(tensor)
        for item in saved:
            value: Any = item.tensor
            if item.name.endswith(".variable"):  # a leaf that waits for its gradient
                self._note_parameter(torch, value)
            else:
                self._note(torch, value, _ACTIVATION)

    def _flush(self, moment: int) -> None:
        for (device, address), (role, name) in self._seen.items():
            number = self._devices.setdefault(device, len(self._devices))
            label = self._names.setdefault(name, len(self._names)) if name else -1
            self._rows.append((moment, number, address, role, label))
        self._seen.clear()

    def result(self) -> Roles | None:
        """Return everything seen so far as columns; None when torch was never there."""
        if self._torch is None:
            return None
        import numpy as np

        from gpumem_magic.recording.model import Roles

        count = len(self._rows)
        moment, device, address, role, name = (
            np.fromiter((row[column] for row in self._rows), kind, count)
            for column, kind in enumerate((np.int64, np.int16, np.uint64, np.uint8, np.int32))
        )
        return Roles(
            time_us=moment,
            device=device,
            address=address,
            role=role,
            name=name,
            devices=tuple(self._devices),
            roles=ROLES,
            names=tuple(
                self._parameter_names.get(name, "") if type(name) is int else str(name) for name in self._names
            ),
            complete=self._complete,
        )


def _registered(module: Any, registry: str, torch: Torch, *, deep: bool = True) -> Iterator[tuple[str, Any]]:
    pending, seen = [module], set()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        entries = attribute(current, registry)
        for name, tensor in list(entries.items()) if isinstance(entries, dict) else ():
            if torch.is_tensor(type(tensor)):
                yield str(name), tensor
        if deep:
            pending += children(current).values()


def _tensors_in(torch: Torch, values: Iterable[object], depth: int) -> Iterator[Any]:
    """Yield the tensors of plain containers."""
    for value in values:
        if torch.is_tensor(type(value)):
            yield value
        elif depth and issubclass(type(value), (list, tuple)):
            # Not `iter(value)`: a class of the user's may have code of its own there.
            plain: Any = list if issubclass(type(value), list) else tuple
            yield from _tensors_in(torch, plain.__iter__(value), depth - 1)
        elif depth and issubclass(type(value), dict):
            yield from _tensors_in(torch, dict.values(value), depth - 1)  # type: ignore[arg-type]
