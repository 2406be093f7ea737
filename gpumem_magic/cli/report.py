"""Commands that make reports: ``report`` and ``diff``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem_magic._errors import BadUsageError
from gpumem_magic._format import format_bytes

if TYPE_CHECKING:
    import argparse

    from gpumem_magic.analysis.diff import Diff, DiffRow, Side

__all__ = ["add_parsers"]

_PACKED = (".gz", ".xz")
_TOP = 20


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register this family's commands."""
    parser = commands.add_parser(
        "report",
        help="the standalone HTML report of a snapshot file",
        description="Write one HTML file with the timeline and the tables; it opens from disk and needs no network.",
    )
    parser.add_argument("file", metavar="FILE", help="a torch memory snapshot: pickle, .gz or .xz")
    parser.add_argument("-o", "--output", metavar="OUT.html", help="where to write it (default: FILE's name, here)")
    parser.add_argument("--no-source", action="store_true", help="leave out source lines and folders, for sharing")
    parser.set_defaults(run=_run_report)
    parser = commands.add_parser(
        "diff",
        help="what changed between two snapshot files",
        description="Compare two recordings at their peaks and at their ends, by the code that allocated.",
    )
    parser.add_argument("a", metavar="A", help="the earlier one: a snapshot, or an HTML report of gpumem-magic")
    parser.add_argument("b", metavar="B", help="the later one")
    parser.add_argument("--json", action="store_true", help="print one JSON object, sizes in bytes")
    parser.add_argument("--top", type=int, default=_TOP, metavar="K", help=f"rows to print (default {_TOP}; 0: all)")
    parser.set_defaults(run=_run_diff)


def _stem(path: Path) -> str:
    name = path.name
    for suffix in _PACKED:
        name = name.removesuffix(suffix)
    return name.removesuffix(".pickle").removesuffix(".pkl") or path.name


def _run_report(arguments: argparse.Namespace) -> int:
    from gpumem_magic.cli.snapshot import open_snapshot
    from gpumem_magic.report import build

    source = Path(arguments.file)
    report = build(open_snapshot(arguments.file), title=source.name)
    if arguments.no_source:
        report = report.without_source()
    target = report.save(arguments.output or f"{_stem(source)}.html")
    print(report.sentence)
    for note in report.notes:
        print(f"{note.level}: {note.text}")
    print(f"wrote {target} ({format_bytes(target.stat().st_size)})")
    return 0


def _side(path: str) -> Side:
    from gpumem_magic.analysis import analyse_trace
    from gpumem_magic.analysis.diff import side_of
    from gpumem_magic.cli.snapshot import open_snapshot
    from gpumem_magic.report.reading import is_report, side_of_report

    if is_report(path):
        return side_of_report(path)
    return side_of(analyse_trace(open_snapshot(path), Path(path).name))


def _run_diff(arguments: argparse.Namespace) -> int:
    from gpumem_magic.analysis.diff import compare

    if arguments.top < 0:
        raise BadUsageError(f"--top {arguments.top}: give a number of rows, 0 for all")
    diff = compare(_side(arguments.a), _side(arguments.b))
    if arguments.json:
        print(json.dumps(_diff_json(diff), ensure_ascii=False))
    else:
        _print_diff(diff, arguments.top)
    return 0


def _totals_json(side: Side) -> dict[str, Any]:
    devices = [
        {"device": key, "allocated_peak": device.peak, "allocated_end": device.end}
        for key, device in side.devices.items()
    ]
    return {"title": side.title, "devices": devices}


def _row_json(row: DiffRow) -> dict[str, Any]:
    group = row.group
    return {
        "device": row.device,
        "kind": group.kind,
        "label": group.label,
        "file": group.file,
        "line": group.line,
        "function": group.function,
        "bytes_a": row.bytes_a,
        "bytes_b": row.bytes_b,
        "end_bytes_a": row.end_bytes_a,
        "end_bytes_b": row.end_bytes_b,
    }


def _diff_json(diff: Diff) -> dict[str, Any]:
    return {"a": _totals_json(diff.a), "b": _totals_json(diff.b), "groups": [_row_json(row) for row in diff.rows]}


def _change(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return "unknown"
    return f"{format_bytes(before)} → {format_bytes(after)} ({format_bytes(after - before, signed=True)})"


def _print_diff(diff: Diff, top: int) -> None:
    from gpumem_magic.cli.snapshot import print_table

    print(f"A: {diff.a.title}\nB: {diff.b.title}")
    for key in dict.fromkeys([*diff.a.devices, *diff.b.devices]):
        a, b = diff.a.devices.get(key), diff.b.devices.get(key)
        peak = _change(a.peak if a else 0, b.peak if b else 0)
        end = _change(a.end if a else 0, b.end if b else 0)
        print(f"{key}: peak {peak}, end {end}")
    changed = [row for row in diff.rows if row.growth or row.end_growth]
    same = [row for row in diff.rows if not (row.growth or row.end_growth)]
    several = len({row.device for row in diff.rows}) > 1
    shown = changed[:top] if top else changed
    if shown:
        head = ["owner", "at A's peak", "at B's peak", "change", "at A's end", "at B's end", "change"]
        print_table([head, *(_cells(row, several=several) for row in shown)])
    if len(changed) > len(shown):
        rest = changed[len(shown) :]
        total = format_bytes(sum(row.growth for row in rest), signed=True)
        print(f"  {len(rest)} more changed, {total} at the peak together (--top 0 prints all)")
    if same:
        print(f"  {len(same)} unchanged, {format_bytes(sum(row.bytes_b for row in same))} at the peak together")
    if not changed:
        print("  no difference")


def _cells(row: DiffRow, *, several: bool) -> list[str]:
    name = f"{row.device} {row.group.label}" if several else row.group.label
    return [
        name,
        format_bytes(row.bytes_a),
        format_bytes(row.bytes_b),
        format_bytes(row.growth, signed=True),
        format_bytes(row.end_bytes_a),
        format_bytes(row.end_bytes_b),
        format_bytes(row.end_growth, signed=True),
    ]
