"""What-if answers: what they conclude, what limit they assume, and how a live view gets them."""

from __future__ import annotations

import os
import threading
from dataclasses import fields, replace
from pathlib import Path

import make_documents  # type: ignore[import-not-found]
import numpy as np
import pytest

from gpumem_magic._errors import BadUsageError, SnapshotError
from gpumem_magic.cli import main
from gpumem_magic.report import build
from gpumem_magic.report.container import decode
from gpumem_magic.report.questions import Questions
from gpumem_magic.report.reading import read_report
from gpumem_magic.report.report import Report
from gpumem_magic.report.whatif import desk as whatif_desk
from gpumem_magic.report.whatif.limits import natural_cap, why_not
from gpumem_magic.report.whatif.model import STACKLESS, Answer, Cap, Facts, Row, bare
from gpumem_magic.report.whatif.replay import question_for
from gpumem_magic.report.whatif.words import (
    cautions,
    conclusion,
    confidence,
    meaning,
    outcome,
    paste_lines,
    plain,
    table_html,
    text,
    why_ranges,
)
from gpumem_magic.trace.reader import read_trace

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings"
MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture(scope="module")
def report_of():
    known = {}

    def load(name):
        if name not in known:
            known[name] = build(read_trace(RECORDINGS / f"{name}.pickle.xz"), title=name)
        return known[name]

    return load


def facts(**fields):
    known = Facts("cuda:0", "", 4 * GIB, 1000, None, 2 * GIB, 2 * GIB, ())
    return replace(known, **fields)


def row(conf, expected, high=None, **fields):
    known = Row(conf, expected, expected, expected if high is None else high, "fits", unanimous=True, retries=0)
    return replace(known, **fields)


def answer(*rows, cap=None, **fields):
    return Answer(facts(**fields), cap, (row("", 4 * GIB, is_recorded=True), *rows))


def test_the_best_gives_back_most_and_is_the_simplest_of_equals():
    found = answer(
        row("expandable_segments:True,roundup_power2_divisions:4", 2 * GIB),
        row("expandable_segments:True", 2 * GIB),
        row("max_split_size_mb:128", 8 * GIB),
    )
    assert found.best.conf == "expandable_segments:True"
    assert conclusion(found) == (
        "`expandable_segments:True` would have reserved 2.00 GiB instead of 4.00 GiB: 2.00 GiB back, 50%"
    )


def test_a_gain_must_be_worth_it_in_the_whole_range():
    assert answer(row("a:1", 4 * GIB - 10 * MIB)).best is None
    assert answer(row("a:1", 2 * GIB, high=4 * GIB)).best is None
    assert answer(row("a:1", 2 * GIB, unanimous=False)).best is None
    assert answer(row("a:1", 2 * GIB, inert="not replayed")).best is None


def test_settings_stand_as_code_in_the_sentence_of_a_notebook():
    shown = table_html(answer(row("<a>:1", 2 * GIB))).partition("<table")[0]
    assert '<b>cuda:0: <code style="' in shown
    assert '">&lt;a&gt;:1</code> would have reserved 2.00 GiB' in shown
    assert "`" not in shown


def test_no_setting_helps_when_live_tensors_are_the_peak():
    assert conclusion(answer(row("a:1", 5 * GIB), live_peak=4 * GIB)) == (
        "no setting gives back anything of 4.00 GiB: 4.00 GiB are tensors in use at the peak"
    )
    assert conclusion(answer(row("a:1", 5 * GIB), live_peak=4 * GIB - 100 * MIB)) == (
        "no setting gives back more than 100 MiB of 4.00 GiB: 3.90 GiB are tensors in use at the peak"
    )
    said = conclusion(answer(row("a:1", 5 * GIB), row("b:1", 4 * GIB, inert="x")))
    assert said.startswith("none of the 1 other settings tried gives anything back worth having; 2.00 GiB are in use")


def test_out_of_memory_is_the_first_thing_said():
    dead = {"verdict": "oom", "dies_bytes": 100 * MIB, "dies_at": "line 7 `x = f()`", "dies_lifetime": 5}
    cap = Cap(4 * GIB, "this process's memory fraction")
    found = Answer(facts(), cap, (row("", 4 * GIB, is_recorded=True, **dead), row("a:1", 3 * GIB)))
    assert conclusion(found) == (
        "with `a:1` it fits under 4.00 GiB: 3.00 GiB reserved. "
        "With torch's defaults it runs out of memory, asking for 100 MiB at line 7 `x = f()`"
    )
    hopeless = Answer(facts(live_peak=5 * GIB), cap, (row("", 4 * GIB, is_recorded=True, **dead),))
    assert conclusion(hopeless).startswith(
        "no setting makes it fit under 4.00 GiB: the tensors in use at once need 5.00"
    )
    maybe = {**dead, "verdict": "oom_unless_fallback"}
    refused = Answer(facts(live_peak=5 * GIB), cap, (row("", 1, is_recorded=True, **maybe),))
    # Workspaces count as in use, so what is in use at once is no proof here.
    assert conclusion(refused) == (
        "it fits under 4.00 GiB only if cuDNN falls back to algorithms that need less: with torch's defaults no "
        "request is refused but its workspaces, the first of 100 MiB at line 7 `x = f()`"
    )
    assert "the very next event frees is taken for cuDNN's workspace" in cautions(refused)[0]
    beside = Answer(facts(), cap, (row("", 1, is_recorded=True, **maybe), row("a:1", 3 * GIB)))
    assert "it runs out of memory (unless cuDNN falls back)" in conclusion(beside)


def test_confidence_says_where_the_model_first_differs():
    assert confidence(facts()) == (True, "the model repeats this recording exactly, all 1,000 events")
    sure, said = confidence(facts(deviation=(17, "an allocation at 0x1", "an allocation at 0x2")))
    assert not sure
    assert said.startswith("less certain: from event 17 of 1,000 on")
    assert "an allocation at 0x2 instead of an allocation at 0x1" in said


def test_without_stacks_an_out_of_memory_is_said_with_care():
    dead = row("", GIB, is_recorded=True, verdict="oom")
    bare_facts = facts(has_stacks=False, warnings=("careful",))
    assert len(cautions(Answer(bare_facts, None, (dead,)))) == 2
    assert cautions(Answer(bare_facts, None, (row("", GIB),))) == ["careful"]
    assert cautions(Answer(facts(), None, (dead,))) == []


def test_a_line_to_paste_is_quoted_for_the_shell():
    lines = dict(paste_lines("roundup_power2_divisions:[256:1,>:2]", "cuda:0"))
    assert list(lines.values()) == [
        "%env PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:[256:1,>:2]",
        'import os; os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "roundup_power2_divisions:[256:1,>:2]"',
        "export PYTORCH_CUDA_ALLOC_CONF='roundup_power2_divisions:[256:1,>:2]'",
    ]
    assert [line for _, line in paste_lines("", "xpu:0")][1] == "unset PYTORCH_ALLOC_CONF"


def test_options_say_what_they_do_also_with_lists_of_values():
    said = meaning("expandable_segments:True,roundup_power2_divisions:[256:1,>:2]").split("\n")
    assert [line.split(":")[0] for line in said] == ["expandable_segments", "roundup_power2_divisions"]
    assert all(len(line) > 40 for line in said)
    assert meaning("") == ""


def test_html_escapes_what_came_from_a_path():
    dead = {"verdict": "oom", "dies_bytes": 1, "dies_at": "<img src=x>:3"}
    shown = table_html(Answer(facts(), Cap(GIB, "as asked for"), (row("", GIB, is_recorded=True, **dead),)))
    assert "<img" not in shown
    assert "&lt;img src=x&gt;:3" in shown


def test_the_limit_is_what_the_process_had(report_of):
    report = report_of("load_swap.c0")
    (device,) = report.devices
    assert natural_cap(device) is None
    head = replace(device.headline, device_used=10 * GIB, reserved_after=4 * GIB)
    assert natural_cap(replace(device, total=80 * GIB, limit=80 * GIB, headline=head)) == Cap(
        74 * GIB, "what the device has for torch", collects=False
    )
    assert natural_cap(replace(device, total=80 * GIB, limit=40 * GIB)) == Cap(
        40 * GIB, "this process's memory fraction"
    )
    # It ran to its end, so it has fitted.
    small = natural_cap(replace(device, total=80 * GIB, limit=1 * GIB))
    assert small is not None
    assert small.bytes == device.headline.reserved_peak


def test_the_limit_of_a_failed_run_is_the_least_that_it_may_have_been(report_of):
    (device,) = report_of("oom_growth").devices
    found = natural_cap(device)
    assert found is not None
    assert (found.bytes, found.collects) == (GIB, True)
    verdicts = {row.conf: row.verdict for row in report_of("oom_growth").explored().answers["cuda:0"].rows}
    assert set(verdicts.values()) == {"oom"}


def test_a_full_device_is_its_own_limit(report_of):
    (device,) = report_of("oom_growth").devices
    events = device.memory.device.events
    left = events.addr.copy()
    failed = int((events.action == 7).argmax())
    left[failed] = 3 * MIB
    memory = replace(device.memory, device=replace(device.memory.device, events=replace(events, addr=left)))
    found = natural_cap(replace(device, memory=memory))
    assert found is not None
    assert (found.bytes, found.collects) == (GIB + 3 * MIB, False)


def test_settings_that_cannot_act_are_not_replayed_and_say_why(report_of):
    rows = {row.conf: row for row in report_of("mlp_train.c0").explored().answers["cuda:0"].rows}
    assert rows["max_split_size_mb:512"].inert == "not replayed: no block reaches that size"
    assert rows["roundup_power2_divisions:4"].inert == "not replayed: it rounds no request of this program"
    assert rows["garbage_collection_threshold:0.8"].inert == "not replayed: torch collects only under a memory limit"
    both = rows["expandable_segments:True,roundup_power2_divisions:4"]
    assert both.inert == "not replayed: here it does the same as expandable_segments:True"
    assert both.expected == rows["expandable_segments:True"].expected
    assert rows[""].is_recorded
    report = report_of("mlp_train.c0")
    limited = replace(report.devices[0], total=80 * GIB, limit=80 * GIB)
    capped = replace(report, analysis=replace(report.analysis, devices=(limited,))).explored()
    rows = {row.conf: row for row in capped.answers["cuda:0"].rows}
    assert "set_per_process_memory_fraction" in rows["garbage_collection_threshold:0.8"].inert


def test_two_devices_have_an_answer_each(report_of):
    found = report_of("multi_gpu").explored([""])
    assert set(found.answers) == {"cuda:0", "cuda:1"}
    for key, one in found.answers.items():
        assert one.facts.device == key
        assert one.recorded.expected == one.facts.reserved_peak


def test_what_cannot_be_replayed_says_why():
    counters = make_documents.counters()
    assert "only counters were read here" in (why_not(counters) or "")
    with pytest.raises(SnapshotError, match="nothing to replay"):
        Report(counters).explored()


def test_a_wrong_setting_is_refused_before_anything_is_replayed(report_of):
    report = report_of("load_swap.c0")
    with pytest.raises(BadUsageError, match="Write 'max_split_size_mb:32'"):
        question_for(report.analysis, report.devices[0], ["max_split_size_mb=32"])


def test_a_file_carries_the_answer_and_the_map(report_of, tmp_path):
    path = report_of("kv_cache.c0").explored(["expandable_segments:True"]).save(tmp_path / "x.html")
    header, arrays = decode(read_report(path).document)
    (device,) = header["devices"]
    assert device["whatIf"]["best"] == "expandable_segments:True"
    moments = device["segments"]["moments"]
    assert [moment["name"] for moment in moments if moment["name"]] == ["peak", "end"]
    assert len(moments) > 10
    assert moments == sorted(moments, key=lambda moment: moment["timeUs"])
    peak = next(k for k, moment in enumerate(moments) if moment["name"] == "peak")
    assert arrays[f"d0.m{peak}.mapped"].sum() == moments[peak]["numbers"]["reserved"]
    used = arrays[f"d0.m{peak}.kind"] == 0
    assert arrays[f"d0.m{peak}.size"][used].sum() * 512 == moments[peak]["numbers"]["active"]
    assert arrays[f"d0.m{peak}.spans"].sum() == len(used)
    assert "2.19 GiB" in path.read_text("utf-8").split('id="gpumem-fallback"')[1]


def test_a_shared_file_has_no_folder_in_its_answer(report_of):
    found = report_of("oom_fragmented").explored([""])
    assert all("/" not in (row.dies_at or "") for row in bare(found.answers["cuda:0"]).rows)
    named = replace(found.answers["cuda:0"].rows[0], dies_at="/home/me/a.py:3 `secret()`")
    assert bare(replace(found.answers["cuda:0"], rows=(named,))).rows[0].dies_at == "a.py:3"
    shared = found.without_source()
    assert set(shared.answers) == {"cuda:0"}


def test_the_report_command_replays_when_asked_to(tmp_path, capsys):
    target = tmp_path / "x.html"
    assert main(["report", str(RECORDINGS / "load_swap.c0.pickle.xz"), "-o", str(target), "--whatif"]) == 0
    assert "what if, cuda:0: `expandable_segments:True` would have reserved 3.72 GiB" in capsys.readouterr().out
    assert target.is_file()


def test_plain_data_says_what_the_text_says(report_of):
    (found,) = report_of("load_swap.c0").explored().answers.values()
    data = plain(found)
    assert data["conclusion"] in text(found)
    assert [one["conf"] for one in data["rows"]] == [row.conf for row in found.rows]
    assert data["paste"][0]["text"] == "%env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


class _View:
    """A front end in name: collects what it is sent."""

    def __init__(self, report):
        self.questions = Questions(report)
        self.sent = []
        self.ended = threading.Event()

    def ask(self, *, wait=True, **content):
        self.sent.clear()
        self.ended.clear()
        self.questions.answer(content, self._take)
        if wait:
            assert self.ended.wait(60)
        return self.sent

    def _take(self, content, buffers):
        self.sent.append((content, buffers))
        if content.get("state") != "running":
            self.ended.set()


def test_a_live_view_gets_rows_one_by_one_and_then_the_answer(report_of):
    view = _View(report_of("load_swap.c0"))
    sent = [content for content, _ in view.ask(kind="whatif", id=3, device=0)]
    assert {content["id"] for content in sent} == {3}
    rows = [content["row"]["conf"] for content in sent if "row" in content]
    done = sent[-1]
    assert done["state"] == "done"
    assert rows == [row["conf"] for row in done["answer"]["rows"]]
    assert done["answer"] == plain(report_of("load_swap.c0").explored().answers["cuda:0"])
    # What is known is not replayed again; a setting of one's own joins it.
    sent = [content for content, _ in view.ask(kind="whatif", id=4, device=0, confs=["max_split_size_mb:32"])]
    again = [content["row"]["conf"] for content in sent if "row" in content]
    assert again == ["", "max_split_size_mb:32"]
    assert [row["conf"] for row in sent[-1]["answer"]["rows"]][-1] == "max_split_size_mb:32"


def test_a_live_view_is_told_what_is_wrong(report_of):
    view = _View(report_of("load_swap.c0"))
    ((problem, _),) = view.ask(kind="whatif", id=1, device=0, confs=["max_split_size_mb=32"])
    assert (problem["state"], problem["fix"], problem["conf"]) == (
        "problem",
        "max_split_size_mb:32",
        "max_split_size_mb=32",
    )
    ((problem, _),) = view.ask(kind="whatif", id=1, device=7)
    assert problem["message"] == "no such device"
    ((problem, _),) = view.ask(kind="whatif", id=1, device=0, capBytes="x")
    assert problem["state"] == "problem"


def test_a_question_under_way_is_stopped(report_of):
    view = _View(report_of("kv_cache.c0"))
    view.ask(wait=False, kind="whatif", id=1, device=0)
    view.questions.answer({"kind": "whatif", "id": 1, "device": 0, "stop": True}, view._take)
    assert view.ended.wait(30)
    assert view.sent[-1][0]["state"] == "stopped"


def test_a_report_that_was_let_go_says_so(report_of):
    view = _View(report_of("load_swap.c0"))
    view.questions.close()
    for kind in ("whatif", "segments", "detail"):
        ((reply, buffers),) = view.ask(kind=kind, id=1, device=0, timeUs=1, startUs=1, endUs=2)
        assert (reply["error"], buffers) == ("this report no longer answers: run its cell again", None)


def test_a_moment_is_sent_as_a_container(report_of):
    report = report_of("load_swap.c0")
    view = _View(report)
    ((reply, buffers),) = view.ask(kind="segments", id=9, device=0, timeUs=report.devices[0].headline.peak_us)
    assert reply == {"kind": "segments", "id": 9, "error": None}
    header, arrays = decode(buffers[0])
    (moment,) = header["segments"]["moments"]
    assert moment["numbers"]["active"] == report.devices[0].headline.allocated_peak
    assert arrays["d0.m0.mapped"].sum() == moment["numbers"]["reserved"]
    for wrong in ({"device": 5}, {"device": 0, "timeUs": None}, {"device": "x"}):
        ((reply, _),) = view.ask(kind="segments", id=1, **wrong)
        assert reply["error"]


@pytest.mark.skipif(not hasattr(os, "getpgid"), reason="needs POSIX")
def test_the_replaying_process_is_not_in_the_group_that_an_interrupt_goes_to(report_of, monkeypatch):
    groups = []
    begin = whatif_desk._start

    def start(complaints):
        process = begin(complaints)
        groups.append(os.getpgid(process.pid))
        return process

    monkeypatch.setattr(whatif_desk, "_start", start)
    _View(report_of("streams.c0")).ask(kind="whatif", id=1, device=0)
    assert len(groups) == 1
    assert groups[0] != os.getpgid(0)


def test_a_broken_process_is_one_line(report_of, monkeypatch):
    monkeypatch.setattr(whatif_desk, "_BOOT", "raise RuntimeError('no replay here')")
    ((_, _), (problem, _)) = _View(report_of("streams.c0")).ask(kind="whatif", id=1, device=0)
    assert problem["message"] == ("the replaying process ended early (RuntimeError: no replay here): ask again")


def test_a_process_that_dies_before_it_has_read_the_question_is_one_line_too(report_of, monkeypatch):
    monkeypatch.setattr(whatif_desk, "_BOOT", "raise RuntimeError('no replay here')")
    report = report_of("streams.c0")
    (device,) = report.devices
    # More than a pipe holds.
    question = replace(question_for(report.analysis, device), confs=("",) * 500_000)
    work = whatif_desk._Work(device, question, whatif_desk._Known(), lambda _message: None)
    assert work._listen(question, 1) == "the replaying process ended early (RuntimeError: no replay here): ask again"


@pytest.mark.parametrize("name", ["mlp_train.c1", "random_mix.c0", "oom_growth", "streams.c0", "cuda_graph.c1"])
def test_a_recording_with_holes_still_gets_an_answer_that_says_so(name):
    trace = read_trace(RECORDINGS / f"{name}.pickle.xz")
    keep = np.random.default_rng(2).random(len(trace.devices[0].events)) > 0.05
    events = trace.devices[0].events
    thinned = replace(events, **{field.name: getattr(events, field.name)[keep] for field in fields(events)})
    report = build(replace(trace, devices=(replace(trace.devices[0], events=thinned),)), title="x")
    explored = report.explored(["expandable_segments:True"])
    (found,) = explored.answers.values()
    sure, said = confidence(found.facts)
    assert not sure
    assert said.startswith("less certain: from event")
    assert b"Less certain: from event" in explored.to_html()
    memory = report.devices[0].memory
    assert memory is not None
    assert memory.at(len(thinned) // 2).fragmentation().reserved > 0


def test_a_doubt_about_unseen_calls_is_told_with_its_place():
    died = {
        "dies_bytes": 32 * MIB,
        "dies_at": "line 9 `z = h(y)`",
        "dies_lifetime": 7,
        "verdict": "fits_unless_emptied",
    }
    doubted = row("max_split_size_mb:64", GIB, **died, emptied_lifetime=4, emptied_at="line 3 `y = g(x)`")
    recorded = row("", GIB, is_recorded=True, verdict="oom", dies_bytes=MIB)
    found = Answer(facts(), Cap(GIB, "as asked for"), (recorded, doubted))
    # It is better than what dies; what fits without a doubt is better still.
    assert found.best == doubted
    assert "unless the program calls torch.cuda.empty_cache() where nothing was cached" in conclusion(found)
    sure = row("expandable_segments:True", GIB + MIB)
    assert Answer(found.facts, found.cap, (recorded, doubted, sure)).best is sure
    assert replace(found, rows=(row("", 4 * GIB, is_recorded=True), doubted)).best is None
    (line,) = [line for line in cautions(found) if "leaves no event" in line]
    assert "with one before line 3 `y = g(x)` it runs out of memory, asking for 32.0 MiB at line 9 `z = h(y)`" in line
    assert outcome(doubted).startswith("fits, unless ")
    told = plain(found)
    assert [one["verdict"] for one in told["rows"]] == ["oom", "fits_unless_emptied"]
    assert told["recordedDies"]
    shared = bare(found).rows[1]
    assert (shared.dies_at, shared.emptied_at) == ("line 9", "line 3")


def test_a_request_without_a_stack_is_placed_after_the_last_known_line():
    dead = row("", GIB, is_recorded=True, verdict="oom", dies_bytes=MIB, dies_at=f"{STACKLESS}/home/me/train.py:12")
    found = Answer(facts(), Cap(GIB, "as asked for"), (dead,))
    assert "asking for 1.00 MiB without a Python stack, after /home/me/train.py:12" in outcome(dead)
    assert bare(found).rows[0].dies_at == f"{STACKLESS}train.py:12"


def test_each_cause_of_a_range_is_told_once_and_how_firm_the_point_is():
    wide = {"low": GIB, "high": 2 * GIB}
    rows = (
        row("", GIB, is_recorded=True, doubts=("addresses",), **wide),
        row("max_split_size_mb:64", GIB, doubts=("streams", "unseen calls"), agreement=0.625, **wide),
        row("roundup_power2_divisions:4", GIB, doubts=("unseen calls",), agreement=0.9, **wide),
        row("max_split_size_mb:128", GIB, doubts=("addresses",), inert="not replayed", **wide),
        row("expandable_segments:True", GIB, doubts=("addresses",), low=GIB, high=GIB),
    )
    found = Answer(facts(), None, rows)
    streams, calls = why_ranges(found)
    assert streams.startswith("several streams use the same blocks here")
    assert calls.endswith("the point holds in 62% to 90% of the cases")
    assert plain(found)["ranges"] == [streams, calls]
    assert [one["doubts"] for one in plain(found)["rows"]][1] == ["streams", "unseen calls"]
    assert f"  why a range: {streams}\n" in text(found)
    assert "Why a range: several streams" in table_html(found)
    assert why_ranges(replace(found, rows=rows[3:])) == []


def test_a_verdict_says_what_it_depends_on():
    depends = row("", GIB, unanimous=False, doubts=("streams",))
    assert outcome(depends) == "fits (depends on when the GPU is done with blocks that several streams use)"
    both = replace(depends, doubts=("addresses", "streams"))
    assert "depends on where the driver puts segments and on when the GPU is done" in outcome(both)
    assert outcome(replace(depends, doubts=())) == "fits (depends on where the driver puts segments)"
