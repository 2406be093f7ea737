"""What grows: verdicts with their evidence, and what stayed for a reason that is no leak. Plain and immutable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from gpumem_magic.recording.model import Note

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpumem_magic.analysis.model import Group

__all__ = ["Growth", "Keeper", "Leak", "LeakKind", "LeakLine", "Once"]

LeakKind = Literal["kept", "regrown", "reruns"]


class LeakLine(NamedTuple):
    """A line whose allocations stay: bytes for each iteration that left something (median), in all, and blocks."""

    group: Group
    bytes_per_iteration: int
    bytes: int
    blocks: int


class Keeper(NamedTuple):
    """What keeps the memory of a leak alive.

    Attributes
    ----------
    path
        The Python path to the largest of it (``losses[0].grad_fn → MulBackward0._saved_self``).
    root
        Its beginning: ``losses``.
    kind
        In the words of the holders (``"variable"``, ``"autograd graph"``, ``"reference cycle"``).
    bytes
        Bytes of the leak that this root keeps.
    graph_nodes
        Autograd nodes that it keeps alive; 0 when it keeps tensors alone.
    line
        The line of the loop that puts something into it, or None when none does so visibly.
    container
        What all of it lies in, where that is more than the root tells: ``trainer.outputs``; else ``""``.
    """

    path: str
    root: str
    kind: str
    bytes: int
    graph_nodes: int = 0
    line: Group | None = None
    container: str = ""

    @property
    def name(self) -> str:
        """What to call it."""
        return self.container or self.root


@dataclass(frozen=True)
class Leak:
    """Memory that grew with every iteration, and is alive at the end.

    Attributes
    ----------
    kind
        ``"kept"``: every iteration left allocations behind. ``"regrown"``: one allocation was made anew, larger each
        time. ``"reruns"``: earlier runs of the same cell left memory that is still there.
    device
        torch's notation.
    loop
        The loop's header line, or None where the repetition was found in the events alone.
    iterations
        How often it ran.
    grown
        In how many of these iterations something stayed.
    bytes_per_iteration
        What one such iteration left, median, in bytes; the first one, in which things warm up, is left out.
    bytes
        What they left in all, in bytes.
    lines
        Where it was allocated, the largest first.
    keepers
        What keeps it alive, the largest first; empty when nobody looked or nothing was found.
    addresses
        Of the blocks, for whoever looks for holders: device addresses, uint64, at most a few thousand, the largest
        first.
    sentence
        The verdict in words, without a full stop.
    every
        How many iterations lie between two that left something: 1 for each of them, 4 for every fourth; None where
        they lie without any order.
    left
        What of each iteration (run of the cell) is there at the end, in bytes; for ``"regrown"`` the size that the
        tensor had in each. Empty where it is not known.
    remedy
        What to do about it, in words; empty where what keeps it is not known.
    """

    kind: LeakKind
    device: str
    loop: Group | None
    iterations: int
    grown: int
    bytes_per_iteration: int
    bytes: int
    lines: tuple[LeakLine, ...]
    keepers: tuple[Keeper, ...] = ()
    addresses: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64), repr=False, compare=False)
    sentence: str = ""
    every: int | None = 1
    left: tuple[int, ...] = ()
    remedy: str = ""

    @property
    def listed_bytes(self) -> int:
        """Bytes of the blocks in `addresses`, at least: all of them, unless there are too many to list."""
        blocks = sum(line.blocks for line in self.lines)
        return self.bytes if len(self.addresses) >= blocks else self.bytes * len(self.addresses) // blocks

    def told(self) -> str:
        """Return the verdict, and what to do about it."""
        return f"{self.sentence}; do: {self.remedy}" if self.remedy else self.sentence

    @property
    def is_explained(self) -> bool:
        """Whether what keeps most of it is known."""
        return bool(self.keepers) and 2 * sum(keeper.bytes for keeper in self.keepers) >= self.listed_bytes


class Once(NamedTuple):
    """Memory that stayed and does not grow: what it is, where it was made, bytes, and the same in words.

    `span` is how many first iterations made it, of a window how many it holds.
    """

    what: str
    device: str
    line: Group
    bytes: int
    sentence: str
    span: int = 1


@dataclass(frozen=True)
class Growth:
    """What was looked for and found.

    Attributes
    ----------
    leaks
        Verdicts, the largest first.
    small
        Growth that is real and too small to worry about, or is meant: parameters made in a loop.
    once
        What stayed but came once: warm-up, optimizer state, gradients.
    iterations
        Most iterations that any loop in the recording ran; 0 when no repetition was found. Fewer than three are no
        evidence.
    """

    leaks: tuple[Leak, ...] = ()
    small: tuple[Leak, ...] = ()
    once: tuple[Once, ...] = ()
    iterations: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of all verdicts."""
        return sum(leak.bytes for leak in self.leaks)

    def notes(self, told: Leak | None = None, where: str = "") -> tuple[Note, ...]:
        """Return all of it as notes, verdicts as warnings.

        Parameters
        ----------
        told
            A verdict that has been told elsewhere.
        where
            Ends each note: which device it is about, where there are several.
        """
        return (
            *(Note("warning", f"leak: {leak.told()}{where}") for leak in self.leaks if leak is not told),
            *(Note("info", f"grows: {leak.sentence}{where}") for leak in self.small),
            *(Note("info", f"once: {once.sentence}{where}") for once in self.once),
        )
