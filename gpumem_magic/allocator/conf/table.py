"""Every option of torch's allocator, for reading: what it takes, its default, where it exists, what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from gpumem_magic.allocator.conf.options import ALIASES, NEVER_EXISTED, OPTIONS, REMOVED, Kind
from gpumem_magic.allocator.conf.values import least

if TYPE_CHECKING:
    from gpumem_magic.allocator.conf.environment import TorchVersion
    from gpumem_magic.allocator.conf.options import Option

__all__ = ["OptionRow", "describe_options", "option_rows"]


class OptionRow(TypedDict):
    """One option: `until` is None where the newest release knows it, `known` whether the release asked for does."""

    name: str
    takes: str
    default: str
    meaning: str
    since: str
    until: str | None
    known: bool
    also: list[str]


def option_rows(version: TorchVersion) -> list[OptionRow]:
    """Return one row for each option, with the range that torch `version` allows.

    ``since`` is a release, where "2.1" stands for that or an older one; ``also`` are ROCm's spellings.
    """
    also: dict[str, list[str]] = {}
    for alias, name in ALIASES.items():
        also.setdefault(name, []).append(alias)
    return [
        {
            "name": option.name,
            "takes": _takes(option, version),
            "default": option.default,
            "meaning": option.meaning,
            "since": ".".join(map(str, option.since)),
            "until": None,
            "known": option.since <= version.release,
            "also": also.get(option.name, []),
        }
        for option in OPTIONS.values()
    ]


def _takes(option: Option, version: TorchVersion) -> str:
    if option.kind is Kind.CHOICE:
        return " or ".join(option.choices)
    if option.name == "pinned_num_register_threads":
        return "a power of two up to 128"
    if option.kind is Kind.INT:
        return f"{option.kind.value} of MiB, {least(option, version.release)[1]}"
    if option.name == "garbage_collection_threshold":
        return "a number between 0 and 1, both excluded"
    return "a number from 0 to 1" if option.kind is Kind.FLOAT else option.kind.value


def describe_options(version: TorchVersion) -> str:
    """Write `option_rows` for a person, and the names that were never options."""
    lines = [f"Options of torch's caching allocator, for torch {version}; one string holds name:value,name:value"]
    for row in option_rows(version):
        since = "" if row["since"] == "2.1" else f"; since torch {row['since']}"
        unknown = "" if row["known"] else f", so not in {version}"
        spelled = "".join(f"; ROCm also writes {alias}" for alias in row["also"])
        lines += [
            f"{row['name']}: {row['takes']} (default {row['default']}{since}{unknown}{spelled})",
            f"    {row['meaning']}",
        ]
    lines += [f"{name}: {reason}" for name, reason in REMOVED.items()]
    lines.append(f"in no version, whatever an article says: {', '.join(NEVER_EXISTED)}")
    return "\n".join(lines)
