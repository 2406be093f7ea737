from __future__ import annotations

import pytest

from gpumem_magic._errors import BadUsageError
from gpumem_magic.recording.options import RecordOptions


def test_default_sizes_follow_the_stacks():
    assert [RecordOptions(stacks=stacks).entries for stacks in ("lines", "none", "python", "cpp")] == [
        1_000_000,
        1_000_000,
        200_000,
        200_000,
    ]
    assert RecordOptions(stacks="python", max_entries=7).entries == 7


@pytest.mark.parametrize(
    ("asked", "covered"),
    [
        (None, ["cpu", "cuda:0", "cuda:1", "mps"]),
        ("1", ["cuda:1"]),
        ("cuda:1", ["cuda:1"]),
        ("hip:1", ["cuda:1"]),
        ("cuda", ["cuda:0", "cuda:1"]),
        ("cpu", ["cpu"]),
        ("mps", ["mps"]),
        ("7", []),
    ],
)
def test_which_devices_are_shown(asked, covered):
    options = RecordOptions(device=asked)
    assert [key for key in ("cpu", "cuda:0", "cuda:1", "mps") if options.covers(key)] == covered


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": "gpu0"},
        {"device": "-1"},
        {"device": "cuda:"},
        {"device": ""},
        {"device": "1,2"},
        {"stacks": "all"},
        {"max_entries": 0},
    ],
)
def test_what_no_machine_could_serve_is_refused(wrong):
    with pytest.raises(BadUsageError) as refused:
        RecordOptions(**wrong)
    assert "\n" not in str(refused.value)
