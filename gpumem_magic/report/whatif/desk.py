"""What-if questions of a live view: answered in a process of its own, row by row, and stopped when asked to.

A thread that replays would hold the interpreter's lock: a cell that trains meanwhile would wait up to 5 ms at every
call into torch, a hundred times as long as the call. So the replay runs beside the kernel, politely, and knows of the
notebook only the recording.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem_magic._errors import GpumemError
from gpumem_magic.allocator.conf import check, installed_torch
from gpumem_magic.allocator.conf.environment import NEWEST
from gpumem_magic.report.whatif.limits import natural_cap
from gpumem_magic.report.whatif.model import Answer, Cap, Facts, Row
from gpumem_magic.report.whatif.replay import SUGGESTED, question_for, with_line
from gpumem_magic.report.whatif.words import plain, plain_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpumem_magic.analysis.model import Analysis, DeviceAnalysis
    from gpumem_magic.report.whatif.replay import Question

__all__ = ["Desk", "serve"]

# Without the current folder in front: a notebook's own random.py must not stand in for the standard library's.
_BOOT = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; from gpumem_magic.report.whatif.desk import serve; serve()"
)
_PACKAGE_ROOT = Path(__file__).resolve().parents[3]
_MOST_CONFS = 32
_NICE = 10


@dataclass
class _Known:
    """What was found for one device under one limit."""

    rows: dict[str, Row] = field(default_factory=dict)
    facts: Facts | None = None


class Desk:
    """Answers one view's questions about one report. Safe to call from any thread.

    Parameters
    ----------
    analysis
        The finished report's.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._lock = threading.Lock()
        self._known: dict[tuple[str, Cap | None], _Known] = {}
        self._work: _Work | None = None

    def ask(self, content: Mapping[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
        """Take a question, and send what becomes of it; returns at once.

        Parameters
        ----------
        content
            ``device`` (index), ``confs`` (settings besides the usual ones) and ``capBytes`` (absent or null: the
            limit that the recorded process had; 0: none).
        send
            Takes messages, also from another thread: ``state`` is ``"running"`` (with ``row``, ``done``, ``total``),
            ``"done"`` (with ``answer``), ``"problem"`` (with ``message``, and ``fix`` for a wrong setting),
            ``"stopped"``.
        """
        self.stop()
        try:
            device = self._device(content.get("device"))
            confs, problem = self._confs(content.get("confs"))
            cap = self._cap(device, content.get("capBytes"))
            question = question_for(self._analysis, device, confs if problem is None else (), cap)
        except (GpumemError, TypeError, ValueError, OverflowError) as error:
            send({"state": "problem", "message": str(error), "fix": None})
            return
        if problem is not None:
            send({"state": "problem", **problem})
            return
        work = _Work(device, question, self._known.setdefault((device.key, cap), _Known()), send)
        with self._lock:
            self._work = work
        work.start()

    def stop(self) -> None:
        """Stop what is under way; its view is told."""
        with self._lock:
            work, self._work = self._work, None
        if work is not None:
            work.stop()

    def _device(self, index: object) -> DeviceAnalysis:
        devices = self._analysis.devices
        if not isinstance(index, int) or not 0 <= index < len(devices):
            raise ValueError("no such device")
        return devices[index]

    def _confs(self, given: object) -> tuple[tuple[str, ...], dict[str, Any] | None]:
        extra = [conf.strip() for conf in given if isinstance(conf, str)] if isinstance(given, list) else []
        version = installed_torch() or NEWEST
        for conf in extra:
            checked = check(conf, version)
            if checked.problems:
                problem = checked.problems[0]
                return (), {
                    "message": f"{problem.message} (torch {version}: {problem.then})",
                    "fix": checked.corrected,
                    "at": problem.at,
                    "conf": conf,
                }
        return tuple(dict.fromkeys([*SUGGESTED, *extra]))[:_MOST_CONFS], None

    def _cap(self, device: DeviceAnalysis, given: object) -> Cap | None:
        if given is None:
            return natural_cap(device)
        size = int(given)  # type: ignore[call-overload]
        return Cap(size, "as typed") if size > 0 else None


class _Work:
    """One question under way: a thread that listens to a process."""

    def __init__(
        self, device: DeviceAnalysis, question: Question, known: _Known, send: Callable[[dict[str, Any]], None]
    ) -> None:
        self._device = device
        self._question = question
        self._known = known
        self._send = send
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="gpumem what-if", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        process = self._process
        if process is not None:
            process.kill()

    def _run(self) -> None:
        try:
            message = self._replay()
        except Exception as error:  # noqa: BLE001 - told in one line in the view
            message = {"state": "problem", "message": f"the replay failed ({error})", "fix": None}
        if self._stopped.is_set():
            message = {"state": "stopped"}
        self._send(message)

    def _replay(self) -> dict[str, Any]:
        known = self._known
        wanted = [conf for conf in self._question.confs if conf not in known.rows]
        if wanted or known.facts is None:
            question = replace(self._question, confs=tuple(wanted), wants_facts=known.facts is None)
            problem = self._listen(question, len(wanted) + (known.facts is None))
            if problem is not None:
                return {"state": "problem", "message": problem, "fix": None}
        facts = known.facts
        if facts is None:
            return {"state": "problem", "message": "the replay ended early: ask again", "fix": None}
        rows = [row for row in list(known.rows.values()) if row.is_recorded]
        rows += [known.rows[conf] for conf in self._question.confs if conf in known.rows]
        answer = Answer(facts, self._question.cap, tuple(dict.fromkeys(rows)))
        return {"state": "done", "answer": plain(answer)}

    def _listen(self, question: Question, total: int) -> str | None:
        """Run the process and take its rows; return what went wrong."""
        with tempfile.TemporaryFile() as complaints:
            try:
                process = _start(complaints)
            except OSError as error:
                return f"no Python process can be started here ({error}): use %gpumem_whatif instead"
            self._process = process
            if self._stopped.is_set():
                process.kill()
            problem = None
            with contextlib.suppress(BrokenPipeError), process:  # leaving `process` flushes its stdin once more
                assert process.stdin is not None  # noqa: S101 (for the type checker)
                assert process.stdout is not None  # noqa: S101
                self._send({"state": "running", "done": 0, "total": total})
                pickle.dump(question, process.stdin, protocol=4)
                process.stdin.close()
                for done, line in enumerate(process.stdout, 1):
                    problem = self._take(json.loads(line), min(done, total), total)
            if problem is None and process.returncode and not self._stopped.is_set():
                complaints.seek(0)
                last = complaints.read().decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
                problem = f"the replaying process ended early ({last or process.returncode}): ask again"
            return problem

    def _take(self, message: dict[str, Any], done: int, total: int) -> str | None:
        if "error" in message:
            return str(message["error"])
        if "facts" in message:
            facts = message["facts"]
            deviation = facts["deviation"]
            self._known.facts = Facts(
                **{
                    **facts,
                    "deviation": None if deviation is None else tuple(deviation),
                    "warnings": tuple(facts["warnings"]),
                }
            )
            return None
        row = with_line(Row(**{**message["row"], "doubts": tuple(message["row"]["doubts"])}), self._device)
        self._known.rows[row.conf] = row
        peak = self._device.headline.reserved_peak or 0
        self._send({"state": "running", "done": done, "total": total, "row": plain_row(peak, row)})
        return None


def _start(complaints: Any) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(part for part in (str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")) if part)
    # An interrupt of the notebook's cell goes to the kernel's whole group of processes, and is not meant for this one.
    apart: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return subprocess.Popen(  # noqa: S603 (this very Python, with our own text)
        [sys.executable, "-c", _BOOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=complaints,
        env={**os.environ, "PYTHONPATH": path},
        **apart,
    )


def serve() -> None:
    """Answer the question on stdin with one JSON line a row on stdout: the process's own main function."""
    if hasattr(os, "nice"):
        # The notebook's own work goes first.
        os.nice(_NICE)
    try:
        # Our own parent wrote it.
        question: Question = pickle.load(sys.stdin.buffer)  # noqa: S301
        for step in question.steps():
            name = "facts" if isinstance(step, Facts) else "row"
            print(json.dumps({name: asdict(step)}), flush=True)  # noqa: T201 - the answer
    except BrokenPipeError:
        # Nobody listens any more; Python would complain once more while it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except GpumemError as error:
        print(json.dumps({"error": str(error)}), flush=True)  # noqa: T201
