"""Settings in the processes that a kernel started: each has its own environment."""

from __future__ import annotations

from typing import Any

from gpumem_magic.allocator.conf.below import describe_below
from gpumem_magic.allocator.conf.environment import TorchVersion
from gpumem_magic.allocator.conf.in_session import Moment, SessionFacts
from gpumem_magic.recording.children import Child

WANTED = "expandable_segments:True"
VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
THREE = "4 (python train.py), 5 (python train.py), 6 (python train.py)"


def facts(text: str = WANTED, in_force: str | None = None) -> SessionFacts:
    environ = {VARIABLE: text} if text else {}
    return SessionFacts(environ, TorchVersion(2, 11), in_force, "", Moment(1), None, {})


def child(pid: int, **changes: Any) -> Child:
    return Child(pid, "python train.py", {VARIABLE: WANTED}, is_forked=False)._replace(**changes)


def test_without_children_nothing_is_said() -> None:
    assert describe_below((), facts()) == []


def test_a_child_that_was_given_the_variable_has_it_and_those_alike_share_a_line() -> None:
    lines = describe_below([child(pid) for pid in (4, 5, 6, 7, 8)], facts())
    assert lines == [f"in processes {THREE} and 2 more: " + f"{WANTED}, as this kernel's environment says"]


def test_the_wrong_process_of_a_chain_is_told_with_what_counts_there() -> None:
    (line,) = describe_below([child(4, environ={})], facts())
    assert line == (
        f"in process 4 (python train.py): torch's defaults, unlike this kernel's environment, which says '{WANTED}' "
        "now: it is a process's own environment that counts, as it was when the process was started"
    )
    (other,) = describe_below([child(4)], facts(""))
    assert other.startswith(f"in process 4 (python train.py): {WANTED}, unlike this kernel's environment, which says ")
    assert "which says nothing now" in other


def test_a_name_that_this_torch_does_not_read_is_told() -> None:
    environ = {"PYTORCH_ALLOC_CONF": WANTED}
    early = SessionFacts({}, TorchVersion(2, 8), None, "", None, None, {})
    (line,) = describe_below([child(4, environ=environ)], early)
    assert "environment says; PYTORCH_ALLOC_CONF is set, but torch 2.8 does not read it: use PYTORCH_CUDA" in line


def test_a_fork_has_what_was_read_here() -> None:
    forked = child(4, is_forked=True, environ={})
    assert describe_below([forked], facts(in_force=WANTED)) == [
        f"in process 4 (python train.py): {WANTED}, as here: a fork of this kernel, which had read them"
    ]
    assert describe_below([forked], facts(in_force=""))[0].endswith(
        "torch's defaults, as here: a fork of this kernel, which had read them"
    )
    assert describe_below([forked], facts())[0].endswith("what this kernel's environment said when it was forked")


def test_what_cannot_be_read_is_not_guessed() -> None:
    assert describe_below([child(4, environ=None)], facts())[0].endswith("not known: its environment cannot be read")
