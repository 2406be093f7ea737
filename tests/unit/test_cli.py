"""The command line as a whole: its commands, its exit codes, its one-line errors."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec

import pytest

import gpumem_magic
from gpumem_magic import cli


def commands() -> dict[str, argparse.ArgumentParser]:
    parser = cli._build_parser()
    (sub,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(sub.choices)


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main([name, "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: gpumem-magic {name}")
    # A description, not the bare list of options.
    assert len(commands()[name].description or "") > 30
    for action in commands()[name]._actions:
        assert action.help, f"{name}: {action.dest} has no help"


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"gpumem-magic {gpumem_magic.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["demo", "--nonsense"]])
def test_bad_usage_exits_with_2_and_no_traceback(arguments):
    result = subprocess.run(
        [sys.executable, "-m", "gpumem_magic", *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("gpumem-magic")


def test_a_terminal_of_another_encoding_gets_a_readable_line():
    result = subprocess.run(
        [sys.executable, "-m", "gpumem_magic", "demo", "--out", "/dev/null/メモリ"],
        capture_output=True,
        check=False,
        env={"PYTHONIOENCODING": "cp1252", "PATH": ""},
    )
    assert result.returncode == 1 if find_spec("torch") else 2
    assert b"Traceback" not in result.stderr
    assert result.stderr.startswith(b"gpumem-magic: ")


def test_the_demo_leaves_a_foreign_notebook_alone(tmp_path, capsys):
    pytest.importorskip("torch", reason="without it the demo ends earlier")
    foreign = tmp_path / "quickstart.ipynb"
    foreign.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    before = foreign.read_bytes()
    assert cli.main(["demo", "--out", str(tmp_path)]) == 1
    assert "was not written by this command" in capsys.readouterr().err
    assert foreign.read_bytes() == before
