"""What torch itself does with a settings string: abort, raise at first use, or take it.

From 2.9 on the string is cut into tokens and walked twice: while the library loads, to find the backend (a walk that
runs off the end aborts the process), and at the first CUDA use, to read the options. Neither walk looks at what stands
between the tokens, so ``a:1:b:2`` and ``a,1`` are taken. Tried on 2.11 and 2.14. Before 2.9 there is one walk, at the
first CUDA use, and it checks every colon and comma (by reading).
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from gpumem_magic.allocator.conf.options import ALIASES, OPTIONS, Kind
from gpumem_magic.allocator.conf.values import check_value

if TYPE_CHECKING:
    from gpumem_magic.allocator.conf.options import Version

__all__ = ["Verdict", "torch_verdict"]


class Verdict(enum.Enum):
    """How torch ends up, in words."""

    ABORTS = "the process aborts inside `import torch`: a notebook kernel dies without a Python error"
    RAISES = "an error at the first CUDA use"
    TAKES = "nothing: torch accepts it"


def torch_verdict(text: str, release: Version) -> Verdict:
    """Say what torch `release` does with `text`."""
    checked = release < (2, 9)
    tokens = re.findall(r"[,:\[\]]|[^,:\[\]]+", text.replace(" ", "") if checked else re.sub(r"\s+", "", text))
    settings: dict[str, object] = {}
    verdict = Verdict.TAKES
    position = 0
    while position < len(tokens):
        key = tokens[position]
        end = _end_of_value(tokens, position + 2)
        if end is None:
            return Verdict.RAISES if checked else Verdict.ABORTS
        value = "".join(tokens[position + 2 : end])
        if (checked and tokens[position + 1] != ":") or not _takes(key, value, release, settings):
            verdict = Verdict.RAISES
        if checked and end < len(tokens) and tokens[end] != ",":
            verdict = Verdict.RAISES
        position = end + 1
    return verdict


def _end_of_value(tokens: list[str], start: int) -> int | None:
    """Return the index after the value that begins at `start`, or None when the tokens end before it does."""
    if start >= len(tokens):
        return None
    if tokens[start] != "[":
        return start + 1
    return tokens.index("]", start) + 1 if "]" in tokens[start:] else None


def _takes(key: str, value: str, release: Version, settings: dict[str, object]) -> bool:
    option = OPTIONS.get(ALIASES.get(key, key))
    if option is None or option.since > release:
        return False
    if option.kind is Kind.INT:
        # std::stoi and std::stoull stop at the first character that is no digit.
        digits = re.match(r"\d+", value)
        value = digits[0] if digits else value
    outcome = check_value(option, value, release, settings)
    if outcome.message is None and outcome.value is not None:
        settings[option.name] = outcome.value
    # A reserve that cannot be read only warns.
    return outcome.message is None or option.kind in {Kind.RESERVE, Kind.RESERVE_BY_CLASS}
