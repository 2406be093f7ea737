"""IPython in a real terminal: no kernel, a pseudo-terminal in its place."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

pty = pytest.importorskip("pty", reason="needs a Unix terminal")
pytest.importorskip("torch")

# The cell goes on when a live line was seen: threads may start late.
WAIT = """
from gpumem_magic.magics.live import _TerminalLine as line
shown, show = [], line.show
def seen(self, text):
    show(self, text)
    shown.append(text)
line.show = seen
def wait():
    shown.clear()
    while not shown:
        time.sleep(0.05)
"""
CELL = """%%gpumem --label walk
kept = torch.ones(1024, 1024)
wait()
print("in between")
wait()
kept.numel()
"""


def test_report_and_live_line_in_a_terminal(tmp_path):
    (tmp_path / "cell.py").write_text(CELL)
    code = (
        "import torch, time\nfrom IPython.terminal.interactiveshell import TerminalInteractiveShell\n"
        "shell = TerminalInteractiveShell.instance(colors='NoColor', simple_prompt=True)\n"
        "shell.run_cell('import torch, time')\nshell.run_cell('%load_ext gpumem_magic')\n"
        f"shell.run_cell({WAIT!r})\n"
        f"shell.run_cell(open({str(tmp_path / 'cell.py')!r}).read(), store_history=True)\n"
        "print('TYPE', shell.user_ns['_'], __import__('sys').stdout.write.__class__.__name__)\n"
    )
    here, there = pty.openpty()
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=there, stdout=there, stderr=there, env=environment, close_fds=True
    )
    os.close(there)
    said = b""
    try:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            try:
                part = os.read(here, 65536)
            except OSError:  # the terminal's other end is closed
                break
            if not part:
                break
            said += part
    finally:
        process.kill()
        process.wait()
        os.close(here)
    text = said.decode(errors="replace")
    lines = [line.rpartition("\x1b[K")[2] for line in text.replace("\r\n", "\n").split("\n")]
    assert text.count("gpumem: recording │ cpu: this process") >= 2
    assert "in between" in lines
    assert "Out[1]: 1048576" in lines
    reports = [line for line in lines if line.startswith("gpumem: Peak 4.00 MiB at line 2")]
    assert len(reports) == 1, text
    assert lines.index("in between") < lines.index("Out[1]: 1048576") < lines.index(reports[0])
    # What is left of the live line is wiped, and the stream's own method is back.
    assert not any(line.startswith("gpumem: recording") for line in lines)
    assert "TYPE 1048576 builtin_function_or_method" in lines
