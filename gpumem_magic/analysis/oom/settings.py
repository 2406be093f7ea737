"""Allocator settings around a failure: what the environment asks for, and what torch took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumem_magic._errors import BadUsageError
from gpumem_magic.allocator.conf import TorchVersion, check, from_environment
from gpumem_magic.allocator.conf.environment import NEWEST
from gpumem_magic.allocator.settings_text import SUGGESTED

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SettingsState", "settings_state"]


@dataclass(frozen=True)
class SettingsState:
    """Allocator settings.

    Attributes
    ----------
    variable
        The environment variable that counts, or None.
    wanted
        Its text, empty when none is set.
    in_force
        The text that torch took, None when it is not known.
    expandable
        Whether segments can grow, None when it is not known.
    lost
        Why a setting in the environment is not in force, or None.
    merged
        The text to write for expandable segments, with what is set and goes together with it.
    alternatives
        Other texts against fragmentation, likewise, the smallest change first.
    """

    variable: str | None
    wanted: str
    in_force: str | None
    expandable: bool | None
    lost: str | None
    merged: str
    alternatives: tuple[str, ...] = ()


def settings_state(
    recorded: Mapping[str, object], environment: Mapping[str, str], torch_version: str | None
) -> SettingsState:
    """Compare the settings that a snapshot holds with the environment's.

    Parameters
    ----------
    recorded
        `Trace.settings`, empty when nothing was recorded.
    environment
        Variables of ``os.environ`` when it failed.
    torch_version
        The version, None when unknown.
    """
    try:
        version = TorchVersion.parse(torch_version or str(NEWEST))
    except BadUsageError:
        version = NEWEST
    found = from_environment(environment, version)
    text = recorded.get("PYTORCH_CUDA_ALLOC_CONF")
    in_force = text if isinstance(text, str) else None
    flag = recorded.get("expandable_segments")
    expandable = flag if isinstance(flag, bool) else None
    wanted = check(found.text, version).settings if found.text else {}
    refused = wanted.get("expandable_segments") is True and expandable is False
    # A snapshot names the last text that was read: empty means that none was.
    unread = bool(found.text) and in_force == ""
    lost = _why_lost(found.variable, found.text, in_force, found.notes) if refused or unread else None
    kept = check(in_force or found.text, version).settings if in_force or found.text else {}
    merged, *alternatives = _against_fragmentation(
        {name: value for name, value in kept.items() if isinstance(value, (int, float))}
    )
    return SettingsState(found.variable, found.text, in_force, expandable, lost, merged, tuple(alternatives))


def _against_fragmentation(kept: Mapping[str, int | float]) -> list[str]:
    """Return texts to try, each with what is set and goes together with it; segments that grow first."""
    texts = []
    for suggested in sorted(SUGGESTED, key=lambda text: text.count(",")):
        new = dict(pair.split(":") for pair in suggested.split(",") if pair)
        left_out = {"expandable_segments", "backend", *new}
        if "expandable_segments" in new:
            # These two do not go together: the split limit is ignored for segments that grow.
            left_out.add("max_split_size_mb")
        elif any(name in kept for name in new):
            continue  # Somebody has chosen a value.
        parts = [f"{name}:{value}" for name, value in kept.items() if name not in left_out]
        if new:
            texts.append(",".join([*(f"{name}:{value}" for name, value in new.items()), *parts]))
    return texts


def _plain(text: str) -> str:
    return "".join(text.split())


def _why_lost(variable: str | None, wanted: str, in_force: str | None, notes: tuple[str, ...]) -> str:
    note = next((note for note in notes if "ignores" in note or "does not read" in note), None)
    if note is not None:
        return note
    if in_force is not None and _plain(in_force) == _plain(wanted):
        return "torch read it, but this build or platform does not support it"
    took = f"torch took '{in_force}'" if in_force else "torch took its defaults"
    return f"{took}: {variable} was set after torch first used the GPU, or in another process"
