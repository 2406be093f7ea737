"""Packages whose names bring their modules."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

PACKAGES = ["gpumem_magic.analysis.leaks", "gpumem_magic.book", "gpumem_magic.holders", "gpumem_magic.nvml"]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_name_is_there_and_no_module_has_it(package):
    module = importlib.import_module(package)
    # What the import system puts there would hide it.
    assert not {found.name for found in pkgutil.iter_modules(module.__path__)} & set(module.__all__)
    for name in module.__all__:
        assert getattr(module, name).__module__.startswith(f"{package}.")
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        _ = module.nonsense


def test_a_package_brings_nothing_before_it_is_asked():
    code = (
        "import sys\n"
        f"for package in {PACKAGES}: __import__(package)\n"
        "print(sorted(name for name in sys.modules if name.startswith('gpumem_magic.') and name.count('.') > 1))\n"
        "from gpumem_magic.holders import describe_scan\n"
        "print('gpumem_magic.holders.text' in sys.modules, 'gpumem_magic.holders.release' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    early, late = output.splitlines()
    assert "gpumem_magic.holders" not in early
    assert "gpumem_magic.book" not in early
    assert "gpumem_magic.nvml" not in early
    assert late == "True False"
