"""Runs in which something else filled the device: what is said of them, and what is not."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

from gpumem_magic import cli
from gpumem_magic.allocator.lab import Lab
from gpumem_magic.allocator.settings_text import parse_settings
from gpumem_magic.allocator.squeeze import Means
from gpumem_magic.trace.convert import from_snapshot

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpu"))

from fuzz import synth
from fuzz.programs import FuzzProgram, Op

MIB = 1 << 20
ALONE = 10 * 100 + 5 * 150 + 4 * 300


def program():
    """Ten blocks of 100 MiB, five of 150, twelve of 60, four of 300, each set freed before the next."""
    written = FuzzProgram(1)
    number = 0
    for count, size in ((10, 100), (5, 150), (12, 60), (4, 300)):
        first = number
        for _ in range(count):
            written.ops.append(Op("alloc", number, size * MIB, 0, "raw"))
            number += 1
        if size != 300:
            written.ops += [Op("free", one) for one in range(first, number)]
    return written


def snapshot(limit=1100, *, stacks=True, conf="", dies=False):
    """While the blocks of 150 MiB come, others leave torch `limit` MiB."""
    squeeze = synth.Squeeze(20, 25, limit * MIB) if limit else None
    return synth.play(program(), conf, squeeze=squeeze, stacks=stacks, dies=dies)["snapshot"]


def lab(taken, means=None, **options):
    trace = from_snapshot(taken)
    return Lab(trace, trace.devices[0], means=means, **options)


def test_a_program_alone_is_not_said_to_be_squeezed():
    found = lab(snapshot(limit=0))
    assert found.squeeze is None
    assert found.reserved_peak == ALONE * MIB


def test_room_that_was_there_at_another_time_is_a_proof():
    found = lab(snapshot())
    squeeze = found.squeeze
    assert squeeze is not None
    assert squeeze.is_certain
    assert (squeeze.count, squeeze.asked, squeeze.reserved) == (1, 150 * MIB, 1000 * MIB)
    assert squeeze.reached == found.reserved_peak == 2070 * MIB
    assert found.device.events.action[squeeze.event] == 4
    # It is repeated to the last event all the same, and named before anything else.
    assert found.exact
    (line,) = found.warnings
    assert line.startswith("cuda:0: something else filled the device, another process as a rule: a request found no")
    assert "150 MiB more than the 0.98 GiB reserved, and 2.02 GiB had room at another time" in line
    assert found.predict(parse_settings("")).expected == found.reserved_peak


def test_a_split_limit_gives_back_one_large_block_at_a_time():
    found = lab(snapshot(conf="max_split_size_mb:64"))
    assert found.squeeze is not None
    assert (found.squeeze.count, found.squeeze.asked, found.squeeze.is_certain) == (4, 150 * MIB, True)


def test_growing_segments_are_squeezed_too():
    # Pages that are free are given back, and the last block of 300 MiB is looked for again.
    squeeze = synth.Squeeze(54, 58, 1250 * MIB)
    taken = synth.play(program(), "expandable_segments:True", squeeze=squeeze, stacks=True)["snapshot"]
    assert "segment_unmap" in {entry["action"] for entry in taken["device_traces"][0]}
    found = lab(taken, Means(fraction=16384 * MIB, total=16384 * MIB))
    assert found.squeeze is not None
    assert (found.squeeze.asked, found.squeeze.total) == (300 * MIB, 16384 * MIB)
    assert found.exact


def test_a_limit_that_is_known_explains_itself():
    taken = snapshot()
    assert lab(taken, Means(fraction=1149 * MIB)).squeeze is None
    # The request needed 1150 MiB in all.
    assert lab(taken, Means(fraction=1150 * MIB)).squeeze is not None


def test_without_stacks_the_number_of_calls_tells():
    taken = snapshot(stacks=False)
    # A call of empty_cache leaves the same events.
    assert lab(taken).squeeze is None
    assert lab(taken, emptied=1).squeeze is None
    squeeze = lab(taken, emptied=0).squeeze
    assert squeeze is not None
    assert (squeeze.count, squeeze.reached) == (1, 2070 * MIB)


def test_the_size_of_the_device_tells_where_nothing_larger_was_reserved():
    written = program()
    written.ops = written.ops[:25]  # the last request is the one that found no room
    taken = synth.play(written, "", squeeze=synth.Squeeze(20, 25, 1100 * MIB), stacks=True)["snapshot"]
    squeeze = lab(taken).squeeze
    assert squeeze is not None
    assert not squeeze.is_certain
    assert "a memory fraction was in the way, or another process filled the device" in squeeze.text("cuda:0")
    shared = lab(taken, Means(fraction=16384 * MIB, total=16384 * MIB)).squeeze
    assert shared is not None
    assert shared.is_certain
    assert "of 16.0 GiB, and no memory fraction in the way" in shared.text("cuda:0")
    # On a small card the program and its own context fill it.
    assert lab(taken, Means(fraction=3000 * MIB, total=3000 * MIB)).squeeze is None


def test_a_request_that_failed_while_more_had_been_reserved():
    taken = snapshot(limit=500, dies=True)
    found = lab(taken)
    assert found.squeeze is not None
    assert (found.squeeze.reached, found.squeeze.asked) == (1000 * MIB, 150 * MIB)
    assert found.exact
    # Where the driver had enough, a memory fraction was set in between.
    for entry in taken["device_traces"][0]:
        if entry["action"] == "oom":
            entry["device_free"] = 1 << 30
    again = lab(taken).squeeze
    assert again is not None
    assert not again.is_certain


def test_files_are_named_as_such(tmp_path, capsys):
    path = tmp_path / "squeezed.pickle"
    path.write_bytes(pickle.dumps(snapshot(), protocol=4))
    named = "something else filled the device, another process as a rule"
    assert cli.main(["whatif", str(path), "--conf", "expandable_segments:True", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert named in told["warnings"][0]
    assert told["recorded"]["exact"]
    assert cli.main(["whatif", str(path), "--conf", "expandable_segments:True"]) == 0
    assert f"less certain: cuda:0: {named}" in capsys.readouterr().out
    assert cli.main(["summary", str(path), "--json"]) == 0
    assert named in json.loads(capsys.readouterr().out)["warnings"][-1]
