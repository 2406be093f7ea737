"""Who holds this memory: every live tensor storage, and how the notebook reaches it."""

from __future__ import annotations

import bisect
import gc
import time
import types
import weakref
from typing import TYPE_CHECKING, Any

from gpumem_magic.holders.budget import Budget
from gpumem_magic.holders.cycles import climb, closure_above
from gpumem_magic.holders.edges import describe_chain, module_name, own_attributes, type_name
from gpumem_magic.holders.errors import error_roots
from gpumem_magic.holders.graph import GraphWalk
from gpumem_magic.holders.hooks import hook_names
from gpumem_magic.holders.model import Category, Holder, HolderKind, HolderScan, Storage
from gpumem_magic.holders.models import FormerClasses, live_models
from gpumem_magic.holders.roots import COMPILERS, Root, function_roots, module_roots, namespace_roots
from gpumem_magic.holders.running import machinery_roots, running_roots, shared_machinery, waiting_roots
from gpumem_magic.holders.tensors import form, live_tensors, loaded_torch
from gpumem_magic.holders.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gpumem_magic.holders.cycles import Climb
    from gpumem_magic.holders.tensors import StorageKey, Torch

__all__ = ["who_holds"]

# Walking every imported library takes most of a second in a process with torch: not for a rest of a few constants.
_MODULE_SHARE = 0.01

_CHECK_CLOCK_EVERY = 256
# Of the budget; what it reached is named in the rest.
_WALK_SHARE = 0.7
# What is left of the unnamed bytes below this share is not looked for.
_CRUMBS = 0.001
# Each asks the collector about all objects of the process, some 30 ms.
_MOST_GRAPH_CYCLES = 8
# For the graph of one tensor that nothing in Python leads to.
_GRAPH_SECONDS = 0.02
# The graph of one expression is no news.
_FEW_NODES = 8

_CYCLES = frozenset({"cycle", "unsure"})
_COMPILED_MODULES = tuple(f"module {name}" for name in COMPILERS)

# So many are looked for after the rest, where that took no more than this part of the time.
_FEW_CRUMBS, _EARLY = 32, 0.5

_PASSED_OVER = Holder(HolderKind.UNKNOWN, "not looked for: next to nothing beside the rest", "")
_OUT_OF_TIME = Holder(HolderKind.UNKNOWN, "not found before the time was over", "")
_UNKNOWN = Holder(HolderKind.UNKNOWN, "no Python object found: a library, a captured graph or C++ code", "")


def _name_of(value: Any, shell: Any) -> str:
    """Name something that lives and that no root reaches."""
    if value is shell:
        return "IPython's shell"
    if issubclass(type(value), types.ModuleType):
        return f"module {value.__name__}"
    if issubclass(type(value), type):
        return f"class {module_name(value)}.{type_name(value)}"
    if type(value) is dict and "__builtins__" in value:
        return f"module {value.get('__name__')}: "
    return f"an object of {module_name(type(value))}.{type_name(type(value))}"


class _Found:
    """What is known of one storage so far."""

    def __init__(self) -> None:
        self.tensors: dict[int, Any] = {}
        self.holders: dict[str, Holder] = {}
        self.category = Category.OTHER
        self.nodes = 0
        self.former = ""


def who_holds(
    shell: Any,
    *,
    budget: float = 2.0,
    quick: bool = False,
    only_errors: bool = False,
    first: Collection[str] = (),
    function: types.FrameType | None = None,
) -> HolderScan:
    """Find every live tensor storage and how it is reached.

    Nothing is kept alive by the result, no code of the objects found runs, torch is not imported.

    Parameters
    ----------
    shell
        IPython's shell, or anything with a ``user_ns``.
    budget
        Seconds; when they are over the scan stops and says so.
    quick
        Only what the notebook's own names, its output history and the last error reach: milliseconds, where a whole
        scan looks at every object of the process. Storages that nothing of these reaches are then left out.
    only_errors
        With `quick`: what the last error and those being handled hold, and nothing else.
    first
        Variables whose path counts when several reach a storage.
    function
        The frame of a running function whose variables count as the notebook's do, and before them.

    Returns
    -------
    HolderScan
        Largest storage first.
    """
    torch = loaded_torch()
    if torch is None:
        return HolderScan((), 0, 0.0, "torch is not imported in this process: there are no tensors")
    was_enabled = gc.isenabled()
    gc.disable()  # a collection in the middle would run finalisers of the objects that are being looked at
    try:
        with torch.undisturbed():
            scan = _Scan(shell, torch, budget, first, function)
            return scan.quick_result(only_errors=only_errors) if quick else scan.result()
    finally:
        if was_enabled:
            gc.enable()


class _Scan:
    def __init__(
        self, shell: Any, torch: Torch, budget: float, first: Collection[str], function: types.FrameType | None
    ) -> None:
        self._first = frozenset(first)
        self._shell = shell
        self._local = [] if function is None else list(function_roots(function))
        self._torch = torch
        self._started = time.monotonic()
        self._seconds = budget
        self._budget = Budget(budget)
        self._walk = Walk(self._budget.part(_WALK_SHARE), torch)
        self._graph = GraphWalk(torch, self._budget)
        self._is_quick, self._wants_models = False, True
        self._found: dict[StorageKey, _Found] = {}
        self._graphs: dict[str, list[tuple[str, int]]] = {}
        self._foreign: dict[int, str] = {}
        self._passed_over: set[StorageKey] = set()
        # Modules with tensors as plain attributes.
        self._keeping: dict[int, Any] = {}
        self._classes = FormerClasses(shell.user_ns)
        self._shared = shared_machinery(shell)

    def result(self) -> HolderScan:
        everyone = live_tensors(self._torch)
        self._keep_out_namespaces()
        self._walk.keep_out([everyone])
        roots = [*self._local, *namespace_roots(self._shell), *error_roots(self._shell), *running_roots()]
        if self._first:
            self._walk.run(root for root in roots if root.label in self._first)
        self._walk.run(roots)
        self._name_reached()
        self._name_saved()
        if not self._walk.cut and self._unnamed_share(everyone) > _MODULE_SHARE:
            self._walk.let_in(self._shared)
            self._walk.run([*waiting_roots(), *module_roots(), *machinery_roots()])
            self._name_reached()
            self._name_saved()
        self._name_rest(everyone)
        return self._finish()

    def quick_result(self, *, only_errors: bool) -> HolderScan:
        """Follow the notebook's names and nothing else."""
        self._is_quick, self._wants_models = True, only_errors
        self._keep_out_namespaces()
        names = [] if only_errors else [*self._local, *namespace_roots(self._shell)]
        self._walk.run([*names, *error_roots(self._shell)])
        self._name_reached()
        self._name_saved()
        # Other libraries' objects are compared with every tensor, also with those that this scan is not about.
        self._found = {key: entry for key, entry in self._found.items() if entry.holders}
        return self._finish()

    def _keep_out_namespaces(self) -> None:
        namespaces = [self._shell.user_ns, getattr(self._shell, "user_ns_hidden", None), self._shell]
        self._walk.keep_out([*namespaces, self, self.__dict__, self._walk, self._walk.__dict__])
        self._walk.keep_out([self._found, self._walk.visited, self._walk.tensors])
        # What these hold is named by them, and not by any task, thread or error that refers to them.
        self._walk.keep_out(self._shared)

    def _unnamed_share(self, everyone: list[object]) -> float:
        """Return the share of bytes whose holder is not known yet."""
        total = unnamed = 0
        for key in {key for tensor in everyone if (key := self._torch.storage(tensor)) is not None}:
            entry = self._found.get(key)
            total += key.size
            unnamed += 0 if entry is not None and entry.holders else key.size
        return unnamed / total if total else 0.0

    def _entry(self, tensor: Any) -> _Found | None:
        key = self._torch.storage(tensor)
        if key is None:
            return None
        entry = self._found.setdefault(key, _Found())
        entry.tensors[id(tensor)] = tensor
        return entry

    def _name_reached(self) -> None:
        for number, tensor in enumerate(self._walk.tensors):
            if number % _CHECK_CLOCK_EVERY == 0 and self._over():
                self._walk.cut = True
                return
            entry = self._entry(tensor)
            if entry is None:
                continue
            reached = self._walk.path_to(tensor)
            if reached is not None:
                root, path = reached
                entry.holders.setdefault(path, Holder(root.kind, f"{path}{root.where}", root.label))
            for also in self._walk.roots_of.get(id(tensor), ()):
                entry.holders.setdefault(also.label, Holder(also.kind, f"{also.label}{also.where}", also.label))
            category = self._categorise(tensor)
            if category is not Category.OTHER:
                entry.category = category
            for parent in self._walk.parents(tensor):
                entry.former = entry.former or self._classes.name(type(parent))
        self._name_shown()

    def _name_shown(self) -> None:
        """Add other libraries' objects that lie over the memory of a storage."""
        shown = self._walk.shown_by()
        if not shown:
            return
        # What has no Python tensor but this is known by its address as well. NumPy's own arrays, which every notebook
        # has, are not worth a look at all objects in a quick scan: 36 ms for 420,000 of them.
        if not self._is_quick or self._walk.shows_borrowed():
            for tensor in live_tensors(self._torch):
                self._entry(tensor)
        places = sorted((key.address, key) for key in self._found)
        starts = [address for address, _ in places]
        for address, root, path in shown:
            at = bisect.bisect_right(starts, address) - 1
            key = places[at][1] if at >= 0 else None
            if key is None or address >= key.address + key.size:
                self._foreign.setdefault(address, path)
                continue
            self._foreign.pop(address, None)
            holders = self._found[key].holders
            if all(holder.root != root.label for holder in holders.values()):
                holders.setdefault(path, Holder(root.kind, path, root.label))

    def _categorise(self, tensor: Any) -> Category:
        torch = self._torch
        parents = self._walk.parents(tensor)
        if parents and torch.is_tensor(type(parents[0])):
            return Category.GRADIENT if getattr(parents[0], "grad", None) is tensor else Category.OTHER
        if issubclass(type(tensor), torch.parameter_type):
            return Category.PARAMETER
        for index, parent in enumerate(parents):
            if issubclass(type(parent), torch.optimizer_type):
                return Category.OPTIMIZER
            if issubclass(type(parent), torch.module_type):
                registry = dict.get(parent.__dict__, "_buffers")
                if any(registry is below for below in parents[:index]):
                    return Category.BUFFER
                self._keeping[id(parent)] = parent
                return Category.OTHER
        return Category.OTHER

    def _name_saved(self) -> None:
        """Attribute what graphs saved to the tensors that keep the graphs, and so on with what that leads to."""
        done = 0
        while done < len(self._walk.tensors) and not self._walk.cut:
            tensors = self._walk.tensors[done:]
            done += len(tensors)
            more = list(self._saved_behind(tensors))
            if more:
                self._walk.run(more)
                self._name_reached()

    def _saved_behind(self, tensors: list[object]) -> Iterator[Root]:
        """Attribute what the graphs of some tensors saved; yield what hooks packed in its place."""
        for number, tensor in enumerate(tensors):
            if number % _CHECK_CLOCK_EVERY == 0 and self._over():
                self._walk.cut = True
                return
            reached = self._walk.path_to(tensor)
            if reached is None:
                continue
            root, path = reached
            saved, nodes = self._graph.behind(tensor)
            if nodes:
                self._graphs.setdefault(root.label, []).append((path, nodes))
            for item in saved:
                entry = self._entry(item.tensor)
                if entry is None:
                    continue
                text = f"{path}.grad_fn → {item.name}"
                if not entry.holders:
                    entry.category = Category.ACTIVATION
                    entry.nodes = item.nodes
                    entry.holders[text] = Holder(HolderKind.GRAPH, f"{text}{root.where}", root.label)
            for packed in self._graph.packed:
                yield Root(HolderKind.GRAPH, f"{path}.grad_fn → {packed.name}", packed.value, root.where)
            self._graph.packed.clear()

    def _name_rest(self, everyone: list[object]) -> None:
        """Name what no root reaches: what else holds it, cycles, and else say that nothing was found."""
        rest = []
        for tensor in everyone:
            entry = self._entry(tensor)
            if entry is not None and not entry.holders:
                rest.append(tensor)
        if not rest:
            return
        own = [everyone, rest, self, self.__dict__, self._found, self._walk.visited, *self._found.values()]
        own += [entry.__dict__ for entry in self._found.values()]
        own += [entry.tensors for entry in self._found.values()]
        own += [*self._torch.own(), self._local, *self._local, self._keeping]
        rest, crumbs = self._worth_a_search(rest)
        own += [rest, crumbs]
        found = {} if self._over() else climb(rest, self._is_alive, own, set(map(id, everyone)), self._budget)
        self._walk.cut |= self._over()
        early = self._budget.part(_EARLY)
        if len(crumbs) <= _FEW_CRUMBS and not early.is_spent():
            # By themselves: that a library's constant has much above it says nothing of the others.
            found |= climb(crumbs, self._is_alive, own, set(map(id, everyone)), early)
            rest += crumbs
        else:
            self._passed_over = {key for crumb in crumbs if (key := self._torch.storage(crumb)) is not None}
        for number, tensor in enumerate(rest):
            entry = self._entry(tensor)
            if entry is None:
                continue
            above = found.get(id(tensor))
            if issubclass(type(tensor), self._torch.parameter_type):
                entry.category = Category.PARAMETER
            if above is not None and not (above.kind in _CYCLES and self._is_hooked(tensor, own)):
                holder = self._above(above)
                entry.holders.setdefault(holder.path, holder)
            if above is None or above.kind not in _CYCLES:
                self._name_graph_cycle(tensor, entry, own if number < _MOST_GRAPH_CYCLES and not self._over() else None)

    def _is_alive(self, value: Any) -> bool:
        """Tell whether an object certainly lives: roots reach it, or every program has it."""
        kind = type(value)
        if id(value) in self._walk.visited or self._walk.is_kept_out(value) or issubclass(kind, types.ModuleType):
            return True
        if issubclass(kind, type):
            return own_attributes(value).get("__module__") != "__main__"
        # The globals of a module.
        return kind is dict and "__builtins__" in value

    def _above(self, above: Climb) -> Holder:
        """Put into words what was found above an object that no root reaches."""
        if above.kind in _CYCLES:
            end = "late, not lost" if above.kind == "cycle" else "if nothing else holds it"
            whose = f"; a class of {above.library}'s, not your code" if above.library else ""
            text = f"reference cycle {above.path} (freed by gc.collect(): {end}{whose})"
            return Holder(HolderKind.CYCLE, text, "reference cycle")
        top = above.chain[0]
        if above.kind == "cut":
            text = f"{above.path}; too many objects are above it to look further"
            return Holder(HolderKind.UNKNOWN, text, type_name(type(top)))
        if above.kind == "outside":
            if module_name(type(top)).startswith(COMPILERS):
                return Holder(HolderKind.COMPILE_CACHE, f"torch.compile's cache: {above.path}", "torch.compile's cache")
            text = f"{above.path}, which only C code holds (atexit, an autograd hook, another library)"
            return Holder(HolderKind.OUTSIDE, text, type_name(type(top)))
        reached = self._walk.path_to(top)
        if reached is not None:
            root, label = reached
        else:
            label = _name_of(top, self._shell)
            kind = HolderKind.COMPILE_CACHE if label.startswith(_COMPILED_MODULES) else HolderKind.MODULE
            root = Root(kind, label, top)
        return Holder(root.kind, describe_chain(label, above.chain), root.label)

    def _worth_a_search(self, rest: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the largest tensors first, and the crumbs apart: libraries keep dozens of constants of a few bytes."""
        sizes = {id(tensor): self._torch.size(tensor) for tensor in rest}
        rest = sorted(rest, key=lambda tensor: -sizes[id(tensor)])
        left = total = sum(sizes.values())
        for index, tensor in enumerate(rest):
            if left <= _CRUMBS * total:
                return rest[:index], rest[index:]
            left -= sizes[id(tensor)]
        return rest, []

    def _name_graph_cycle(self, tensor: Any, entry: _Found, own: list[object] | None) -> None:
        """Name a cycle that leads through C++: autograd's nodes, what they saved, and the hooks on them.

        `own` are the scan's own objects, None where hooks are not looked for.
        """
        if not self._torch.is_tensor(type(tensor)):
            return
        if not (self._torch.grad_fn(tensor) or self._torch.read(tensor, "requires_grad")):
            return
        hook = closure_above(tensor, own) if own is not None else None
        through = f"hook {hook}" if hook is not None else self._own_graph(tensor)
        if through is None:
            return
        text = f"cycle through the autograd graph: {through}; gc cannot free it"
        holder = Holder(HolderKind.GRAPH_CYCLE, text, "cycle through the autograd graph")
        entry.holders.setdefault(text, holder)
        gradient = self._torch.gradient(tensor) if through.startswith(".grad") else None
        beside = None if gradient is None else self._entry(gradient)
        if beside is not None and not beside.holders:
            beside.category = Category.GRADIENT
            beside.holders[text] = holder

    def _is_hooked(self, tensor: Any, own: list[object]) -> bool:
        """Tell whether a hook of the tensor itself holds it: C++ holds such hooks too, so that gc frees neither."""
        hooks = [self._torch.read(tensor, "_post_accumulate_grad_hooks")]
        if not self._torch.read(tensor, "is_leaf"):  # a leaf's are Python's alone
            hooks.append(self._torch.read(tensor, "_backward_hooks"))
        return any(hooks) and closure_above(tensor, own) is not None

    def _own_graph(self, tensor: Any) -> str | None:
        """Return the node by which the graph of a tensor, or of its gradient, leads back to it."""
        key = self._torch.storage(tensor)
        for name, start in (("", tensor), (".grad", self._torch.gradient(tensor))):
            if start is None or self._torch.grad_fn(start) is None:
                continue
            # Microseconds a node, and the only thing that tells: also when the time for the rest is up.
            saved, _ = GraphWalk(self._torch, Budget(_GRAPH_SECONDS)).behind(start)
            for item in saved:
                if self._torch.storage(item.tensor) == key:
                    return f"{name}.grad_fn → {item.name}"
        return None

    def _hooks(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        for module in self._keeping.values():
            names, reached = hook_names(module), self._walk.path_to(module)
            if names and reached is not None:
                yield reached[1], names

    def _over(self) -> bool:
        return self._budget.is_spent()

    def _finish(self) -> HolderScan:
        storages = []
        cut = self._walk.cut or self._graph.cut
        unknown = _OUT_OF_TIME if cut else _UNKNOWN
        order = list(HolderKind)
        witnesses = {}
        for key, entry in self._found.items():
            shape, dtype = form(self._torch, entry.tensors.values(), key.size)
            witnesses[key.device, key.address] = weakref.ref(next(iter(entry.tensors.values())))
            holders = sorted(entry.holders.values(), key=lambda holder: order.index(holder.kind))
            storages.append(
                Storage(
                    device=key.device,
                    address=key.address,
                    size=key.size,
                    tensors=sum(self._torch.is_tensor(type(tensor)) for tensor in entry.tensors.values()),
                    shape=shape,
                    dtype=dtype,
                    category=entry.category,
                    holders=tuple(holders) or (_PASSED_OVER if key in self._passed_over else unknown,),
                    graph_nodes=entry.nodes,
                    shared=key.device == "cpu" and self._torch.is_shared(next(iter(entry.tensors.values()))),
                )
            )
        storages.sort(key=lambda storage: -storage.size)
        seconds = time.monotonic() - self._started
        graphs = [
            # A list of losses keeps many small graphs: they count together, under its own name.
            (found[0][0] if len(found) == 1 else root, sum(nodes for _, nodes in found))
            for root, found in self._graphs.items()
        ]
        kept = sorted((item for item in graphs if item[1] > _FEW_NODES), key=lambda item: -item[1])
        reason = f"stopped after {self._seconds:g} s: holders found so far are right, others may be missing"
        visited = len(self._walk.visited)
        return HolderScan(
            tuple(storages),
            visited,
            seconds,
            reason if cut else None,
            tuple(kept),
            witnesses,
            foreign=self._foreign,
            # Also not where there is nothing that one could hold: an error of hours ago must not cost each cell a look.
            models=live_models(self._torch) if self._wants_models and storages else (),
            hooks=tuple(self._hooks()),
            former={(key.device, key.address): entry.former for key, entry in self._found.items() if entry.former},
        )
