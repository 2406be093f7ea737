"""Settings in a running notebook: are they in force, who set them when, and what can still be changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumem_magic.allocator.conf.check import check
from gpumem_magic.allocator.conf.environment import from_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumem_magic.allocator.conf.check import Checked
    from gpumem_magic.allocator.conf.environment import TorchVersion

__all__ = ["Moment", "SessionFacts", "describe_session", "run_time_text"]

# A change at run time puts what it does not name back to its default, but for these (seen on a GPU, torch 2.11).
_STICKY = {"expandable_segments": "False", "large_segment_size_mb": "20"}
# What a change at run time does not reach, and what does instead.
_FIXED = {
    "backend": "it is fixed while torch is imported",
    "per_process_memory_fraction": "call torch.cuda.set_per_process_memory_fraction(...) instead",
    "expandable_segments_reserve": "it is read when the device's allocator is created",
    "expandable_segments_reserve_by_class": "it is read when the device's allocator is created",
}
_NEW_ONLY = ("expandable_segments", "large_segment_size_mb")


@dataclass(frozen=True)
class Moment:
    """When something was first seen: in which cell, or before the extension was loaded (None)."""

    cell: int | None

    def __str__(self) -> str:
        return "before %load_ext gpumem_magic" if self.cell is None else f"in cell {self.cell}"


@dataclass(frozen=True)
class SessionFacts:
    """What is known of a kernel without asking anything of CUDA.

    Attributes
    ----------
    environ
        The environment now.
    version
        torch's release.
    in_force
        The settings string that torch took, None when it cannot be told.
    reason
        Why it cannot be told.
    imported, used
        When torch was imported and CUDA first used, None when that has not happened.
    set_at
        Variable → when it got its present value.
    """

    environ: Mapping[str, str]
    version: TorchVersion
    in_force: str | None
    reason: str
    imported: Moment | None
    used: Moment | None
    set_at: Mapping[str, Moment]


def describe_session(facts: SessionFacts) -> list[str]:
    """Say what is in force, whether the environment's value came too late, and what can still be changed."""
    found = from_environment(facts.environ, facts.version)
    set_at = facts.set_at.get(found.variable or "")
    who = f", set {set_at}" if set_at is not None else ""
    if facts.imported is None:
        return [
            f"in force: not known: torch is not imported yet; what the environment says when it is, will count{who}"
        ]
    if facts.used is None:
        lines = [f"in force: nothing yet: CUDA is not in use, and what the environment says then will count{who}"]
        backend = check(found.text, facts.version).settings.get("backend") if found.text else None
        if backend is not None and _is_later(set_at, facts.imported):
            lines.append(f"except backend:{backend}: torch was imported {facts.imported}, and chose the backend then")
        return lines
    if facts.in_force is None:
        return [f"in force: not known: {facts.reason}", *_when_read(facts)]
    shown = facts.in_force or "torch's defaults"
    if _same(facts.in_force, found.text, facts.version):
        where = f"as {found.variable} says{who}" if found.variable else "and no variable asks for another"
        return [f"in force: {shown}, {where}", *_when_read(facts)]
    return [f"in force: {shown}", *_too_late(facts, found.variable, found.text, set_at)]


def _when_read(facts: SessionFacts) -> list[str]:
    return [f"torch read it when CUDA was first used, {facts.used}; another value needs a restart of the kernel"]


def _is_later(one: Moment | None, other: Moment) -> bool:
    """Tell whether `one` is known to come after `other`; within one cell the order is not known."""
    return one is not None and one.cell is not None and (other.cell is None or one.cell > other.cell)


def _too_late(facts: SessionFacts, variable: str | None, wanted: str, set_at: Moment | None) -> list[str]:
    used = facts.used
    assert used is not None  # noqa: S101 - the caller knows
    if variable is None:
        gone = "no variable names it any more: it was set when torch read it, or was changed at run time since"
        return [f"{gone} (CUDA was first used {used})"]
    if _is_later(set_at, used):
        why = f"too late: {variable} was set {set_at}, and torch had read it when CUDA was first used, {used}"
    elif set_at is not None and set_at.cell is not None and set_at.cell == used.cell:
        why = f"too late: {variable} was set {set_at}, after that cell had used CUDA for the first time"
    else:
        why = f"{variable} was set {set_at or 'earlier'}, and CUDA first used {used}: then CUDA came first, or the "
        why += "settings were changed at run time since"
    checked = check(wanted, facts.version)
    lines = [f"not in force: {wanted} ({why})"]
    line = f'import os; os.environ["{variable}"] = "{checked.corrected}"'
    lines.append(f"to have it: restart the kernel and begin with `{line}`, before torch is imported")
    return [*lines, *_at_run_time(checked, facts)]


def _at_run_time(checked: Checked, facts: SessionFacts) -> list[str]:
    """Say what can be changed in this kernel, and write the call."""
    text, kept = run_time_text(checked, check(facts.in_force or "", facts.version))
    lines = []
    if text:
        call = (
            "torch._C._accelerator_setAllocatorSettings"
            if facts.version.release >= (2, 9)
            else "torch.cuda.memory._set_allocator_settings"
        )
        lines.append(f'or now, in this kernel: {call}("{text}")')
        if kept:
            lines.append(f"  it repeats {', '.join(kept)}: what such a call leaves out falls back to its default")
        if any(name in checked.settings for name in _NEW_ONLY):
            lines.append(
                "  segments that exist stay as they are: free what you can and call torch.cuda.empty_cache() first"
            )
    lines += [f"only a restart changes {name}: {_FIXED[name]}" for name in checked.settings if name in _FIXED]
    return lines


def run_time_text(wanted: Checked, in_force: Checked) -> tuple[str, list[str]]:
    """Write the string for a change at run time that adds `wanted` to what is in force.

    Returns
    -------
    tuple
        The string, empty when nothing of `wanted` can be changed at run time, and the names that it only repeats.
    """
    changed = {name: wanted.settings[name] for name in wanted.settings if name not in _FIXED}
    if not changed:
        return "", []
    kept = {
        name: value
        for name, value in {**in_force.settings, **in_force.dropped}.items()
        if name not in changed and name not in _FIXED and name not in _STICKY
    }
    if changed.get("expandable_segments") is True:
        # The two must not meet.
        kept.pop("max_split_size_mb", None)
    elif "max_split_size_mb" in changed and in_force.settings.get("expandable_segments") is True:
        changed["expandable_segments"] = False
    parts = [f"{name}:{_written(value)}" for name, value in {**kept, **changed}.items()]
    return ",".join(parts), list(kept)


def _written(value: object) -> str:
    if isinstance(value, dict):
        return "[" + ",".join(f"{boundary}:{count}" for boundary, count in value.items()) + "]"
    return str(value)


def _same(one: str, other: str, version: TorchVersion) -> bool:
    """Compare what two strings set; spaces, order and spelling do not count."""
    if "".join(one.split()) == "".join(other.split()):
        return True
    first, second = check(one, version), check(other, version)
    return {**first.settings, **first.dropped} == {**second.settings, **second.dropped}
