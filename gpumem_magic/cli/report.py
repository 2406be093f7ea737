"""Commands that make reports: ``report``, ``diff`` and ``export``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem_magic._errors import BadUsageError, SnapshotError
from gpumem_magic._format import format_bytes
from gpumem_magic.cli.snapshot import printable

if TYPE_CHECKING:
    import argparse

    from gpumem_magic.analysis.diff import Diff, DiffRow, Side
    from gpumem_magic.report import Report
    from gpumem_magic.report.reading import ExportedReport

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
    parser.add_argument(
        "--whatif", action="store_true", help="also replay it under other allocator settings, for the What if tab"
    )
    parser.set_defaults(run=_run_report)
    parser = commands.add_parser(
        "diff",
        help="what changed between two snapshot files",
        description="Compare two recordings at their peaks and at their ends, by the code that allocated.",
    )
    parser.add_argument("a", metavar="A", help="the earlier one: a snapshot, or an HTML report of gpumem-magic")
    parser.add_argument("b", metavar="B", help="the later one")
    parser.add_argument("-o", "--output", metavar="OUT.html", help="also write both side by side, as one HTML file")
    parser.add_argument("--no-source", action="store_true", help="leave out source lines and folders, for sharing")
    parser.add_argument("--json", action="store_true", help="print one JSON object, sizes in bytes")
    parser.add_argument("--top", type=int, default=_TOP, metavar="K", help=f"rows to print (default {_TOP}; 0: all)")
    parser.set_defaults(run=_run_diff)
    parser = commands.add_parser(
        "export",
        help="a snapshot or a report as JSON for Perfetto or speedscope",
        description="Perfetto (also chrome://tracing): counters over time, cells, regions and the largest allocations. "
        "speedscope: who was alive at the peak and at the end, as flame graphs of bytes.",
    )
    parser.add_argument("file", metavar="FILE", help="a snapshot, or an HTML report of gpumem-magic")
    parser.add_argument("--to", required=True, choices=("perfetto", "speedscope"), help="whose format")
    parser.add_argument("-o", "--output", metavar="OUT.json", help="where to write it (default: FILE's name, here)")
    parser.set_defaults(run=_run_export)


def _stem(path: Path) -> str:
    name = path.name
    for suffix in _PACKED:
        name = name.removesuffix(suffix)
    for suffix in (".pickle", ".pkl", ".html"):
        name = name.removesuffix(suffix)
    return name or path.name


def _run_report(arguments: argparse.Namespace) -> int:
    from gpumem_magic.cli.snapshot import open_snapshot
    from gpumem_magic.report import build
    from gpumem_magic.report.files import shown_path

    source = Path(arguments.file)
    report = build(open_snapshot(arguments.file), title=source.name)
    if arguments.whatif:
        try:
            report = report.explored()
        except SnapshotError as error:
            # The report is worth having all the same.
            print(f"what if: {error}")
    if arguments.no_source:
        report = report.without_source()
    target = report.save(arguments.output or f"{_stem(source)}.html")
    print(printable(report.sentence))
    for note in report.notes:
        print(printable(f"{note.level}: {note.text}"))
    if report.answers:
        from gpumem_magic.report.whatif.words import conclusion

        for key, answer in report.answers.items():
            print(printable(f"what if, {key}: {conclusion(answer)}"))
    print(f"wrote {shown_path(target)} ({format_bytes(target.stat().st_size)})")
    return 0


def _operand(path: str) -> Report | ExportedReport:
    from gpumem_magic.cli.snapshot import open_snapshot
    from gpumem_magic.report import build
    from gpumem_magic.report.reading import is_report, read_report

    return read_report(path) if is_report(path) else build(open_snapshot(path), title=Path(path).name)


def _run_export(arguments: argparse.Namespace) -> int:
    from gpumem_magic.report.files import shown_path, write_new
    from gpumem_magic.report.interchange import exported
    from gpumem_magic.report.reading import read_back

    source = _operand(arguments.file)
    with read_back(source):
        data = exported(source.to_document(), arguments.to)
    target = write_new(data, arguments.output or f"{_stem(Path(arguments.file))}.{arguments.to}.json")
    print(f"wrote {shown_path(target)} ({format_bytes(target.stat().st_size)})")
    return 0


def _run_diff(arguments: argparse.Namespace) -> int:
    from gpumem_magic.report.comparison import Comparison
    from gpumem_magic.report.files import shown_path
    from gpumem_magic.report.reading import read_back

    if arguments.top < 0:
        raise BadUsageError(f"--top {arguments.top}: give a number of rows, 0 for all")
    comparison = Comparison(_operand(arguments.a), _operand(arguments.b), arguments.top)
    shown = comparison.without_source() if arguments.no_source else comparison
    with read_back(comparison.a, comparison.b):
        target = shown.save(arguments.output) if arguments.output else None
        text = json.dumps(_diff_json(shown.diff), ensure_ascii=False) if arguments.json else shown.to_text()
    print(text)
    if target is not None:
        # With --json stdout is one object.
        file = sys.stderr if arguments.json else sys.stdout
        print(f"wrote {shown_path(target)} ({format_bytes(target.stat().st_size)})", file=file)
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
    sides = {"a": _totals_json(diff.a), "b": _totals_json(diff.b)}
    return {"sentence": diff.sentence, **sides, "groups": [_row_json(row) for row in diff.rows]}
