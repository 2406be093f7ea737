"""The CPU source: torch's profiler around the user's code, kept quiet, bounded, and out of the user's way.

With user scope only (no operators) a loop of tiny steps ran 3 % slower; with the profiler's default scopes, one second
of it made 685,000 events and took 4 s to stop. Asking for an activity that this machine cannot have (MTIA) in place of
``CPU`` spares Kineto's copy of every event: 430,000 events then took 0.6 s to stop in place of 2.2 s (torch 2.13), with
the same tree.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import TYPE_CHECKING, Any

from gpumem_magic._format import format_count
from gpumem_magic.recording.cpu.apart import call_apart
from gpumem_magic.recording.cpu.growth import Growth
from gpumem_magic.recording.cpu.malloc import allocated_by_malloc, give_back_free_memory
from gpumem_magic.recording.cpu.threads import OtherThreads
from gpumem_magic.recording.main_thread import run_on_main_thread
from gpumem_magic.recording.model import SourceKind
from gpumem_magic.recording.quiet import stderr_without
from gpumem_magic.recording.source import Evidence
from gpumem_magic.recording.ticker import call_every

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from gpumem_magic.recording.cpu.events import Columns, Known
    from gpumem_magic.recording.cpu.regions import Span
    from gpumem_magic.recording.notes import Notes
    from gpumem_magic.recording.ticker import Tick
    from gpumem_magic.trace.model import Trace

__all__ = ["CpuSource"]

# Printed by Kineto to descriptor 2: "USDT:… profiler_start" (torch 2.13 on), and a warning that events have no
# counterpart in Kineto's own list, which is what makes this cheap.
_NOISE = re.compile(
    rb"USDT:.*profiler_st(art|op)"
    rb"|Failed to recover relationship between all profiler and kineto events"
    rb"|Memory block of unknown size was allocated before the profiling started"
    rb"|(ActivityProfiler|CuptiActivity|DeviceProperties|output_json|profiler_kineto|init)\w*\.cpp:\d+\]"
)
# The first free of a block from before the recording, and every thousandth after it, makes torch write a warning to
# descriptor 2. We free blocks of our own until it has been written where nobody sees it: 0.6 ms at most. A few more
# than a thousand, because some get addresses that torch still takes for known ones.
_PRIMING_BLOCKS = 1250
# 260,000 events (130,000 allocations) are still read after the cell, in half a second; beyond that the profiler is
# emptied while the cell runs, because each event takes 1,400 bytes and 1 µs when it is stopped. Judged by malloc, the
# marks of lines and modules count as up to 60,000 more.
_MOST_AT_ONCE = 360_000
# Counting early costs a millisecond, so a small limit is not looked after more closely than this.
_LEAST_AT_ONCE = 20_000
_LOOK_SECONDS = 0.05
# So many events leave 20 MB behind, which would be taken for the cell's own memory.
_WORTH_TRIMMING = 20_000
# More are no picture.
_MOST_REGIONS = 10_000
# Blocks that must be seen in malloc's figure, or it is not the malloc that torch uses.
_BYTES_A_BLOCK = 48


@functools.lru_cache(maxsize=1)
def _own_storage(storage: Any) -> Any:
    """Return a class of storages that are ours: whoever lists the user's looks for torch's own class."""
    return type("PrimingBlock", (storage,), {})


def _is_noise(line: bytes) -> bool:
    return _NOISE.search(line) is not None


class CpuSource:
    """Records the allocations of CPU tensors on the thread that starts it.

    Parameters
    ----------
    torch
        The imported module.
    max_entries
        Most events to keep. When more were made, the recording stops there and says so.
    notes
        Where failures and limits are told.
    regions
        Keep ``record_function`` regions too.
    """

    def __init__(self, torch: ModuleType, max_entries: int, notes: Notes, *, regions: bool = False) -> None:
        self.kind = SourceKind.CPU
        self._torch: Any = torch
        self._max_entries = max_entries
        self._notes = notes
        self._parts: list[Columns] = []
        self._spans: list[Span] | None = [] if regions else None
        self._known: Known | None = None
        self._count = 0
        self._taken = 0
        self._running = False
        self._truncated = False
        self._thread = 0
        self._others: OtherThreads | None = None
        self._originals: dict[str, Any] = {}
        self._blocks: list[Any] = []
        self._watch: Tick | None = None
        self._growth: Growth | None = None
        self._counting = False

    def start(self) -> None:
        """Start torch's profiler, unless the user's own is running."""
        with self._notes.guard("starting the CPU recording"):
            if self._profiler_is_on():
                self.kind = SourceKind.COUNTERS
                self._notes.warning(
                    "no allocation events: another profiler is already running, and torch allows one at a time; "
                    "stop it to record this cell"
                )
                return
            self._thread = threading.get_ident()
            self._others = OtherThreads()
            self._growth = Growth(self._prepare())
            self._enable()
            self._give_way_to_others()
            # Only the main thread can be asked to stop its profiler from outside.
            if threading.current_thread() is threading.main_thread():
                self._watch = call_every(_LOOK_SECONDS, self._look)

    def stop(self, started_us: int, ended_us: int) -> Evidence:
        """Stop the profiler and turn what it saw into a trace."""
        with self._notes.guard("stopping the CPU recording"):
            if self._watch is not None:
                self._watch.cancel()
            self._restore()
            self._collect()
            unseen = self._others.note() if self._others is not None else None
            if unseen is not None:
                self._notes.info(unseen)
            if self._taken >= _WORTH_TRIMMING:
                give_back_free_memory()
        if self._blocks:  # the profiler could not be stopped
            with stderr_without(_is_noise):
                self._blocks.clear()
        if self.kind is not SourceKind.CPU:
            return Evidence()
        trace: Trace | None = None
        with self._notes.guard("reading the CPU recording"):
            from gpumem_magic.recording.cpu.events import trace_of

            trace = trace_of(self._parts, started_us, ended_us, self._spans or ())
        return Evidence(trace, self._truncated)

    # -- torch's profiler ------------------------------------------------------------------------------------------

    def _profiler_is_on(self) -> bool:
        probe = getattr(self._torch._C._autograd, "_profiler_enabled", None)
        return bool(probe()) if probe is not None else False

    def _prepare(self) -> Callable[[], int | None] | None:
        """Make the blocks whose frees draw out torch's warning; return malloc's figure if it moved with them."""
        kind = _own_storage(self._torch.UntypedStorage)
        before = allocated_by_malloc()
        self._blocks = [kind(1) for _ in range(_PRIMING_BLOCKS)]
        after = allocated_by_malloc()
        moved = before is not None and after is not None and after - before >= _PRIMING_BLOCKS * _BYTES_A_BLOCK
        return allocated_by_malloc if moved else None

    def _enable(self) -> None:
        profiler = self._torch.autograd.profiler

        c_profiler = self._torch._C._profiler
        # `config()` of torch's own class fits this torch's ProfilerConfig, whose fields change between versions.
        config = profiler.profile(use_cpu=True, profile_memory=True).config()
        activity = c_profiler.ProfilerActivity
        mtia = getattr(self._torch, "mtia", None)
        absent = getattr(activity, "MTIA", None) if mtia is None or not mtia.is_available() else None
        # Regions come with the CPU's own activity alone.
        activities = {absent if absent is not None and self._spans is None else activity.CPU}
        autograd = self._torch._C._autograd
        with stderr_without(_is_noise) as held:
            autograd._prepare_profiler(config, activities)
            autograd._enable_profiler(config, activities, {c_profiler.RecordScope.USER_SCOPE})
            self._running = True
            said = held()
            while self._blocks and held() == said:
                del self._blocks[-10:]
        if self._growth is not None:
            self._growth.begin(max(_LEAST_AT_ONCE, min(_MOST_AT_ONCE, self._max_entries - self._count)))

    def _collect(self) -> None:
        """Stop the profiler and keep its events, at most `max_entries` in all."""
        if not self._running:
            return
        from gpumem_magic.recording.cpu.events import Known, read_tree

        self._running = False
        with stderr_without(_is_noise):
            result = call_apart(self._torch, self._torch._C._autograd._disable_profiler)
        self._blocks.clear()
        found = read_tree(self._torch, result.experimental_event_tree(), self._spans)
        if self._spans is not None and len(self._spans) > _MOST_REGIONS:
            del self._spans[_MOST_REGIONS:]
            self._notes.info(f"only the first {format_count(_MOST_REGIONS)} record_function regions were kept")
        self._taken += len(found)
        if self._growth is not None:
            self._growth.counted(len(found))
        if self._known is None:
            self._known = Known()
        part = self._known.without_foreign_frees(found)
        room = self._max_entries - self._count
        if len(part) > room:
            part = part.pick(slice(room))
            self._truncated = True
            self._notes.warning(
                f"only the first {format_count(self._max_entries)} events were kept; "
                f"--max-entries {2 * self._max_entries} keeps more"
            )
        self._count += len(part)
        self._parts.append(part)

    # -- a profiler of the user's own ------------------------------------------------------------------------------

    def _give_way_to_others(self) -> None:
        """While we record, let whoever starts a profiler end ours first: nesting would empty the outer one."""
        profiler = self._torch.autograd.profiler
        for name in ("_prepare_profiler", "_enable_profiler"):
            original = getattr(profiler, name, None)
            if original is not None:
                self._originals[name] = original
                setattr(profiler, name, self._give_way_before(original))

    def _give_way_before(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def started_by_the_cell(*args: Any, **kwargs: Any) -> Any:
            if self._running and threading.get_ident() == self._thread:
                with self._notes.guard("stopping the CPU recording"):
                    self._collect()
                self._truncated = True
                self._notes.warning(
                    "the cell started a profiler of its own, and torch allows one at a time: events end where it began"
                )
            return original(*args, **kwargs)

        return started_by_the_cell

    def _restore(self) -> None:
        profiler = self._torch.autograd.profiler
        for name, original in self._originals.items():
            setattr(profiler, name, original)
        self._originals.clear()

    # -- bounding --------------------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Have the events counted when they may have become too many.

        The profiler cannot be asked how many it holds, and only its own thread can stop it, so the count is taken on
        the main thread between two bytecodes. Nothing of that thread is lost: it allocates nothing meanwhile.
        """
        if self._running and not self._counting and self._growth is not None and self._growth.look():
            self._counting = True
            run_on_main_thread(self._empty)
        # Not `_running`: while the events are being counted it is False for a moment.
        return not self._truncated

    def _is_in_backward(self) -> bool:
        """Tell whether autograd is running a node on this thread.

        It puts the thread's state of the moment it began back before each node, the profiler of that moment included:
        events after an exchange would go to the one that was stopped (seen with checkpoints, torch 2.13).
        """
        probe = getattr(self._torch._C, "_current_graph_task_id", None)
        return probe is not None and probe() != -1

    def _is_in_transform(self) -> bool:
        """Tell whether a transform of ``torch.func`` is under way here: what we call apart may not run within one."""
        functorch = getattr(self._torch._C, "_functorch", None)
        probe = getattr(functorch, "peek_interpreter_stack", None)
        return probe is not None and probe() is not None

    def _empty(self) -> None:
        """Take the events out of the profiler; start it again unless there are enough. Not now: at a later look."""
        with self._notes.guard("counting the CPU events"):
            if self._running and not self._is_in_backward() and not self._is_in_transform():
                self._collect()
                if not self._truncated:
                    self._enable()
        self._counting = False
