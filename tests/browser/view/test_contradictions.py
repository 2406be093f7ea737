"""Recordings that say little or contradict themselves: what is known is drawn, what is not is said."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Page

MIB = 1 << 20
BASE = 0x7F0000000000
FRAMES = [{"name": "f", "filename": "a.py", "line": 7}]


def event(action: str, offset: int, size: int, time_us: int) -> dict[str, object]:
    place = {"addr": BASE + offset * MIB, "size": size * MIB, "stream": 0}
    return {"action": action, "time_us": 1_700_000_000_000_000 + time_us, "frames": FRAMES} | place


def state(*allocated: tuple[int, int]) -> dict[str, object]:
    blocks, cursor = [], 0
    for offset, size in (*allocated, (20, 0)):
        if offset > cursor:
            free = {"size": (offset - cursor) * MIB, "requested_size": 0, "state": "inactive", "frames": []}
            blocks.append({"address": BASE + cursor * MIB} | free)
        if size:
            used = {"size": size * MIB, "requested_size": size * MIB, "state": "active_allocated", "frames": FRAMES}
            blocks.append({"address": BASE + offset * MIB} | used)
        cursor = offset + size
    sizes = {"total_size": 20 * MIB, "allocated_size": 0, "active_size": 0, "requested_size": 0}
    kind = {"device": 0, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False}
    return {"address": BASE, "frames": [], "blocks": blocks} | sizes | kind


CASES = {
    "no event": ([], state((0, 5)), "No events: 5.00 MiB are allocated", "5.00 MiB", None),
    "one event": ([event("alloc", 0, 3, 0)], state((0, 3)), "Peak 3.00 MiB at a.py:7 f", "3.00 MiB", None),
    "overflowed": (
        [event("alloc", 6, 2, 0), event("alloc", 9, 4, 30), event("free_requested", 9, 4, 60)],
        state((0, 5), (6, 2)),
        "Peak 11.0 MiB, 2.00 MiB stayed, both at a.py:7 f.",
        "11.0 MiB",
        "ring overflowed: what happened before the first event is missing",
    ),
    "free without allocation": (
        [event("alloc", 4, 2, 0), event("free_requested", 10, 3, 50), event("free_completed", 10, 3, 51)],
        state((4, 2)),
        "Peak 5.00 MiB",
        "5.00 MiB",
        "contradicts itself in 1 place;",
    ),
    "allocation over a live one": (
        [
            event("alloc", 0, 4, 0),
            event("alloc", 1, 4, 30),
            event("alloc", 0, 4, 60),
            event("free_requested", 0, 4, 90),
        ],
        state(),
        "Peak 8.00 MiB",
        "8.00 MiB",
        "contradicts itself in 4 places;",
    ),
    "time runs backwards": (
        [
            event("alloc", 0, 4, 100),
            event("alloc", 4, 4, 40),
            event("alloc", 8, 4, 120),
            event("free_requested", 0, 4, 10),
        ],
        state((4, 4), (8, 4)),
        "Peak 12.0 MiB",
        "12.0 MiB",
        "time goes backwards in 2 places",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_known_is_drawn_and_unknown_is_said(name: str, new_page: Callable[..., Page], tmp_path: Path, shoot):
    from gpumem_magic.cli import main

    events, segment, sentence, peak, warning = CASES[name]
    source = tmp_path / "x.pickle"
    snapshot = {"segments": [segment], "device_traces": [events]}
    if name == "overflowed":
        snapshot["allocator_settings"] = {"trace_alloc_overflowed": True}
    source.write_bytes(pickle.dumps(snapshot, protocol=4))
    out = tmp_path / "x.html"
    assert main(["report", str(source), "-o", str(out)]) == 0
    page = new_page(width=800)
    page.goto(out.as_uri())
    overlay = page.locator("#gpumem-report .overlay[aria-description]")
    expect(page.locator("#gpumem-report .sentence")).to_contain_text(sentence)
    expect(page.locator("#gpumem-report .numbers .key dd")).to_have_text(peak)
    expect(page.locator("#gpumem-report tfoot td").first).to_have_text(peak)
    expect(overlay).to_have_attribute("aria-description", f"The whole recording: at most {peak} allocated.")
    warnings = page.locator("#gpumem-report .notes .warning")
    if warning is None:
        expect(warnings).to_have_count(0)
    else:
        expect(warnings.first).to_contain_text(warning)
        assert "cuda:0: cuda:0" not in warnings.first.inner_text()
    # Every gesture works on what little there is.
    overlay.focus()
    for key in ("p", "w", "w", "d", "t", "l", "h", "Enter", "f", ".", ",", "0", "Escape"):
        page.keyboard.press(key)
    expect(page.locator("#gpumem-report .failure")).to_have_count(0)
    shoot(page, name.replace(" ", "-"))
