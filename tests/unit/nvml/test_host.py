"""The host's memory, and whether a PID is the local process."""

import os
import subprocess
import sys

import psutil
import pytest

from gpumem_magic.nvml.host import HostMemory, read_host
from gpumem_magic.nvml.pids import has_device_open, is_initial_namespace, is_same_process


def test_machine_without_a_limit(tmp_path):
    host = read_host(tmp_path)
    assert host.total == psutil.virtual_memory().total
    assert 0 < host.used < host.total
    assert host.free == host.total - host.used
    assert not host.limited


def test_container_limit_is_the_bound_and_page_cache_is_not_used_memory(tmp_path):
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("600000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 150000\n")
    assert read_host(tmp_path) == HostMemory(1000000, 450000, limited=True)


@pytest.mark.parametrize("limit", ["max\n", f"{1 << 62}\n", "nonsense"])
def test_limit_that_is_none(tmp_path, limit):
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("600000\n")
    assert not read_host(tmp_path).limited


def test_device_file_that_is_open_is_evidence(tmp_path):
    device = tmp_path / "nvidia0"
    device.touch()
    prefixes = (str(tmp_path / "nvidia"),)
    assert has_device_open(os.getpid(), prefixes) is False
    with device.open():
        assert has_device_open(os.getpid(), prefixes) is True
    assert has_device_open(4_000_001, prefixes) is None


@pytest.mark.skipif(sys.platform != "linux", reason="PID namespaces are Linux's")
def test_child_namespace_is_recognised():
    program = (
        "import os; from gpumem_magic.nvml.pids import is_initial_namespace, is_same_process;"
        "print(is_initial_namespace(), is_same_process(os.getpid()), is_same_process(4_000_001))"
    )
    command = ["unshare", "-pf", "--mount-proc", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "unshare" in done.stderr:
        pytest.skip(f"this machine may not unshare: {done.stderr.strip()}")
    assert done.stdout == "False False False\n", done.stderr


def test_own_process_is_itself_where_numbers_are_the_drivers():
    if not is_initial_namespace():
        pytest.skip("the tests run in a PID namespace")
    assert is_same_process(os.getpid())
    assert not is_same_process(4_000_001)
