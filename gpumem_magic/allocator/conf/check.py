"""Check a settings string against one release of torch: problems, their place, and the corrected string.

The reader is more lenient than torch's, so that it can say what was meant; `torch_side` says what torch makes of it.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gpumem_magic.allocator.conf.options import ALIASES, NEVER_EXISTED, OPTIONS, REMOVED
from gpumem_magic.allocator.conf.torch_side import Verdict, torch_verdict
from gpumem_magic.allocator.conf.values import check_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumem_magic.allocator.conf.environment import TorchVersion
    from gpumem_magic.allocator.conf.options import Option

__all__ = ["Checked", "Problem", "check"]

Value = bool | int | float | str | dict[str, int]

_NAMES = "|".join(sorted([*OPTIONS, *ALIASES], key=len, reverse=True))
_SEPARATOR = re.compile(rf"\s*[,;]\s*|[\s:]+(?=(?:{_NAMES})\s*[:=])")
_LONE_VALUE = re.compile(r"\d[\w.]*|true|false|native|cudaMallocAsync", re.IGNORECASE)


class Problem(NamedTuple):
    """One thing that is wrong.

    `at` is the character (from 0) in the string as given, `text` what stands there, `message` what is wrong,
    `then` what torch does with it, `fix` the whole corrected string.
    """

    at: int
    text: str
    message: str
    then: str
    fix: str


@dataclass(frozen=True)
class Checked:
    """The outcome for one string.

    Attributes
    ----------
    text
        The string as given.
    version
        The release that it was checked for.
    settings
        The options that would be in force after `corrected`, as typed values; sizes in the unit of their name (MiB).
    problems
        In the order of their place.
    notes
        What is allowed, but good to know.
    corrected
        The string to write instead; equal to `text` up to spaces when there is no problem.
    dropped
        Options that torch would take and `corrected` leaves out, because they harm.
    """

    text: str
    version: TorchVersion
    settings: dict[str, Value]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    corrected: str
    dropped: Mapping[str, Value] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when torch takes the string as it is and every option does what it says."""
        return not self.problems


class _Item(NamedTuple):
    """One ``key:value`` as written; `separator` is what stood between them, empty when nothing did."""

    at: int
    key: str
    separator: str
    value_at: int
    value: str


class _Draft(NamedTuple):
    """A problem before the whole string is known; `then` is None where torch's verdict on the whole counts."""

    at: int
    text: str
    message: str
    then: str | None


@dataclass
class _Reading:
    """What the items said so far."""

    version: TorchVersion
    settings: dict[str, Value]
    written: dict[str, str]
    places: dict[str, _Item]
    drafts: list[_Draft]
    notes: list[str]
    dropped: dict[str, Value] = field(default_factory=dict)

    def problem(self, at: int, text: str, message: str, then: str | None = None) -> None:
        self.drafts.append(_Draft(at, text, message, then))


def check(text: str, version: TorchVersion) -> Checked:
    """Check settings string `text` for torch `version`; never raises for anything in the string.

    Parameters
    ----------
    text
        The value of ``PYTORCH_CUDA_ALLOC_CONF`` or one of its sisters.
    version
        The release that will read it.
    """
    reading = _Reading(version, {}, {}, {}, [], [])
    body, offset = _unwrap(text, reading)
    items = _items(body, offset, reading)
    segment = _segment(items, version)
    for item in items:
        _read_item(item, reading, segment)
    _check_pairs(reading)
    corrected = ",".join(f"{name}:{value}" for name, value in reading.written.items())
    verdict = torch_verdict(text, version.release)
    problems = tuple(
        Problem(draft.at, draft.text, draft.message, _consequence(draft, verdict), corrected)
        for draft in sorted(reading.drafts, key=lambda draft: (draft.at, draft.message))
    )
    return Checked(text, version, reading.settings, problems, tuple(reading.notes), corrected, reading.dropped)


def _consequence(draft: _Draft, verdict: Verdict) -> str:
    """Say what torch does; an abort or an error comes before whatever the mistake would do by itself."""
    return verdict.value if draft.then is None or verdict is not Verdict.TAKES else draft.then


def _unwrap(text: str, reading: _Reading) -> tuple[str, int]:
    """Strip what was copied along: ``export NAME=``, quotes. Returns the rest and its offset."""
    offset = 0
    match = re.match(r"\s*(?:export\s+|%env\s+|set\s+)?(PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF)\s*=\s*", text)
    if match:
        reading.problem(0, match[0].strip(), "the variable's own name is part of its value")
        offset = match.end()
    rest = text[offset:]
    stripped = rest.strip()
    quote = stripped[:1]
    if quote and quote in "\"'“”‘’`":
        at = offset + rest.index(quote)
        reading.problem(at, quote, "the quotes are part of the value: leave them to the shell")
        closing = "\"'“”‘’`"
        inner = stripped[1:-1] if stripped[-1] in closing and len(stripped) > 1 else stripped[1:]
        return inner, at + 1
    return rest, offset


def _items(body: str, offset: int, reading: _Reading) -> list[_Item]:
    """Split at commas outside brackets, and at what people write in their place; only the commas are right."""
    items: list[_Item] = []
    start = len(body) - len(body.lstrip())
    for separator in [*_SEPARATOR.finditer(body, start), None]:
        end = len(body) if separator is None else separator.start()
        piece = body[start:end]
        if separator is not None and body.count("[", 0, end) > body.count("]", 0, end):
            continue
        if piece.strip():
            items.append(_split_item(piece, offset + start))
        elif separator is not None:
            reading.problem(offset + end, separator[0], "an empty entry before this")
        if separator is not None:
            start = separator.end()
            if separator[0].strip() != ",":
                shown = separator[0].strip() or separator[0]
                reading.problem(offset + end, separator[0], f"between two options stands ',', not {shown!r}")
    return _join_lone_values(items)


def _join_lone_values(items: list[_Item]) -> list[_Item]:
    """``max_split_size_mb,128``: a name alone, then a value alone, were meant as one."""
    joined: list[_Item] = []
    for item in items:
        before = joined[-1] if joined else None
        lone = not item.value and _LONE_VALUE.fullmatch(item.key) is not None
        if before is not None and lone and not before.value and not before.separator and before.key in OPTIONS:
            joined[-1] = _Item(before.at, before.key, ",", item.at, item.key)
        else:
            joined.append(item)
    return joined


def _split_item(piece: str, at: int) -> _Item:
    match = re.match(r"(\s*)([^\s:=\[\]]*)(\s*[:=]+\s*|\s+|)(.*?)\s*\Z", piece, re.DOTALL)
    if match is None:  # every group can be empty: cannot happen, kept so that no string can make us fail
        return _Item(at, piece.strip(), "", at, "")
    return _Item(at + match.end(1), match[2], match[3].strip() or match[3][:1], at + match.end(3), match[4])


def _segment(items: list[_Item], version: TorchVersion) -> int:
    """Return the MiB of a large segment that the string asks for, wherever it does."""
    option, size = OPTIONS["large_segment_size_mb"], 20
    for item in items:
        if _nearest(item.key) == option.name and item.value and option.since <= version.release:
            value = check_value(option, item.value, version.release).value
            size = value if isinstance(value, int) else size
    return size


def _read_item(item: _Item, reading: _Reading, segment: int) -> None:
    option = _find_option(item, reading)
    if item.separator != ":" and item.value:
        shown = item.separator.strip() or item.separator
        wrong = f"stands ':', not '{shown}'" if shown else "':' is missing"
        reading.problem(item.at + len(item.key), shown, f"between a name and its value {wrong}")
    if option is None:
        return
    if not item.value:
        reading.problem(item.at, item.key, f"{option.name} has no value: it takes {option.kind.value}")
        return
    outcome = check_value(option, item.value, reading.version.release, segment)
    if outcome.message is not None:
        reading.problem(item.value_at, item.value, outcome.message, outcome.then)
    if outcome.note is not None:
        reading.notes.append(outcome.note)
    if outcome.value is None:
        return
    if option.name in reading.settings:
        reading.notes.append(f"{option.name} is given twice: the last one counts")
    reading.settings[option.name] = outcome.value
    reading.written[option.name] = outcome.written
    reading.places[option.name] = item


def _find_option(item: _Item, reading: _Reading) -> Option | None:
    """Return the option meant, noting a problem when its name is not exact or not known to this release."""
    name = ALIASES.get(item.key, item.key)
    option = OPTIONS.get(name)
    if option is None:
        option = _guess_option(item, reading)
        if option is None:
            return None
    if option.since > reading.version.release:
        since = ".".join(map(str, option.since))
        reading.problem(item.at, item.key, f"{option.name} needs torch {since} or newer, this is {reading.version}")
        return None
    return option


def _guess_option(item: _Item, reading: _Reading) -> Option | None:
    plain = item.key.lower().replace("-", "_")
    if plain in REMOVED:
        reading.problem(item.at, item.key, f"{plain} no longer exists: {REMOVED[plain]}")
        return None
    if plain in NEVER_EXISTED:
        instead = NEVER_EXISTED[plain]
        hint = f"; what exists is {instead}" if instead else ""
        reading.problem(item.at, item.key, f"there is no option '{item.key}' in any version of torch{hint}")
        return None
    if not item.key:
        reading.problem(item.at, item.separator, "a value without a name")
        return None
    near = _nearest(item.key)
    if near is None:
        reading.problem(item.at, item.key, f"there is no option '{item.key}' in any version of torch")
        return None
    reading.problem(item.at, item.key, f"there is no option '{item.key}': the nearest real one is {near}")
    return OPTIONS[near]


def _nearest(key: str) -> str | None:
    """Return the real option that a name is, or is near to."""
    plain = re.sub(r"\bgc_", "garbage_collection_", key.lower().replace("-", "_"))
    for name in (plain, f"{plain}_mb"):
        if name in OPTIONS:
            return name
    return next(iter(difflib.get_close_matches(plain, OPTIONS, n=1, cutoff=0.75)), None)


def _check_pairs(reading: _Reading) -> None:
    """Options that must not meet, or that do nothing without another."""
    settings = reading.settings
    if settings.get("expandable_segments") is True and "max_split_size_mb" in settings:
        item = reading.places["max_split_size_mb"]
        reading.problem(
            item.at,
            f"{item.key}{item.separator}{item.value}",
            "max_split_size_mb must not meet expandable_segments: reserved memory can grow without bound",
            "torch takes both",
        )
        reading.dropped["max_split_size_mb"] = settings.pop("max_split_size_mb")
        del reading.written["max_split_size_mb"]
    if settings.get("backend") == "cudaMallocAsync":
        for name in [name for name in settings if OPTIONS[name].native]:
            item = reading.places[name]
            reading.problem(
                item.at,
                item.key,
                f"{name} has no effect: backend:cudaMallocAsync ignores it",
                "a warning, then nothing",
            )
            del settings[name], reading.written[name]
    fraction = settings.get("per_process_memory_fraction")
    if "garbage_collection_threshold" in settings and (not isinstance(fraction, float) or fraction >= 1.0):
        reading.notes.append(
            "garbage_collection_threshold acts only under a memory limit: "
            "call torch.cuda.set_per_process_memory_fraction(...) as well"
        )
    if "garbage_collection_threshold" in settings and settings.get("expandable_segments") is not True:
        reading.notes.append(
            "garbage_collection_threshold also frees segments in the middle of a CUDA graph's capture, which then ends "
            "with an error (seen with torch 2.11)"
        )
