"""What an optimizer's first step will add: state that is made lazily, so that "it ran once" does not mean "it fits"."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumem_magic._format import format_bytes
from gpumem_magic.holders.edges import ancestors, module_name, type_name
from gpumem_magic.holders.kinds import family, tracked
from gpumem_magic.holders.tensors import loaded_torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumem_magic.holders.tensors import StorageKey, Torch

__all__ = ["FirstStep", "ToldSteps", "first_step_text", "first_steps"]

_LEAST = 1 << 20
# Tensors of a parameter's size that the first step makes for it, by the class of torch.optim (their `_init_group`);
# Adagrad and Rprop's kin make theirs at once, or are rare.
_ALWAYS = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2, "RMSprop": 1, "SGD": 0}
_WHERE_SET = {"amsgrad": 1, "momentum": 1, "centered": 1}
_OPTIONS = {
    "Adam": ("amsgrad",),
    "AdamW": ("amsgrad",),
    "RMSprop": ("momentum", "centered"),
    "SGD": ("momentum",),
}


_PLAIN = frozenset(map(id, (bool, int, float)))


class FirstStep(NamedTuple):
    """What the first step of one optimizer adds on a device: bytes, and as a multiple of what it trains.

    `of` leads to the optimizer for as long as that lives.
    """

    optimizer: str
    device: str
    bytes: int
    times: float
    of: weakref.ref[Any]


class ToldSteps:
    """Which forecasts were told, and in which cell: the same one under every cell that follows is noise.

    Keeps no optimizer alive.
    """

    def __init__(self) -> None:
        self._told: list[tuple[FirstStep, str]] = []

    def news(self, steps: Iterable[FirstStep], cell_key: str) -> tuple[FirstStep, ...]:
        """Return what no other cell has told, and take it as told; what the same cell told is replaced with its output.

        Parameters
        ----------
        steps
            The forecasts now.
        cell_key
            What runs of the cell have in common.
        """
        self._told = [told for told in self._told if told[0].of() is not None]
        new = tuple(s for s in steps if all(key == cell_key or not _same(s, told) for told, key in self._told))
        self._told += [(step, cell_key) for step in new]
        return new


def _same(one: FirstStep, other: FirstStep) -> bool:
    # Weak references are compared by what they lead to, with its own code.
    return one[:4] == other[:4] and one.of() is other.of()


def first_steps() -> tuple[FirstStep, ...]:
    """Forecast the first step of every optimizer of torch's that trains something and has not stepped yet.

    Only parameters that have a gradient count: the others get no state. No object's own code runs.
    """
    torch = loaded_torch()
    if torch is None:
        return ()
    found: list[Any] = tracked(family(torch.optimizer_type))
    with torch.undisturbed():
        return tuple(step for optimizer in found for step in _forecast(optimizer, torch))


def _forecast(optimizer: Any, torch: Torch) -> list[FirstStep]:
    kind = next((one for one in ancestors(type(optimizer)) if module_name(one).startswith("torch.optim.")), None)
    name = "" if kind is None else type_name(kind)
    attributes = object.__getattribute__(optimizer, "__dict__")
    groups, state = attributes.get("param_groups"), attributes.get("state")
    if name not in _ALWAYS or not issubclass(type(groups), list) or not issubclass(type(state), dict):
        return []
    if any(map(_is_filled, dict.values(state))):
        return []  # it has stepped: what is new since gets its state as a matter of course
    added: dict[str, int] = {}
    trained: dict[str, int] = {}
    seen: set[StorageKey] = set()
    for group in list.copy(groups):
        if not issubclass(type(group), dict):
            return []
        more = [_WHERE_SET[option] for option in _OPTIONS.get(name, ()) if _is_on(dict.get(group, option))]
        parameters: Any = dict.get(group, "params")
        for parameter in list.copy(parameters) if issubclass(type(parameters), list) else ():
            key = torch.storage(parameter) if issubclass(type(parameter), torch.tensor_type) else None
            if key is None or key in seen or torch.gradient(parameter) is None:
                continue
            seen.add(key)
            size = int(torch.tensor_type.numel(parameter)) * int(torch.tensor_type.element_size(parameter))
            trained[key.device] = trained.get(key.device, 0) + size
            added[key.device] = added.get(key.device, 0) + size * (_ALWAYS[name] + sum(more))
    return [
        FirstStep(type_name(type(optimizer)), device, size, size / trained[device], weakref.ref(optimizer))
        for device, size in added.items()
        if size >= _LEAST
    ]


def _is_filled(value: Any) -> bool:
    """Tell whether a parameter's state has something in it; whether a tensor is true would be asked of the device."""
    return not issubclass(type(value), dict) or dict.__len__(value) > 0


def _is_on(option: Any) -> bool:
    return id(type(option)) in _PLAIN and bool(option)


def first_step_text(step: FirstStep) -> str:
    """Write a forecast as a sentence."""
    return (
        f"the first step of {step.optimizer} will add {format_bytes(step.bytes)} of state on {step.device}: "
        f"{step.times:.1f} × the parameters that it trains, once"
    )
