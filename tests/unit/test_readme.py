"""The README says of commands, magics, options, files and places what is there."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpumem_magic import cli
from gpumem_magic.magics import auto, diff, gpumem, timeline, tools, whatif

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
ROWS = [line for line in README.splitlines() if line.startswith("| `")]


def options(parser: argparse.ArgumentParser) -> list[set[str]]:
    """Each option's names, for which the README may take one."""
    return [set(action.option_strings) for action in parser._actions if action.option_strings]


def named(start: str) -> str:
    """The first cell of the README's row that begins so."""
    (row,) = (row for row in ROWS if row.startswith(start) and not row[len(start)].isalpha())
    return row.split(" | ", 1)[0].replace("\\|", "|")


def commands() -> dict[str, argparse.ArgumentParser]:
    parser = cli._build_parser()
    (sub,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(sub.choices)


def magics() -> dict[str, argparse.ArgumentParser]:
    parsers = {}
    for module in (auto, diff, gpumem, timeline, tools, whatif):
        for kind in vars(module).values():
            for name, member in vars(kind).items() if isinstance(kind, type) else ():
                if name.startswith("gpumem") and hasattr(member, "parser"):
                    parsers[name] = member.parser
    return parsers


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_option_of_a_command_is_in_its_row_and_no_other(name):
    known = options(commands()[name])
    said = set(OPTION.findall(named(f"| `gpumem-magic {name}")))
    assert said <= set().union(*known)
    # Those have sentences of their own.
    elsewhere = ({"-h", "--help"}, {"--json"}, {"--print-systemd"})
    assert [names for names in known if not names & said and names not in elsewhere] == []


def test_the_commands_without_json_are_those():
    without = {name for name, parser in commands().items() if {"--json"} not in options(parser)}
    (sentence,) = re.findall(r"All but (.*) take `--json`", README)
    assert set(re.findall(r"`(\w+)`", sentence)) == without


def test_every_magic_has_a_row_with_its_options():
    assert len(magics()) == 9
    for name, parser in magics().items():
        known = [names - {"-h", "--help"} for names in options(parser)]
        if name == "gpumem":
            rows = re.findall(r"^\| `(--[a-z-]+)", README, re.MULTILINE)
            assert sorted(rows) == sorted(name for names in known for name in names)
            continue
        said = set(OPTION.findall(named(f"| `%{name}")))
        assert said == set().union(*known), name


def test_every_link_leads_somewhere():
    headings = re.findall(r"^#+ (.*)$", README, re.MULTILINE)
    places = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for target in re.findall(r"\]\(([^)\s]+)\)", README):
        if target.startswith("#"):
            assert target[1:] in places, target
        elif "://" not in target:
            assert (ROOT / target).exists(), target


def test_every_file_that_it_names_is_there():
    for name in re.findall(r"`((?:tests|labextension|notebooks)/[\w./-]+)`", README):
        assert (ROOT / name).exists(), name


def test_every_notebook_has_a_row():
    named_there = set(re.findall(r"^\| \[[^]]+\]\(notebooks/(\w+\.ipynb)\)", README, re.MULTILINE))
    assert named_there == {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}


@pytest.mark.skipif(find_spec("torch") is None, reason="the example uses torch")
def test_the_program_runs_as_it_stands_there(tmp_path):
    (program,) = re.findall(r"### From a program\n\n```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Peak ")
    assert (tmp_path / "step.gpumem.html").is_file()
