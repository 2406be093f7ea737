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


SCRIPTS = """
run("%%gpumem --label 训练 --export отчёт.html\\nвес = torch.ones(300_000)\\nوزن = torch.ones(300_000)")
run("import gpumem_magic; print(gpumem_magic.last)")
run("%gpumem_who")
run("%gpumem_diff 训练 训练 --export отчёт.html")
run("%gpumem_timeline --export отчёт.html")
run("%gpumem_ledger")
run("print(gpumem_magic.ledger())")
run("gpumem_magic.ledger()")
run("%%gpumem --scratch\\nслой = torch.ones(300_000)")
run("%gpumem_free --vars вес")
run("%gpumem_conf ключ:1")
run("%gpumem_whatif --device ж")
"""


def test_text_survives_a_terminal_that_has_few_characters(tmp_path):
    code = (
        "from IPython.terminal.interactiveshell import TerminalInteractiveShell\n"
        "shell = TerminalInteractiveShell.instance(colors='NoColor', simple_prompt=True)\n"
        "run = shell.run_cell\nrun('import torch')\nrun('%load_ext gpumem_magic')\n" + SCRIPTS
    )
    environment = {
        **os.environ,
        "IPYTHONDIR": str(tmp_path),
        "PYTHONIOENCODING": "cp1252",
        "PYTHONUTF8": "0",
        "COLUMNS": "200",
    }
    (tmp_path / "cells.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "cells.py"], cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=120
    )
    said = (done.stdout + done.stderr).decode("cp1252")
    assert done.returncode == 0, said
    assert "Error" not in said.replace("UsageError", ""), said
    assert "missing from" not in said, said  # fonts, where an older matplotlib draws no Persian
    assert said.count("gpumem: wrote ?????.html") == 3
    for words in (
        "50% allocated at line 2 `???",
        "Out[",
        "gpumem: scratch removed ????",
        "float32  ?? line 3  ???",
        "variables ???: 1.14 MiB",
    ):
        assert words in said, said
