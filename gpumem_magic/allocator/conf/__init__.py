"""Allocator settings, read and checked without torch.

`check` says what is wrong with a settings string, what torch would do with it, and what to write instead;
`from_environment` says which variable wins.
"""

from __future__ import annotations

from gpumem_magic.allocator.conf.check import Checked, Problem, check
from gpumem_magic.allocator.conf.environment import Environment, TorchVersion, from_environment, installed_torch
from gpumem_magic.allocator.conf.options import OPTIONS, Option

__all__ = [
    "OPTIONS",
    "Checked",
    "Environment",
    "Option",
    "Problem",
    "TorchVersion",
    "check",
    "from_environment",
    "installed_torch",
]
