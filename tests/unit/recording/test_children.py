"""Real processes below this one: started, forked, and those of other programs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpumem_magic.recording.children import child_pids, python_children

if TYPE_CHECKING:
    from pathlib import Path

# Says that it runs, so that its program is no longer this one's, and waits for its end.
WAITING = "import sys; print('there', flush=True); sys.stdin.read()"


def test_a_started_child_is_known_by_its_environment(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WAITING, "ascii")
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (found,) = (child for child in python_children() if child.pid == process.pid)
        assert found.name.endswith(" train.py")
        assert found.environ is not None
        assert found.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
        assert not found.is_forked
        assert process.pid in child_pids()
        process.communicate()
    assert process.pid not in child_pids()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows where a program began")
def test_a_fork_is_told_from_a_program_of_its_own() -> None:
    code = """
import os, sys
from gpumem_magic.recording.children import python_children
read, write = os.pipe()
pid = os.fork()
if not pid:
    os.close(write)
    os.read(read, 1)
    os._exit(0)
os.close(read)
(found,) = python_children()
assert found.pid == pid and found.is_forked, found
os.write(write, b"x")
os.waitpid(pid, 0)
assert python_children() == ()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_other_programs_are_left_out() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"there\n")
        process.stdin.flush()
        process.stdout.readline()
        assert process.pid in child_pids()
        assert all(child.pid != process.pid for child in python_children())
        process.communicate()
