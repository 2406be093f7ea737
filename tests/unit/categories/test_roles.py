"""What real torch objects say of their storages, and which calls are under way, without holding or hooking anything."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import weakref
from typing import Any

import pytest
from by_hand.ways import WAYS, choose_way

torch: Any = pytest.importorskip("torch")

from gpumem_magic.holders.roles import ROLES, RoleBook  # noqa: E402
from gpumem_magic.recording.marks.calls import NO_CALLS, CallMarks  # noqa: E402

needs_monitoring = pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="Python 3.12 tells torch's calls")


@pytest.fixture(autouse=True, params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_way(request.param, monkeypatch)


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, width=64):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(2))
        self.register_buffer("mask", torch.ones(width))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x * self.mask


def seen(book):
    """Return {address: (role, name)} of the last look."""
    roles = book.result()
    return {
        int(roles.address[row]): (
            ROLES[roles.role[row]],
            roles.names[roles.name[row]] if roles.name[row] >= 0 else "",
        )
        for row in range(len(roles.address))
        if roles.time_us[row] == roles.time_us[-1]
    }


def at(tensor):
    return tensor.untyped_storage().data_ptr()


def test_everything_alive_is_seen_in_its_role_under_the_notebooks_name():
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(8, 64)
    net(x).sum().backward()
    optimizer.step()
    y = net(x)
    book = RoleBook(lambda: {"model": net, "optimizer": optimizer, "_": net, "x": x, "y": y})
    book.end()
    found = seen(book)
    weight = net.layers[1].weight
    assert found[at(weight)] == ("parameter", "model.layers[1].weight")
    assert found[at(weight.grad)] == ("gradient", "model.layers[1].weight")
    assert found[at(net.mask)] == ("buffer", "model.mask")
    assert found[at(optimizer.state[weight]["exp_avg"])] == ("optimizer", "model.layers[1].weight")
    # `x` is saved for the first weight's gradient, and the product's other factor for the buffer's.
    assert found[at(x)] == ("activation", "")
    assert found[at(y)] == ("tensor", "")
    result = book.result()
    assert result is not None
    assert result.complete
    assert sum(role == "activation" for role, _ in found.values()) >= 3


def test_a_look_keeps_nothing_alive():
    net = Net()
    names = {"model": net}
    net(torch.randn(8, 64)).sum().backward()
    book = RoleBook(lambda: names)
    book.module(net)
    book.graph(net(torch.randn(8, 64)))
    book.end()
    gone = weakref.ref(net.layers[0].weight)
    names.clear()
    del net
    gc.collect()
    assert gone() is None
    assert book.result() is not None


def test_inputs_are_what_needs_no_gradient():
    book = RoleBook(dict)
    batch = {"ids": [torch.ones(8)], "mask": (torch.ones(9), None)}
    computed = torch.ones(10, requires_grad=True) * 2
    book.inputs((batch, computed), {"flag": True})
    found = seen(book)
    assert found == {at(batch["ids"][0]): ("input", ""), at(batch["mask"][0]): ("input", "")}


def test_looks_in_the_middle_are_few_where_they_are_expensive(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("gpumem_magic.holders.roles.time.perf_counter", lambda: now[0])
    book = RoleBook(dict)
    taken = []

    def slow(_torch):
        taken.append(now[0])
        now[0] += 0.02

    for _ in range(200):
        book._guarded(slow, "graph")
        now[0] += 0.05
    # 10 s at 0.3 percent are 30 ms: a look of 20 ms at once, and another one after two thirds of the time.
    assert len(taken) == 2


def test_looks_of_a_loop_come_in_its_first_step(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("gpumem_magic.holders.roles.time.perf_counter", lambda: now[0])
    book = RoleBook(dict)
    taken = []

    def step(number):
        for kind in ("optimizer", "inputs", "graph", "optimizer"):

            def quick(_torch, kind=kind):
                taken.append((number, kind))
                now[0] += 0.0002

            book._guarded(quick, kind)
            now[0] += 0.002

    for number in range(5):
        step(number)
    assert taken == [(0, "optimizer"), (0, "inputs"), (0, "graph"), (0, "optimizer")]
    now[0] = 0.35  # 0.3 percent are 1.05 ms, of which four looks have taken 0.8
    step(5)
    assert [number for number, _ in taken[4:]] == [5, 5]


@pytest.fixture
def now(monkeypatch):
    """Both of the book's clocks, in seconds, which only the test moves."""
    moment = [100.0]
    monkeypatch.setattr("gpumem_magic.holders.roles.time.perf_counter", lambda: moment[0])
    monkeypatch.setattr("gpumem_magic.holders.roles.time.time_ns", lambda: int(moment[0] * 1e9))
    return moment


def test_nobody_asks_again_in_the_second_step_of_a_loop(now):
    book = RoleBook(dict)

    def quick(_torch):
        now[0] += 0.0003

    book._guarded(quick, "graph")
    assert book.next_ns == 0
    book._guarded(quick, "graph")
    # 0.3 ms of looks are 0.3 percent of 0.1 s.
    assert book.next_ns == pytest.approx(100.1 * 1e9, abs=1e6)
    assert book._spent == pytest.approx(0.0003)


def test_nobody_asks_for_looks_before_the_budget_allows_them(now):
    book = RoleBook(dict)

    def slow(_torch):
        now[0] += 0.005

    assert book.next_ns == 0
    book._guarded(slow, "graph")
    # 5 ms, of which 2 are free: at 0.3 percent the others are paid a second after the beginning.
    assert book.next_ns == pytest.approx(101 * 1e9, abs=1e6)
    now[0] = 101.001
    book._guarded(slow, "graph")
    assert book._spent == pytest.approx(0.005)  # what comes again has no share in what is free
    book._guarded(slow, "inputs")
    assert book._spent == pytest.approx(0.01)


@needs_monitoring
def test_a_watch_asks_for_looks_when_they_are_due_and_only_then():
    class Asked:
        next_ns = 0

        def __init__(self):
            self.kinds = []

        def inputs(self, *values):
            args, kwargs = values
            self.kinds.append(("inputs", len(args), kwargs))

        def graph(self, outputs):
            self.kinds.append(("graph", len(outputs)))

        def optimizer(self, optimizer):
            self.kinds.append(("optimizer", type(optimizer).__name__))

        def module(self, module):
            self.kinds.append(("module", type(module).__name__))

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    looks = Asked()
    calls = CallMarks(torch, looks)
    try:
        for due in (0, sys.maxsize, 0):
            looks.next_ns = due
            looks.kinds.append(due)
            optimizer.zero_grad()
            net(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            net.zero_grad()
    finally:
        calls.stop()
    assert calls.notes == []
    once: list[object] = [
        ("optimizer", "SGD"),
        ("inputs", 1, {}),
        ("graph", 1),
        ("optimizer", "SGD"),
        ("module", "Net"),
    ]
    assert looks.kinds == [0, *once, sys.maxsize, 0, *once]


def test_hostile_objects_end_a_look_and_nothing_else():
    class Bad(torch.nn.Module):  # type: ignore[misc]
        def __getattr__(self, name):
            raise SystemError(name)

    class BadOptimizer(torch.optim.SGD):  # type: ignore[misc]
        @property
        def state(self):
            raise SystemError

        @state.setter
        def state(self, value):
            pass

    bad = Bad()
    bad.__dict__["_modules"] = {"a": bad}
    book = RoleBook(lambda: {"bad": bad})
    book.module(bad)
    book.optimizer(object())
    book.graph(object())
    book.end()
    assert book.result() is not None


def test_tensors_of_the_users_own_class_run_no_code():
    ran = []

    class Loud(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            ran.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    loud = torch.ones(8).as_subclass(Loud)
    parameter = torch.nn.Parameter(loud)
    ran.clear()
    book = RoleBook(lambda: {"loud": loud, "parameter": parameter})
    book.end()
    book.inputs(loud)
    assert ran == []
    assert seen(book)


def test_without_monitoring_the_reason_is_told():
    calls = CallMarks(torch)
    calls.stop()
    if hasattr(sys, "monitoring"):
        assert calls.notes == []
        assert calls.result() is not None
    else:
        assert [note.text for note in calls.notes] == [NO_CALLS]
        assert calls.result() is None


def watched(work, namespace):
    """Return the stacks of calls in the order in which they began, as texts."""
    calls = CallMarks(torch)
    try:
        work()
    finally:
        calls.stop()
    found = calls.result(lambda module: next((name for name, value in namespace.items() if value is module), None))
    assert found is not None
    assert not any(note.level == "warning" for note in calls.notes)
    return found, ["/".join(entry[1] for entry in found.places[place]) if place >= 0 else "" for place in found.place]


@needs_monitoring
def test_modules_are_told_by_their_path():
    net = Net()
    _, told = watched(lambda: net(torch.ones(2, 64)), {"model": net})
    inside = [f"model.layers[{number}]/model" for number in range(2)]
    assert told == ["model", inside[0], "model", inside[1], "model", ""]


@needs_monitoring
def test_phases_are_told_and_modules_without_a_name_by_their_class():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def work():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(torch.ones(2, 64)), torch.ones(2, 64)).backward()
        optimizer.step()

    found, told = watched(work, {})
    assert [name for name in told if "/" not in name and name] == [
        "zero_grad", "Net", "Net", "Net", "backward", "step",
    ]  # fmt: skip
    assert {entry[2] for place in found.places for entry in place if entry[0] == "module"} == {"Net", "Linear"}


@needs_monitoring
def test_a_module_that_raises_is_left():
    class Bad(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x):
            raise ValueError(x)

    outer = torch.nn.Sequential(torch.nn.Identity(), Bad())

    def work():
        with pytest.raises(ValueError, match="1"):
            outer(1)
        outer[0](2)

    _, told = watched(work, {"net": outer})
    assert told == ["net", "net[0]/net", "net", "net[1]/net", "net", "", "Identity", ""]


@contextlib.contextmanager
def interrupted(module):
    """Interrupt the calls of a module before anybody else hears of their beginning: the highest tool comes first."""
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    code = torch.nn.Module._wrapped_call_impl.__code__

    def begins(_code, _offset):
        if sys._getframe(1).f_locals["self"] is module:
            raise KeyboardInterrupt

    monitoring.use_tool_id(monitoring.OPTIMIZER_ID, "interrupts")
    monitoring.register_callback(monitoring.OPTIMIZER_ID, monitoring.events.PY_START, begins)
    monitoring.set_local_events(monitoring.OPTIMIZER_ID, code, monitoring.events.PY_START)
    try:
        yield
    finally:
        monitoring.set_local_events(monitoring.OPTIMIZER_ID, code, 0)
        monitoring.register_callback(monitoring.OPTIMIZER_ID, monitoring.events.PY_START, None)
        monitoring.free_tool_id(monitoring.OPTIMIZER_ID)


@needs_monitoring
@pytest.mark.parametrize("started_within", [False, True])
def test_a_call_that_is_interrupted_before_it_was_noted_ends_no_other(started_within):
    watches: list[CallMarks] = []

    class Careful(torch.nn.Sequential):  # type: ignore[misc]
        def forward(self, x):
            if started_within:
                watches.append(CallMarks(torch))
            with interrupted(self[0]), contextlib.suppress(KeyboardInterrupt):
                self[0](x)
            return self[1](x)

    net = torch.nn.Sequential(Careful(torch.nn.Identity(), torch.nn.ReLU()), torch.nn.Tanh())
    if not started_within:
        watches.append(CallMarks(torch))
    net(torch.ones(2))
    watches[0].stop()
    found = watches[0].result(lambda module: "net" if module is net else None)
    assert found is not None
    told = ["/".join(entry[1] for entry in found.places[place]) if place >= 0 else "" for place in found.place]
    if started_within:  # what began before the watch is no caller that it knows
        assert told == ["ReLU", "", "Tanh", ""]
    else:
        assert told == ["net", "net[0]/net", "net[0][1]/net[0]/net", "net[0]/net", "net", "net[1]/net", "net", ""]


@needs_monitoring
def test_a_checkpoint_leaves_its_modules_by_unwinding():
    from torch.utils.checkpoint import checkpoint

    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))

    def work():
        checkpoint(net, torch.ones(2, 8, requires_grad=True), use_reentrant=False).sum().backward()

    _, told = watched(work, {"net": net})
    assert told[-1] == ""
    again = [name for name in told if name.endswith("/backward")]
    assert again[0] == "net/backward"
    assert "net[2]/net/backward" in again


@needs_monitoring
def test_nothing_stays_hooked_and_no_module_is_kept():
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    before = [monitoring.get_tool(tool) for tool in range(6)]
    net = Net()
    calls = CallMarks(torch)
    net(torch.ones(2, 64))
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
    calls.stop()
    calls.stop()
    assert [monitoring.get_tool(tool) for tool in range(6)] == before
    code = torch.nn.Module._call_impl.__code__
    for tool in range(6):
        if monitoring.get_tool(tool) is not None:
            assert monitoring.get_local_events(tool, code) == 0
    assert calls.result() is not None


@needs_monitoring
def test_tools_that_are_taken_are_named():
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    taken = [tool for tool in (3, 4) if monitoring.get_tool(tool) is None]
    for tool in taken:
        monitoring.use_tool_id(tool, f"other {tool}")
    try:
        calls = CallMarks(torch)
        assert "other 3" in calls.notes[0].text
        assert calls.result() is None
    finally:
        for tool in taken:
            monitoring.free_tool_id(tool)


def test_a_list_of_the_users_own_class_runs_none_of_its_code():
    class Lazy(list):  # type: ignore[type-arg]
        def __iter__(self):
            raise AssertionError("the user's code ran")

    x = torch.ones(4)
    book = RoleBook(dict)
    book.inputs(Lazy([x]))
    assert seen(book)[at(x)] == ("input", "")


def test_threads_that_look_at_once_disturb_nobody():
    tensors = [torch.ones(1) for _ in range(2000)]
    book = RoleBook(dict)
    book._began -= 1e6  # all looks are affordable
    failures = []

    def look():
        try:
            for _ in range(20):
                book.inputs(tensors)
        except Exception as error:  # noqa: BLE001 - asserted on below
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert seen(book)[at(tensors[0])] == ("input", "")
