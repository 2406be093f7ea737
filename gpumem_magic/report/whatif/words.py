"""What-if answers in words: a conclusion that a tired person can act on, a table as text and as HTML, plain data."""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpumem_magic._format import format_bytes, format_count
from gpumem_magic.allocator.conf import OPTIONS
from gpumem_magic.report.fallback import escape
from gpumem_magic.report.text import display_width
from gpumem_magic.report.whatif.model import STACKLESS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem_magic.report.whatif.model import Answer, Facts, Row

__all__ = [
    "cautions",
    "conclusion",
    "confidence",
    "meaning",
    "outcome",
    "paste_lines",
    "plain",
    "plain_row",
    "spread",
    "table_html",
    "text",
    "why_ranges",
]

# Between options, not inside a bracketed list.
_OPTION_BREAK = re.compile(r",(?![^\[]*\])")
_DEFAULTS = "torch's defaults"
_VARIABLE = {"cuda": "PYTORCH_CUDA_ALLOC_CONF", "xpu": "PYTORCH_ALLOC_CONF"}
# Above this share of the reserved peak, live tensors are the answer and settings are not.
_LIVE_SHARE = 0.9
_UNLESS = {
    "fits_unless_delayed": "unless the GPU is done later with blocks that several streams use",
    "fits_unless_emptied": "unless the program calls torch.cuda.empty_cache() where nothing was cached",
}
# What a verdict, and a peak, can depend on.
_DEPENDS = {
    "addresses": "where the driver puts segments",
    "streams": "when the GPU is done with blocks that several streams use",
}
_RANGES = {
    "streams": (
        "several streams use the same blocks here, and such a block is free again when the GPU is done with it: "
        "sooner or later from run to run, and the peak with it. The point is the recorded run's timing, "
        "the range that of others"
    ),
    "unseen calls": (
        "`torch.cuda.empty_cache()` leaves no event where it has nothing to give back, and this program calls it. "
        "The point takes the calls that left one, and those at the same place of a loop; the range more of them"
    ),
    "addresses": (
        "between free blocks of one size torch takes the lowest address. The point is the driver's usual order, the "
        "range others"
    ),
}


def _name(conf: str) -> str:
    return f"`{conf}`" if conf else _DEFAULTS


def spread(row: Row) -> str:
    """Write a row's range; empty when it is one number, or was measured."""
    if row.low == row.high or row.is_recorded:
        return ""
    low, high = format_bytes(row.low), format_bytes(row.high)
    # A range that rounds to one number is told by its width.
    return f"{low} to {high}" if low != high else f"± {format_bytes((row.high - row.low) / 2)}"


def outcome(row: Row, *, with_place: bool = True) -> str:
    """Write whether the program would have run to its end."""
    if row.ends_well:
        text = "fits"
        if row.retries:
            text += f", after freeing the cache {format_count(row.retries)} {'time' if row.retries == 1 else 'times'}"
        if row.verdict in _UNLESS:
            text += f", {_UNLESS[row.verdict]}"
    else:
        text = "out of memory" if row.verdict == "oom" else "out of memory unless cuDNN falls back"
        if row.dies_bytes is not None:
            text += f", asking for {format_bytes(row.dies_bytes)}"
        if with_place and row.dies_at is not None:
            text += _at(row.dies_at)
    if row.unanimous or row.verdict == "fits_unless_delayed":
        return text
    on = [words for name, words in _DEPENDS.items() if name in row.doubts] or [_DEPENDS["addresses"]]
    return f"{text} (depends on {' and on '.join(on)})"


def why_ranges(answer: Answer) -> list[str]:
    """Return why there are ranges, one sentence for each cause."""
    shown = [row for row in answer.rows if spread(row) and row.inert is None]
    lines = []
    for name, words in _RANGES.items():
        rows = [row for row in shown if name in row.doubts]
        if rows:
            lines.append(words + (_how_likely(rows) if name == "unseen calls" else ""))
    return lines


def _how_likely(rows: Sequence[Row]) -> str:
    shares = [row.agreement for row in rows if row.agreement is not None]
    if not shares or min(shares) == 1:
        return ""
    least, most = f"{min(shares):.0%}", f"{max(shares):.0%}"
    likely = least if least == most else f"{least} to {most}"
    return f"; with as many more as the seen ones let expect, the point holds in {likely} of the cases"


def _at(place: str | None) -> str:
    if place is None:
        return ""
    return f" {place}" if place.startswith(STACKLESS) else f" at {place}"


def _recorded_death(answer: Answer) -> Row | None:
    recorded = answer.recorded
    return recorded if recorded is not None and not recorded.ends_well else None


def conclusion(answer: Answer) -> str:
    """Return the one sentence that says what to do, or that nothing would help."""
    facts, best, dead = answer.facts, answer.best, _recorded_death(answer)
    if dead is not None:
        return _conclusion_of_death(answer, dead)
    peak = facts.reserved_peak
    if not peak:
        return "nothing was reserved in this recording, so no setting changes anything"
    if best is not None:
        saves = peak - best.expected
        span = f" ({spread(best)})" if spread(best) else ""
        return (
            f"{_name(best.conf)} would have reserved {format_bytes(best.expected)}{span} instead of "
            f"{format_bytes(peak)}: {format_bytes(saves)} back, {saves / peak:.0%}"
        )
    possible = peak - facts.live_peak
    if facts.live_peak >= _LIVE_SHARE * peak or not possible:
        most = f"more than {format_bytes(possible)}" if possible > 0 else "anything"
        return (
            f"no setting gives back {most} of {format_bytes(peak)}: "
            f"{format_bytes(facts.live_peak)} are tensors in use at the peak"
        )
    tried = sum(1 for row in answer.rows if row.inert is None and not row.is_recorded)
    packed = peak - facts.packed_peak
    return (
        f"none of the {tried} other settings tried gives anything back worth having; "
        f"{format_bytes(facts.live_peak)} are in use at the peak, and {format_bytes(max(packed, 0))} of the "
        f"{format_bytes(peak)} would not be needed if blocks were placed with the future known"
    )


def _conclusion_of_death(answer: Answer, dead: Row) -> str:
    facts, best, cap = answer.facts, answer.best, answer.cap
    limit = "" if cap is None else f" under {format_bytes(cap.bytes)}"
    maybe = "" if dead.verdict == "oom" else " (unless cuDNN falls back)"
    at = _at(dead.dies_at)
    asked = "" if dead.dies_bytes is None else f", asking for {format_bytes(dead.dies_bytes)}{at}"
    if best is not None:
        ends = ", as far as the recording goes" if dead.dies_lifetime < 0 else ""
        if best.verdict in _UNLESS:
            ends += f", {_UNLESS[best.verdict]}"
        return (
            f"with {_name(best.conf)} it fits{limit}{ends}: {format_bytes(best.expected)} reserved. "
            f"With {_name(dead.conf)} it runs out of memory{maybe}{asked}"
        )
    if dead.verdict != "oom":
        # The workspaces count as in use, so the bound says nothing here.
        return (
            f"it fits{limit} only if cuDNN falls back to algorithms that need less: with {_name(dead.conf)} no request "
            f"is refused but its workspaces{asked.replace(', asking for', ', the first of')}"
        )
    if cap is not None and facts.live_peak > cap.bytes:
        return (
            f"no setting makes it fit{limit}: the tensors in use at once need {format_bytes(facts.live_peak)} alone. "
            f"With {_name(dead.conf)} it runs out of memory{maybe}{asked}"
        )
    held = "" if cap is None else f"; {format_bytes(facts.live_peak)} is the most in use at once"
    return f"none of these settings makes it fit{limit}: it runs out of memory{maybe}{asked}{held}"


def confidence(facts: Facts) -> tuple[bool, str]:
    """Return whether the model repeats the recording exactly, and a sentence that says so."""
    if facts.deviation is None and not facts.warnings:
        return True, f"the model repeats this recording exactly, all {format_count(facts.events)} events"
    if facts.deviation is None:
        return False, "less certain: " + facts.warnings[0]
    event, expected, recorded = facts.deviation
    return False, (
        f"less certain: from event {format_count(event)} of {format_count(facts.events)} on the model differs from "
        f"the recording ({recorded} instead of {expected})"
    )


def cautions(answer: Answer) -> list[str]:
    """Return what else the reader must know, one line each."""
    lines = list(answer.facts.warnings)
    if not answer.facts.has_stacks and any(row.verdict == "oom" for row in answer.rows):
        lines.append(
            "without stacks (--stacks python) requests that cuDNN can do without are not told from others: "
            "what is called out of memory may be survived"
        )
    if any(row.verdict == "oom_unless_fallback" for row in answer.rows):
        lines.append(
            "a request that a convolution makes and the very next event frees is taken for cuDNN's workspace: refused, "
            "cuDNN tries another algorithm, slower as a rule. torch's error does not come then"
        )
    doubted = [row for row in answer.rows if row.verdict == "fits_unless_emptied"]
    if doubted:
        lines.append(_about_unseen_calls(doubted[0]))
    return lines


def _about_unseen_calls(row: Row) -> str:
    before = ""
    if row.emptied_at is not None:
        after = row.emptied_at.removeprefix(STACKLESS)
        before = f" before {after}" if after == row.emptied_at else f" after {after}"
    asked = "" if row.dies_bytes is None else f", asking for {format_bytes(row.dies_bytes)}"
    return (
        "a torch.cuda.empty_cache() that has nothing to give back leaves no event. Under another setting or limit it "
        "may give something back, and what follows then lies elsewhere. The program fits under "
        f"{_name(row.conf)} if it makes no such call; with one{before} it runs out of memory{asked}{_at(row.dies_at)}"
    )


def paste_lines(conf: str, device: str) -> list[tuple[str, str]]:
    """Return where to put a setting, and the line to paste there.

    Parameters
    ----------
    conf
        The setting; empty for torch's defaults.
    device
        In torch's notation.
    """
    variable = _VARIABLE.get(device.split(":", 1)[0], "PYTORCH_CUDA_ALLOC_CONF")
    if not conf:
        return [
            ("notebook: first cell, then restart the kernel", f'import os; os.environ.pop("{variable}", None)'),
            ("shell, before Python starts", f"unset {variable}"),
        ]
    return [
        ("notebook: first cell, before anything uses the GPU; then restart the kernel", f"%env {variable}={conf}"),
        ("script: above import torch", f'import os; os.environ["{variable}"] = "{conf}"'),
        ("shell, before Python starts", f"export {variable}={shlex.quote(conf)}"),
    ]


def meaning(conf: str) -> str:
    """Return what the options of a setting do, one line each."""
    names = [part.split(":", 1)[0].strip() for part in _OPTION_BREAK.split(conf)]
    return "\n".join(f"{name}: {OPTIONS[name].meaning}" for name in names if name in OPTIONS)


def plain_row(answer_peak: int, row: Row) -> dict[str, Any]:
    """Return a row as JSON-compatible data for the view."""
    return {
        "conf": row.conf,
        "meaning": meaning(row.conf),
        "low": row.low,
        "expected": row.expected,
        "high": row.high,
        "change": row.expected - answer_peak,
        "spread": spread(row),
        "verdict": row.verdict,
        "unanimous": row.unanimous,
        "outcome": outcome(row),
        "retries": row.retries,
        "recorded": row.is_recorded,
        "inert": row.inert,
        "doubts": list(row.doubts),
        "agreement": row.agreement,
        "diesBytes": row.dies_bytes,
        "diesAt": row.dies_at,
    }


def plain(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON-compatible data: what the view draws (`labextension/src/view/whatif/document.ts`)."""
    facts, best, recorded = answer.facts, answer.best, answer.recorded
    exact, sure = confidence(facts)
    return {
        "device": facts.device,
        "conf": facts.conf,
        "reservedPeak": facts.reserved_peak,
        "events": facts.events,
        "exact": exact,
        "confidence": sure,
        "livePeak": facts.live_peak,
        "packedPeak": facts.packed_peak,
        "cap": None if answer.cap is None else asdict(answer.cap),
        "rows": [plain_row(facts.reserved_peak, row) for row in answer.rows],
        "best": None if best is None else best.conf,
        "recordedDies": recorded is not None and not recorded.ends_well,
        "conclusion": conclusion(answer),
        "paste": []
        if best is None
        else [{"where": where, "text": line} for where, line in paste_lines(best.conf, facts.device)],
        "warnings": cautions(answer),
        "ranges": why_ranges(answer),
        "callsKnown": facts.knows_calls,
    }


def _cells(answer: Answer) -> list[list[str]]:
    """Write the table; what was not replayed has two cells, its setting and why."""
    facts = answer.facts
    head = ["setting", "reserved", "range", "against recorded", "retries"]
    if answer.cap is not None:
        head.append(f"under {format_bytes(answer.cap.bytes)}")
    rows = [head]
    for row in answer.rows:
        name = f"{row.conf or '(defaults)'}{' *' if row.is_recorded else ''}"
        if row.inert is not None:
            rows.append([name, row.inert])
            continue
        change = format_bytes(row.expected - facts.reserved_peak, signed=True)
        # One that died on the way is no comparison.
        known = [spread(row), change] if row.ends_well else ["until then", ""]
        cells = [name, format_bytes(row.expected), *known, format_count(row.retries)]
        rows.append(cells if answer.cap is None else [*cells, outcome(row)])
    return rows


def _aligned(rows: list[list[str]]) -> list[str]:
    """Align the columns: names and outcomes to the left, numbers to the right."""
    whole = [row for row in rows if len(row) > 2]
    widths = [max(map(display_width, column)) for column in zip(*whole, strict=True)]
    widths[0] = max(display_width(row[0]) for row in rows)
    lines = []
    for row in rows:
        pads = [" " * (width - display_width(cell)) for cell, width in zip(row, widths, strict=False)]
        cells = [
            cell + pad if index in {0, 5} or len(row) == 2 else pad + cell
            for index, (cell, pad) in enumerate(zip(row, pads, strict=True))
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def text(answer: Answer) -> str:
    """Return the answer as lines for a terminal: conclusion, table, what to paste, how certain it is."""
    facts = answer.facts
    _, sure = confidence(facts)
    lines = [
        f"{facts.device}: {conclusion(answer)}",
        f"  recorded: {format_bytes(facts.reserved_peak)} reserved at most, under {_name(facts.conf)}",
        (
            f"  bound: no setting can do with less than {format_bytes(facts.live_peak)}; "
            f"an arrangement of {format_bytes(facts.packed_peak)} exists"
        ),
    ]
    if answer.cap is not None:
        lines.append(f"  limit: {format_bytes(answer.cap.bytes)}, {answer.cap.why}")
    lines += _aligned(_cells(answer))
    if any(row.is_recorded for row in answer.rows):
        lines.append("  * in force when it was recorded")
    best = answer.best
    if best is not None:
        lines += [f"  {where}:\n    {line}" for where, line in paste_lines(best.conf, facts.device)]
    lines.append(f"  {sure}")
    lines += [f"  why a range: {line}" for line in why_ranges(answer)]
    lines += [f"  warning: {line}" for line in cautions(answer) if line not in sure]
    return "\n".join(lines)


_TD = "padding:2px 12px 2px 0;text-align:left;vertical-align:top"
_TN = "padding:2px 12px 2px 0;text-align:right;white-space:nowrap;vertical-align:top"
_MONO = "font-family:monospace;unicode-bidi:isolate"


def _row_html(answer: Answer, row: Row, scale: int) -> str:
    best = answer.best
    mark = " (in force)" if row.is_recorded else " (best)" if row is best else ""
    weight = ";font-weight:bold" if row is best or row.is_recorded else ""
    name = f'<code style="{_MONO}{weight}">{escape(row.conf or "(defaults)")}</code>{escape(mark)}'
    if row.inert is not None:
        return (
            f'<tr><td style="{_TD}">{name}</td><td colspan="5" style="{_TD};opacity:.7">{escape(row.inert)}</td></tr>'
        )
    fits = row.ends_well
    colour = "#c0392b" if not fits else "#2e8b57" if row is best else "#7f8c9a"
    width = round(100 * row.expected / scale, 1) if scale else 0
    bar = (
        '<div style="width:160px;height:10px;background:rgba(128,128,128,.18);border-radius:2px">'
        f'<div style="width:{width}%;height:10px;background:{colour};border-radius:2px"></div></div>'
    )
    verdict = escape(outcome(row)) if answer.cap is not None else ""
    change = format_bytes(row.expected - answer.facts.reserved_peak, signed=True) if fits else ""
    span = spread(row) if fits else "until then"
    return (
        f'<tr><td style="{_TD}">{name}</td><td style="{_TN}">{format_bytes(row.expected)}</td>'
        f'<td style="{_TD};vertical-align:middle">{bar}</td><td style="{_TN}">{escape(span)}</td>'
        f'<td style="{_TN}">{change}</td><td style="{_TD}">{verdict}</td></tr>'
    )


def _coded(sentence: str) -> str:
    """Return a sentence as HTML, settings between backticks as code."""
    pieces = re.split(r"`([^`]+)`", sentence)
    return "".join(
        f'<code style="{_MONO}">{escape(piece)}</code>' if at % 2 else escape(piece) for at, piece in enumerate(pieces)
    )


def table_html(answer: Answer) -> str:
    """Return the answer as HTML that needs no script and keeps in an untrusted notebook."""
    facts = answer.facts
    _, sure = confidence(facts)
    scale = max([facts.reserved_peak, *(row.expected for row in answer.rows)])
    limit = "" if answer.cap is None else f"under {format_bytes(answer.cap.bytes)} ({answer.cap.why})"
    heads = (("setting", _TD), ("reserved", _TN), ("", _TD), ("range", _TN), ("against recorded", _TN), (limit, _TD))
    head = "".join(f'<th scope="col" style="{style}">{escape(name)}</th>' for name, style in heads)
    rows = "".join(_row_html(answer, row, scale) for row in answer.rows)
    best = answer.best
    paste = ""
    if best is not None:
        items = "".join(
            f'<div>{escape(where)}:<br><code style="{_MONO};user-select:all">{escape(line)}</code></div>'
            for where, line in paste_lines(best.conf, facts.device)
        )
        paste = f'<div style="margin:6px 0">{items}</div>'
    bound = (
        f"No setting can do with less than {format_bytes(facts.live_peak)} (in use at once); an arrangement of "
        f"{format_bytes(facts.packed_peak)} exists. {sure[0].upper()}{sure[1:]}."
    )
    others = "".join(f"<div>Why a range: {_coded(line)}.</div>" for line in why_ranges(answer))
    others += "".join(f"<div>⚠ {_coded(line)}</div>" for line in cautions(answer) if line not in sure)
    return (
        f'<div><p style="margin:4px 0"><b>{escape(facts.device)}: {_coded(conclusion(answer))}</b></p>'
        f'<table style="border-collapse:collapse;margin:6px 0"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody>'
        f'</table>{paste}<p style="margin:4px 0;opacity:.8">{escape(bound)}</p>{others}</div>'
    )
