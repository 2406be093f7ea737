from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumem_magic._errors import BadUsageError
from gpumem_magic.allocator.conf import OPTIONS, TorchVersion, check, from_environment
from gpumem_magic.allocator.conf.table import describe_options, option_rows
from gpumem_magic.allocator.conf.torch_side import Verdict, torch_verdict

ABORTS, RAISES, TAKES = (verdict.value for verdict in Verdict)
T211 = TorchVersion(2, 11)
T28 = TorchVersion(2, 8)


@pytest.mark.parametrize(
    ("text", "at", "piece", "then", "corrected"),
    [
        ("max_split_size_mb=128", 17, "=", ABORTS, "max_split_size_mb:128"),
        ("caching_allocator", 0, "caching_allocator", ABORTS, ""),
        ("heuristic", 0, "heuristic", ABORTS, ""),
        ("nmalloc:3", 0, "nmalloc", RAISES, ""),
        ("expandable_segments:true", 20, "true", RAISES, "expandable_segments:True"),
        ("garbage_collection_threshold:1.5", 29, "1.5", RAISES, ""),
        ("garbage_collection_threshold:80%", 29, "80%", RAISES, "garbage_collection_threshold:0.8"),
        ("max_split_size_mb:10", 18, "10", RAISES, "max_split_size_mb:20"),
        ("expandeable_segments:True", 0, "expandeable_segments", RAISES, "expandable_segments:True"),
        ("'expandable_segments:True'", 0, "'", RAISES, "expandable_segments:True"),
        ("expandable_segments:True,,max_non_split_rounding_mb:64", 25, ",", RAISES, None),
        ("roundup_power2_divisions:3", 25, "3", RAISES, "roundup_power2_divisions:2"),
        ("roundup_power2_divisions:[256:1,512:2", 25, "[256:1,512:2", ABORTS, "roundup_power2_divisions:[256:1,512:2]"),
        (
            "max_split_size_mb:128,expandable_segments:True",
            0,
            "max_split_size_mb:128",
            "torch takes both",
            "expandable_segments:True",
        ),
    ],
)
def test_problem_has_place_consequence_and_fix(text, at, piece, then, corrected):
    checked = check(text, T211)
    assert not checked.ok
    problem = checked.problems[0]
    assert (problem.at, problem.text, problem.then) == (at, piece, then)
    assert text[at : at + len(piece)] == piece
    if corrected is not None:
        assert problem.fix == checked.corrected == corrected


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", {}),
        ("expandable_segments:True", {"expandable_segments": True}),
        (" expandable_segments : True , ", {"expandable_segments": True}),
        ("max_split_size_mb: 64, garbage_collection_threshold:0.8", None),
        ("backend:cudaMallocAsync", {"backend": "cudaMallocAsync"}),
        ("release_lock_on_hipmalloc:True", {"release_lock_on_cudamalloc": True}),
        ("per_process_memory_fraction:0.5,garbage_collection_threshold:0.8", None),
    ],
)
def test_good_strings_have_no_problem(text, settings):
    checked = check(text, T211)
    assert checked.problems == ()
    if settings is not None:
        assert checked.settings == settings


def test_brackets_fill_as_torch_fills_them():
    table = check("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", T211).settings["roundup_power2_divisions"]
    assert isinstance(table, dict)
    # Intervals below the first boundary take its value, '>' starts behind the last one, gaps are off (so says torch
    # 2.11 on a GPU). Before 2.9 '>' replaced the last boundary's own value.
    assert [table[str(1 << power)] for power in range(16)] == [1] * 9 + [2, 4] + [8] * 5
    gaps = check("roundup_power2_divisions:[1:4,2:2,4:8,16:1,64:2,>:4]", T211).settings["roundup_power2_divisions"]
    assert isinstance(gaps, dict)
    assert list(gaps.values()) == [4, 2, 8, 0, 1, 0, 2, *[4] * 9]
    old = check("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", T28).settings["roundup_power2_divisions"]
    assert isinstance(old, dict)
    assert [old[str(1 << power)] for power in range(16)] == [1] * 9 + [2] + [8] * 6


def test_range_depends_on_the_release():
    assert check("max_split_size_mb:20", T211).ok
    assert not check("max_split_size_mb:20", T28).ok
    assert not check("large_segment_size_mb:64,max_split_size_mb:32", T211).ok
    assert check("large_segment_size_mb:64,max_split_size_mb:64", T211).ok


def test_option_newer_than_torch_names_the_release():
    (problem,) = check("throw_on_cudamalloc_oom:True", T211).problems
    assert "needs torch 2.12" in problem.message
    assert check("throw_on_cudamalloc_oom:True", TorchVersion(2, 12)).ok


def test_a_lone_key_raises_late_before_2_9_and_aborts_from_then_on():
    assert check("pooled", T28).problems[0].then == RAISES
    assert check("pooled", TorchVersion(2, 9)).problems[0].then == ABORTS


def test_separators_people_write_are_named_once():
    for text in (
        "expandable_segments:True;garbage_collection_threshold:0.8",
        "expandable_segments:True garbage_collection_threshold:0.8",
        "expandable_segments:True\ngarbage_collection_threshold:0.8",
        "expandable_segments:True:garbage_collection_threshold:0.8",
    ):
        checked = check(text, T211)
        assert [problem.at for problem in checked.problems] == [24]
        assert checked.corrected == "expandable_segments:True,garbage_collection_threshold:0.8"


def test_garbage_collection_without_a_limit_is_noted():
    assert any("memory limit" in note for note in check("garbage_collection_threshold:0.8", T211).notes)
    limited = check("per_process_memory_fraction:0.5,garbage_collection_threshold:0.8", T211)
    assert not any("memory limit" in note for note in limited.notes)
    # Growing segments are never collected, so a capture is safe with them.
    assert any("capture" in note for note in limited.notes)
    growing = "per_process_memory_fraction:0.5,garbage_collection_threshold:0.8,expandable_segments:True"
    assert check(growing, T211).notes == ()


_PIECES = st.sampled_from([*"abTF:=,;[]> 0128.\n'\"", "True", "[256:1,>:4]", "0.8", *OPTIONS])


@given(st.lists(_PIECES, max_size=14).map("".join))
def test_any_string_is_answered_and_its_correction_is_accepted(text):
    checked = check(text, T211)
    for problem in checked.problems:
        assert text[problem.at : problem.at + len(problem.text)] == problem.text
    again = check(checked.corrected, T211)
    assert again.ok, (text, checked.corrected, again.problems)
    assert again.settings == checked.settings


@pytest.mark.parametrize(
    ("version", "environ", "variable", "notes"),
    [
        ("2.11", {}, None, 0),
        ("2.11", {"PYTORCH_CUDA_ALLOC_CONF": "a"}, "PYTORCH_CUDA_ALLOC_CONF", 0),
        ("2.11", {"PYTORCH_CUDA_ALLOC_CONF": "a", "PYTORCH_ALLOC_CONF": "b"}, "PYTORCH_CUDA_ALLOC_CONF", 1),
        ("2.14", {"PYTORCH_CUDA_ALLOC_CONF": "a", "PYTORCH_ALLOC_CONF": "b"}, "PYTORCH_CUDA_ALLOC_CONF", 1),
        ("2.8", {"PYTORCH_ALLOC_CONF": "b"}, None, 1),
        ("2.9.1", {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "PYTORCH_ALLOC_CONF", 1),
        ("2.8.0+rocm6.3", {"PYTORCH_HIP_ALLOC_CONF": "a"}, "PYTORCH_HIP_ALLOC_CONF", 0),
    ],
)
def test_the_variable_that_counts(version, environ, variable, notes):
    environment = from_environment(environ, TorchVersion.parse(version))
    assert environment.variable == variable
    assert len(environment.notes) == notes


def test_a_bad_version_is_bad_usage():
    with pytest.raises(BadUsageError, match=r"write for example 2\.11"):
        TorchVersion.parse("newest")


# What torch 2.11 (CUDA 13.0) did with each on an H200: the process's end, or its first CUDA allocation's.
SEEN_ON_2_11 = {
    "": "TAKES",
    " expandable_segments : True , ": "TAKES",
    "expandable_segments:True\n": "TAKES",
    "max_split_size_mb:20": "TAKES",
    "max_split_size_mb:128MB": "TAKES",
    "max_split_size_mb:1GB": "RAISES",
    "max_split_size_mb:10": "RAISES",
    "max_split_size_mb=128": "ABORTS",
    "max_split_size_mb,128": "TAKES",
    "max_split_size_mb": "ABORTS",
    "caching_allocator": "ABORTS",
    "nmalloc:3": "RAISES",
    "expandable_segments:true": "RAISES",
    "expandable_segments:1": "RAISES",
    "expandable_segments:True;garbage_collection_threshold:0.8": "ABORTS",
    "expandable_segments:True garbage_collection_threshold:0.8": "ABORTS",
    "expandable_segments:True:garbage_collection_threshold:0.8": "TAKES",
    "expandable_segments:True,,garbage_collection_threshold:0.8": "RAISES",
    "'expandable_segments:True'": "RAISES",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True": "RAISES",
    "garbage_collection_threshold:1.5": "RAISES",
    "roundup_power2_divisions:3": "RAISES",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]": "TAKES",
    "roundup_power2_divisions:[256:1,512:2": "ABORTS",
    "roundup_power2_divisions:[256:3]": "RAISES",
    "max_split_size_mb:64,max_split_size_mb:128": "TAKES",
    "large_segment_size_mb:64,max_split_size_mb:32": "RAISES",
    "throw_on_cudamalloc_oom:True": "RAISES",
    "pinned_num_register_threads:3": "RAISES",
    "backend:pooled": "RAISES",
    "max_split_size_mb:128,expandable_segments:True": "TAKES",
}


@pytest.mark.parametrize("text", SEEN_ON_2_11)
def test_torch_ends_as_it_was_seen_to(text):
    assert torch_verdict(text, (2, 11)) is Verdict[SEEN_ON_2_11[text]]
    if SEEN_ON_2_11[text] != "TAKES":
        assert Verdict[SEEN_ON_2_11[text]].value in {problem.then for problem in check(text, T211).problems}


# What torch 2.14.1 (CUDA 13.0, no GPU) did with each: imported with it where it aborts, else when it was set.
SEEN_ON_2_14 = {
    "max_split_size_mb:-1": "TAKES",
    "max_split_size_mb:- 1": "TAKES",
    "max_split_size_mb:--1": "RAISES",
    "max_split_size_mb:+64": "TAKES",
    "max_split_size_mb:064": "TAKES",
    "max_split_size_mb:64 MB": "TAKES",
    "max_split_size_mb:0x40": "RAISES",
    "max_split_size_mb:1e3": "RAISES",
    "max_split_size_mb:18446744073709551615": "TAKES",
    "max_split_size_mb:18446744073709551616": "RAISES",
    "max_split_size_mb:-18446744073709551615": "RAISES",
    "max_split_size_mb:\u0663\u0663": "RAISES",
    "max_split_size_mb:[64]": "RAISES",
    "max_split_size_mb:32,large_segment_size_mb:64": "RAISES",
    "max_split_size_mb:20,large_segment_size_mb:-1": "RAISES",
    "large_segment_size_mb:11,max_split_size_mb:11": "TAKES",
    "pinned_max_round_threshold_mb:0": "TAKES",
    "pinned_reserve_segment_size_mb:0": "RAISES",
    "pinned_num_register_threads:128MB": "TAKES",
    "pinned_num_register_threads:256": "RAISES",
    "pinned_num_register_threads:-18446744073709551615": "TAKES",
    "garbage_collection_threshold:0.8x": "TAKES",
    "garbage_collection_threshold:8e-1": "TAKES",
    "garbage_collection_threshold:0x1p-1": "TAKES",
    "garbage_collection_threshold:+.5": "TAKES",
    "garbage_collection_threshold:1e-40": "TAKES",
    "garbage_collection_threshold:1e-310": "RAISES",
    "garbage_collection_threshold:nan": "RAISES",
    "garbage_collection_threshold:.": "RAISES",
    "garbage_collection_threshold:0,8": "ABORTS",
    "per_process_memory_fraction:-0.0": "TAKES",
    "per_process_memory_fraction:1e400": "RAISES",
    "roundup_power2_divisions:4.5": "TAKES",
    "roundup_power2_divisions:0": "RAISES",
    "roundup_power2_divisions:[": "ABORTS",
    "roundup_power2_divisions:[]": "TAKES",
    "roundup_power2_divisions:[:]": "RAISES",
    "roundup_power2_divisions:[256]": "RAISES",
    "roundup_power2_divisions:[256:1,]": "TAKES",
    "roundup_power2_divisions:[256:1]]": "TAKES",
    "roundup_power2_divisions:[256:1:512:2]": "TAKES",
    "roundup_power2_divisions:[256:1,,512:2]": "RAISES",
    "roundup_power2_divisions:[0:1]": "RAISES",
    "roundup_power2_divisions:[131072:4]": "TAKES",
    "expandable_segments:[True]": "RAISES",
    "x,[,]": "RAISES",
    ",": "ABORTS",
    "a:b:c": "ABORTS",
}


@pytest.mark.parametrize("text", SEEN_ON_2_14)
def test_torch_reads_numbers_and_lists_as_it_was_seen_to(text):
    assert torch_verdict(text, (2, 14)) is Verdict[SEEN_ON_2_14[text]]
    # What torch takes in another sense than was meant is a problem that says how torch reads it.
    for problem in check(text, TorchVersion(2, 14)).problems:
        assert problem.then


@pytest.mark.parametrize(
    ("text", "at", "piece", "then", "corrected"),
    [
        ("max_split_size_mb:128MB", 18, "128MB", "torch reads 128 and drops the unit", "max_split_size_mb:128"),
        ("max_split_size_mb:100.5", 18, "100.5", "torch reads 100 and drops the rest", "max_split_size_mb:100"),
        ("max_split_size_mb:-1", 18, "-1", "as good as no bound", "max_split_size_mb:20"),
        ("max_split_size_mb:99999999999999999999", 18, "99999999999999999999", RAISES, ""),
        ("garbage_collection_threshold:0.8x", 29, "0.8x", "torch reads 0.8 and drops the rest", ""),
        ("expandable_segments:Ture", 20, "Ture", RAISES, "expandable_segments:True"),
        ("gc_threshold:0.8", 0, "gc_threshold", RAISES, "garbage_collection_threshold:0.8"),
        ("roundup_power2_divisions[256:1]", 24, "", ABORTS, "roundup_power2_divisions:[256:1]"),
        (":8", 0, ":", ABORTS, ""),
    ],
)
def test_units_and_numbers_that_torch_reads_otherwise(text, at, piece, then, corrected):
    problem = check(text, TorchVersion(2, 14)).problems[0]
    assert (problem.at, problem.text, problem.fix) == (at, piece, corrected)
    assert text[at : at + len(piece)] == piece
    assert then in problem.then


def test_before_2_9_numbers_have_32_bits():
    assert torch_verdict("max_split_size_mb:2147483647", (2, 8)) is Verdict.TAKES
    assert torch_verdict("max_split_size_mb:2147483648", (2, 8)) is Verdict.RAISES
    assert torch_verdict("max_split_size_mb:2147483648", (2, 9)) is Verdict.TAKES


def test_every_option_is_listed_with_what_it_takes_in_a_release():
    rows = {row["name"]: row for row in option_rows(T28)}
    assert list(rows) == list(OPTIONS)
    assert rows["max_split_size_mb"]["takes"] == "a whole number of MiB, more than 20"
    assert (rows["large_segment_size_mb"]["since"], rows["large_segment_size_mb"]["known"]) == ("2.11", False)
    assert rows["release_lock_on_cudamalloc"]["also"] == ["release_lock_on_hipmalloc"]
    text = describe_options(T211)
    assert "max_split_size_mb: a whole number of MiB, at least 20 (default unlimited)\n    blocks larger" in text
    assert "throw_on_cudamalloc_oom: True or False (default False; since torch 2.12, so not in 2.11)" in text
    assert text.endswith("heuristic, nmalloc, caching_allocator, pooled, expandable_segments_page_size")
