"""Whole cells: what is told as a leak, what only as a remark, and what not at all."""

from __future__ import annotations

import pytest

from gpumem_magic import _errors
from gpumem_magic.analysis.anonymous import without_source
from gpumem_magic.analysis.leaks import with_keepers
from gpumem_magic.analysis.leaks.check import broken_promise, nothing_to_judge, read_allowance
from gpumem_magic.holders.model import Bound, Category, Holder, HolderKind, HolderScan, Storage

KIB, MIB = 1 << 10, 1 << 20
TRAINING = """losses = []
for x in loader:
    y = model(x)
    loss = y.mean()
    loss.backward()
    opt.step()
    losses.append(loss)
"""


def train(script, steps=12, *, keep_loss=False, keep_activations=False, has_functions=True):
    run = script(TRAINING, has_functions=has_functions)
    run.at(1)
    for step in range(steps):
        run.at(2).alloc("x", 64 * KIB)
        run.at(3).alloc(f"y{step}" if keep_activations else "y", 256 * KIB)
        run.at(4).alloc(f"loss{step}" if keep_loss else "loss", 512)
        run.at(5)
        for name in ("g1", "g2"):
            run.alloc("t", 128 * KIB).free("t").free(name).alloc(name, MIB)
        run.at(6)
        if not step:
            for name in ("m1", "m2", "v1", "v2"):
                run.alloc(name, MIB)
        run.alloc("t", 64 * KIB).free("t")
        run.at(7)
    run.at(2)
    return run


def test_a_clean_training_loop_tells_its_optimizer_state_and_no_leak(script):
    analysis = train(script).analysis()
    growth = analysis.devices[0].growth
    assert growth.leaks == growth.small == ()
    assert growth.iterations == 12
    (once,) = growth.once
    assert (once.what, once.bytes) == ("optimizer state", 4 * MIB)
    assert "4.00 MiB at line 6 `opt.step()` in the first iteration" in once.sentence
    assert analysis.sentence.startswith("Peak ")
    assert broken_promise(analysis, 0) is None
    assert nothing_to_judge(analysis) is None


@pytest.mark.parametrize("has_functions", [True, False])
def test_activations_that_every_iteration_keeps(script, has_functions):
    run = train(script, keep_activations=True, keep_loss=True, has_functions=has_functions)
    analysis = run.analysis()
    (leak,) = analysis.leaks
    assert (leak.kind, leak.device, leak.iterations, leak.grown) == ("kept", "cuda:0", 12, 12)
    assert leak.loop.label == "line 2"
    assert [(row.group.label, row.bytes_per_iteration, row.bytes, row.blocks) for row in leak.lines] == [
        ("line 3", 256 * KIB, 12 * 256 * KIB, 12),
        ("line 4", 512, 12 * 512, 12),
    ]
    assert leak.bytes == 12 * (256 * KIB + 512)
    assert "line 3 `y = model(x)` and 1 more line keep 256 KiB more each iteration, 12 times" in leak.sentence
    assert analysis.sentence.startswith(f"Leak: {leak.sentence}. Peak ")
    assert (broken_promise(analysis, 0) or "").startswith("3.01 MiB leaked: line 3")
    assert broken_promise(analysis, 4 * MIB) is None
    # Of a loss in twelve nobody need hear, unless a graph hangs on it.
    growth = train(script, keep_loss=True).growth()
    assert growth.leaks == ()
    assert [leak.bytes for leak in growth.small] == [12 * 512]


def storage(address, size, path, kind=HolderKind.VARIABLE, category=Category.OTHER):
    root = path.split("[")[0].split(".")[0]
    return Storage("cuda:0", address, size, 1, (1,), "float32", category, (Holder(kind, path, root),))


def test_who_keeps_it_and_where_it_was_put(script):
    run = train(script, keep_loss=True)
    held = [storage(run.address(f"loss{n}"), 512, f"losses[{n}]") for n in range(12)]
    held += [storage(run.address(name), MIB, f"model.{name}", category=Category.PARAMETER) for name in ("g1", "g2")]
    scan = HolderScan(tuple(held), 1, 0.0, None, graphs=(("losses", 120),))
    analysis = run.analysis(holders=scan)
    # 120 nodes behind 12 losses: a graph that grows is never small.
    (leak,) = analysis.leaks
    (keeper,) = leak.keepers
    assert (keeper.root, keeper.path, keeper.bytes, keeper.graph_nodes) == ("losses", "losses[0]", 12 * 512, 120)
    assert keeper.line.label == "line 7"
    ending = "held by `losses` with 120 autograd nodes, put there at line 7 `losses.append(loss)`"
    assert leak.sentence.endswith(ending)
    assert "2.0 × the parameters" in analysis.once[0].sentence
    rows = {(analysis.devices[0].groups[row.group].label, row.path, row.bytes) for row in analysis.devices[0].held}
    assert ("line 4", "losses[0]", 12 * 512) in rows
    # The same from a scan that was made later.
    assert with_keepers(run.analysis(), scan).leaks == analysis.leaks


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("trainer.outputs['val'][{}]", "trainer.outputs['val']"),
        ("stages[0].seen[{}].x", "stages[0].seen"),
        ("kept[{}]", "kept"),
        ("net._forward_hooks[7] (closure variable `seen`)[{}]", "net"),
        ("net.layers[{}]._seen[0]", "net.layers"),
        ("jobs[{}].args[0]", "jobs"),
        ("trainer._results[{}]['loss']", "trainer._results"),
        ("queue._queue[{}]", "queue"),
    ],
)
def test_a_container_deep_in_an_object_is_named_as_a_user_would_type_it(script, path, name):
    run = script("for i in range(8):\n    work()\n")
    for number in range(8):
        run.at(1).at(2).alloc(f"x{number}", MIB)
    run.at(1)
    held = tuple(storage(run.address(f"x{n}"), MIB, path.format(n)) for n in range(8))
    if "trainer" in path:  # which has the last one under another name as well
        held = (*held[:7], storage(run.address("x7"), MIB, "trainer.last['loss']"))
    (leak,) = run.growth(holders=HolderScan(held, 1, 0.0, None)).leaks
    assert leak.sentence.endswith(f"held by `{name}`")
    assert f"`{name}`" in leak.remedy or "hook" in path


def test_numbers_in_a_list_are_nobodys_trouble_beside_a_workspace_of_the_first_step(script):
    run = script(TRAINING)
    run.at(1)
    for step in range(20):
        run.at(2).alloc("x", 4 * MIB)
        run.at(3)
        if not step:
            run.alloc("workspace", 32 * MIB)
        run.alloc(f"loss{step}", 512)
    run.at(2)
    growth = run.analysis().devices[0].growth
    assert growth.leaks == ()
    assert [(leak.grown, leak.bytes) for leak in growth.small] == [(20, 20 * 512)]


def test_a_loop_that_builds_a_model_leaks_nothing(script):
    run = script("layers = []\nfor i in range(8):\n    layers.append(Linear())\n")
    for number in range(8):
        run.at(2).at(3).alloc(f"w{number}", MIB)
    run.at(2)
    held = tuple(
        storage(run.address(f"w{n}"), MIB, f"layers[{n}].weight", category=Category.PARAMETER) for n in range(8)
    )
    growth = run.growth(holders=HolderScan(held, 1, 0.0, None))
    assert growth.leaks == ()
    (meant,) = growth.small
    assert meant.sentence.endswith("held by `layers`: parameters, made in a loop")


def filled(script, items, most, turns=8):
    run = script("for i in range(8):\n    replay.append(f())\n")
    for number in range(turns):
        run.at(1).at(2).alloc(f"r{number}", MIB)
    run.at(1)
    held = tuple(storage(run.address(f"r{n}"), MIB, f"agent.replay[{n}]") for n in range(turns))
    return run.growth(holders=HolderScan(held, 1, 0.0, None, bounds={"agent.replay": Bound(items, most)}))


def test_a_bounded_container_fills_up_and_leaks_nothing(script):
    growth = filled(script, 8, 100)
    assert growth.leaks == ()
    (filling,) = growth.small
    assert filling.sentence == (
        "line 2 `replay.append(f())` fills `agent.replay` with 1.00 MiB each time, 8 times: 8.00 MiB; "
        "it has 8 of the 100 that it takes: 100 MiB when full"
    )
    # Full already, or with fewer items than came: something else grows.
    assert len(filled(script, 100, 100).leaks) == 1
    assert len(filled(script, 1, 100).leaks) == 1


def test_a_list_that_is_dropped_and_a_window_leak_nothing(script):
    run = script("for i in range(20):\n    kept.append(f())\ndel kept\n")
    for number in range(20):
        run.at(1).at(2).alloc(f"k{number}", MIB)
    run.at(1).at(3)
    for number in range(20):
        run.free(f"k{number}")
    run.alloc("rest", MIB)
    assert run.growth().leaks == ()
    run = script("for i in range(20):\n    window.append(f())\n")
    for number in range(20):
        run.at(1).at(2).alloc(f"w{number}", MIB).free(f"w{number - 4}")
    run.at(1)
    assert run.growth().leaks == ()


def test_a_tensor_that_grows_by_being_made_anew(script):
    run = script("for y in batches:\n    out = torch.cat([out, y])\n")
    for number in range(1, 13):
        run.at(1).at(2).alloc("out", number * 64 * KIB)
    run.at(1)
    (leak,) = run.growth().leaks
    assert (leak.kind, leak.bytes_per_iteration, leak.bytes) == ("regrown", 64 * KIB, 12 * 64 * KIB)
    assert "makes the same tensor 64.0 KiB larger each iteration" in leak.sentence


def test_a_leak_of_the_outer_loop(script):
    run = script("for e in range(5):\n    for i in range(4):\n        z = f()\n    h.append(z)\n")
    for epoch in range(5):
        run.at(1)
        for _ in range(4):
            run.at(2).at(3)
            run.alloc("z", MIB)
        run.at(2).at(4)
        run.blocks[f"h{epoch}"] = run.blocks.pop("z")
    run.at(1)
    (leak,) = run.growth().leaks
    assert (leak.loop.label, leak.iterations, leak.grown, leak.bytes) == ("line 1", 5, 5, 5 * MIB)


@pytest.mark.parametrize("has_functions", [True, False])
def test_a_loop_on_one_line(script, has_functions):
    run = script("for x in xs: kept.append(f(x).mean())\n", has_functions=has_functions)
    run.at(1)
    for turn in range(5):
        run.alloc("t", 4 * MIB).alloc(f"kept{turn}", MIB).free("t")
    (leak,) = run.growth().leaks
    assert "line 1 `for x in xs: kept.append(f(x).mean())` keeps 1.00 MiB more each time, 5 times" in leak.sentence
    # A list that is made at once is no habit.
    run = script("kept = [f(x) for x in xs]\n", has_functions=has_functions).at(1)
    for turn in range(5):
        run.alloc("t", 4 * MIB).alloc(f"kept{turn}", MIB).free("t")
    assert run.growth().leaks == ()


def test_a_cell_without_a_loop_has_nothing_to_judge(script):
    analysis = script("x = f()\n").at(1).alloc("x", MIB).analysis()
    assert analysis.leaks == ()
    assert "nothing to judge" in (nothing_to_judge(analysis) or "")


def test_a_lost_beginning_counts_only_what_was_recorded(script):
    run = train(script, keep_activations=True)
    first = run.events[60]["time_us"]
    run.events = [event for event in run.events if event["time_us"] >= first]
    (leak,) = run.growth(truncated=True).leaks
    assert leak.iterations < 12
    assert leak.grown == leak.iterations


@pytest.mark.parametrize(
    ("text", "expected"), [("0", 0), ("4096", 4096), ("64KiB", 65536), ("1.5 GB", 3 << 29), ("2m", 2 << 20), ("7B", 7)]
)
def test_what_may_leak(text, expected):
    assert read_allowance(text) == expected


@pytest.mark.parametrize("text", ["", "much", "-1", "1TiB", "1e3"])
def test_what_is_no_number_of_bytes(text):
    with pytest.raises(_errors.BadUsageError, match="takes bytes"):
        read_allowance(text)


def layers(script, times):
    """A function with a loop over layers, called by one line of the cell."""
    run = script("def net(x):\n    for w in ws:\n        x = relu(x @ w)\n    return x\nys = [net(x) for x in xs]\n")
    run.at(1).at(5)
    for call in range(times):
        for layer in range(6):
            run.at(2, 5, function="net").at(3, 5, function="net").alloc(f"x{call}.{layer}", MIB)
        run.at(2, 5, function="net").at(5)
    return run


def graph_of(run, ends):
    held = [
        storage(run.address(name), MIB, f"{end}.grad_fn → ReluBackward0", HolderKind.GRAPH)
        for name, end in zip(run.blocks, ends, strict=True)
    ]
    return HolderScan(tuple(held), 1, 0.0, None, graphs=(("y", 40),))


def test_a_network_written_as_a_function_is_deep_and_does_not_leak(script):
    run = layers(script, 1)
    growth = run.growth(holders=graph_of(run, ["y"] * 6))
    assert growth.leaks == ()
    assert growth.small[0].sentence.endswith("one graph, as deep as the loop in that function is long")
    # Several tensors whose graphs are kept are a habit.
    assert len(run.growth(holders=graph_of(run, [f"y[{n}]" for n in range(6)])).leaks) == 1


@pytest.mark.parametrize(
    ("source", "is_leak"),
    [
        ("for layer in layers:\n    x = relu(layer(x))\n", False),
        ("for n, (w, layer) in enumerate(layers):\n    x = relu(layer(x))\n", False),
        ("for n in range(6):\n    x = relu(layer(x))\n", True),
        ("for layer in layers:\n    x = relu(same(x))\n", True),
    ],
)
def test_layers_that_a_cells_loop_calls_are_a_network_and_a_state_fed_back_is_a_leak(script, source, is_leak):
    run = script(source)
    for layer in range(6):
        run.at(1).at(2).alloc(f"x{layer}", MIB)
    run.at(1)
    growth = run.growth(holders=graph_of(run, ["x"] * 6))
    assert bool(growth.leaks) is is_leak
    if not is_leak:
        assert growth.small[0].sentence.endswith("one graph, as deep as that loop is long")


def test_what_each_call_returns_is_no_growth_of_the_loop_in_it(script):
    run = layers(script, 4)
    for name in list(run.blocks):
        if not name.endswith(".5"):
            run.free(name)
    assert run.growth().leaks == ()


def test_a_copy_to_share_says_nothing_of_names_and_lines(script):
    run = train(script, keep_activations=True)
    held = tuple(storage(run.address(f"y{n}"), 256 * KIB, f"secret[{n}]") for n in range(12))
    analysis = run.analysis(holders=HolderScan(held, 1, 0.0, None))
    assert "secret" in analysis.sentence
    bare = without_source(analysis)
    assert "secret" not in repr(bare)
    assert "model(x)" not in repr(bare)
    assert bare.sentence.startswith("Peak ")
