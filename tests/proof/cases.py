"""What a proof notebook is: short sources with a known answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["SETUP", "Case", "Cell"]

# Runs first in every notebook. `DEVICE` is where its tensors live, `MIB` counts floats.
SETUP = """\
import gc, torch
from torch import nn
%load_ext gpumem_magic
DEVICE = {device!r}
MIB = (1 << 20) // 4
torch.manual_seed(0)
def block(mib=1):
    return torch.ones(int(mib * MIB), device=DEVICE)
class Net(nn.Module):
    def __init__(self, width=256, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x
def batch(rows=512, width=256):
    return torch.randn(rows, width, device=DEVICE)"""


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook, run `times` over."""

    source: str
    times: int = 1


@dataclass(frozen=True)
class Case:
    """A notebook with a known answer.

    Attributes
    ----------
    name
        What the table calls it.
    kind
        What sort of fault it is; ``"clean"`` for none.
    source
        Cells between lines ``# %%``; ``# %% x4`` runs the cell below it four times over.
    verdict
        ``"leak"`` (`gpumem_magic.last` has a verdict of growth), ``"grows"`` (growth is told without an alarm),
        ``"who"`` (``%gpumem_who`` is asked), ``"oom"`` (the report says why memory ran out), or ``"none"`` (no alarm).
    holder
        Regular expression for the path or words that must be named; empty when there is none to name.
    line
        Regular expression for the source line that a leak's verdict must show, or for words that a report on running
        out of memory must hold; empty when any will do.
    device
        ``"any"``, ``"cpu"`` or ``"cuda"``: where it can be shown.
    """

    name: str
    kind: str
    source: str
    verdict: str
    holder: str = ""
    line: str = ""
    device: str = "any"

    def cells(self) -> list[Cell]:
        """Split the source."""
        cells: list[Cell] = []
        for part in re.split(r"^# %%", self.source.strip("\n"), flags=re.MULTILINE):
            if not part.strip():
                continue
            first, _, rest = part.partition("\n")
            times = re.fullmatch(r"\s*x(\d+)\s*", first)
            if times is not None:
                cells.append(Cell(rest.strip("\n"), int(times[1])))
            else:
                cells.append(Cell((rest if not first.strip() else part).strip("\n")))
        return cells
