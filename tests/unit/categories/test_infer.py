"""What memory was for: seen by storage, or inferred from phase, line and size."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from scene import MODEL, Scene, ids  # type: ignore[import-not-found]

FC = ("module", "model.fc", "Linear")
BACKWARD = ("backward", "backward", "")
STEP = ("step", "step", "")
KIB = 1024


def step(scene, at, *, look=False):
    """One training step of 100 µs; return its allocations by name."""
    made = {}
    made["batch"] = scene.at(at).alloc(8 * KIB)
    scene.at(at + 10).call(MODEL)
    if look:
        scene.look(made["batch"], "input")
    scene.at(at + 11).call(FC, MODEL)
    made["hidden"] = scene.at(at + 12).alloc(16 * KIB)
    made["scratch"] = scene.at(at + 13).alloc(4 * KIB)
    scene.at(at + 14).free(made["scratch"])
    scene.at(at + 20).call()
    scene.at(at + 30).call(BACKWARD)
    made["between"] = scene.at(at + 31).alloc(16 * KIB)
    scene.at(at + 32).free(made["hidden"])
    made["gradient"] = scene.at(at + 33).alloc(32 * KIB)
    scene.at(at + 34).free(made["between"])
    scene.at(at + 40).call()
    scene.at(at + 50).call(STEP)
    if look:
        scene.look(made["gradient"], "gradient", "model.fc.weight")
    made["update"] = scene.at(at + 51).alloc(32 * KIB)
    scene.at(at + 52).free(made["update"])
    scene.at(at + 60).call()
    scene.at(at + 70).free(made["gradient"])
    scene.at(at + 71).free(made["batch"])
    return made


def test_a_training_step_is_told_apart_by_phase():
    scene = Scene()
    made = step(scene, 0)
    _, kinds, modules = scene.told()
    assert {name: kinds[life] for name, life in made.items()} == {
        "batch": "other?",
        "hidden": "activation?",
        "scratch": "temporary?",
        "between": "temporary?",
        "gradient": "gradient?",
        "update": "temporary?",
    }
    assert modules[made["hidden"]] == "model.fc"
    # Autograd freed what `fc` saved next, so this was made for it.
    assert modules[made["between"]] == "model.fc"
    assert modules[made["update"]] == ""


def test_what_was_seen_is_exact_and_what_is_like_it_is_inferred():
    scene = Scene()
    first, second = step(scene, 0, look=True), step(scene, 100)
    _, kinds, modules = scene.told()
    assert (kinds[first["batch"]], kinds[second["batch"]]) == ("input", "input?")
    assert (kinds[first["gradient"]], kinds[second["gradient"]]) == ("gradient", "gradient?")
    assert modules[first["gradient"]] == "model.fc"


def test_an_address_that_is_used_again_is_another_allocation():
    scene = Scene()
    scene._address = lambda _life: 0x1000
    one = scene.at(0).alloc(KIB)
    scene.at(5).look(one, "parameter", "model.fc.weight")
    scene.at(10).free(one)
    two = scene.at(20).alloc(KIB)
    scene.at(25).look(two, "buffer")
    scene.at(30).free(two)
    three = scene.at(40).alloc(2 * KIB)
    scene.at(50).free(three)
    _, kinds, _ = scene.told()
    assert [kinds[life] for life in (one, two, three)] == ["parameter", "buffer", "other?"]


def test_of_several_roles_the_first_counts():
    scene = Scene()
    weight = scene.at(0).alloc(KIB)
    for role in ("tensor", "activation", "parameter", "input"):
        scene.at(5).look(weight, role)
    assert scene.told()[1][weight] == "parameter"


def test_what_was_there_before_is_known_only_when_seen():
    scene = Scene()
    seen, unseen = scene.old(KIB), scene.old(3 * KIB)
    scene.at(10).look(seen, "parameter", "model.fc.weight")
    found, kinds, modules = scene.told()
    assert (kinds[seen], kinds[unseen], modules[seen]) == ("parameter", "before", "model.fc")
    assert ids(found.peak) == {"before": 3 * KIB, "parameter": KIB}


def test_state_that_outlives_its_step_and_a_gradient_its_backward():
    scene = Scene()
    scene.at(0).call(BACKWARD)
    gradient = scene.at(1).alloc(KIB)
    scene.at(2).call()
    scene.at(3).call(STEP)
    state = scene.at(4).alloc(2 * KIB)
    scene.at(5).call()
    scene.at(9).free(gradient)
    scene.at(9).free(state)
    assert set(scene.told()[1].values()) == {"gradient?", "optimizer?"}


def test_a_forward_without_backward_keeps_its_graph_and_one_output_is_none():
    scene = Scene()
    scene.at(0).call(MODEL)
    saved = [scene.at(1 + n).alloc(KIB) for n in range(3)]
    scene.at(10).call()
    for life in saved:
        scene.at(20).free(life)
    scene.at(30).call(MODEL)
    output = scene.at(31).alloc(KIB)
    scene.at(40).call()
    scene.at(50).free(output)
    kinds = scene.told()[1]
    assert {kinds[life] for life in saved} == {"activation?"}
    assert kinds[output] == "other?"


def test_a_checkpoint_computes_again_on_autograds_thread():
    scene = Scene()
    scene.foreign = (2,)
    scene.at(0).call(BACKWARD)
    scene.at(1).call(FC, thread=2)
    again = scene.at(2).alloc(KIB)
    scratch = scene.at(3).alloc(2 * KIB)
    scene.at(4).free(scratch)
    scene.at(5).call(thread=2)
    scene.at(6).free(again)
    scene.at(7).call()
    _, kinds, modules = scene.told()
    assert (kinds[again], kinds[scratch]) == ("activation?", "temporary?")
    assert modules[again] == "model.fc"


def test_a_workspace_belongs_to_no_tensor_and_has_its_size():
    scene = Scene()
    workspace, other = scene.at(0).alloc(8_519_680), scene.at(1).alloc(KIB)
    assert scene.told()[1] == {workspace: "workspace?", other: "unknown"}


def test_a_workspace_from_before_the_cell_is_still_one():
    scene = Scene()
    workspace = scene.old(33_554_432)
    scene.at(0).alloc(KIB)
    assert scene.told()[1][workspace] == "workspace?"


def test_a_workspace_is_not_charged_to_the_module_or_line_that_was_the_first_to_need_it():
    scene = Scene()
    relu = ("module", "model[3]", "ReLU")
    scene.at(0).call(relu, MODEL)
    saved = scene.at(1).alloc(KIB)
    forward_workspace = scene.at(2).alloc(33_554_432)
    scene.at(3).call()
    scene.at(4).call(BACKWARD)
    backward_workspace, gradient = scene.at(5).alloc(8_519_680), scene.at(6).alloc(KIB)
    scene.at(7).free(saved)
    scene.at(8).free(gradient)
    scene.at(9).call()
    found, kinds, modules = scene.told()
    assert (kinds[forward_workspace], kinds[backward_workspace]) == ("workspace?", "workspace?")
    assert (modules[forward_workspace], modules[backward_workspace]) == ("", "")
    # What the same backward made and let go of goes on being the module's.
    assert (modules[saved], modules[gradient]) == ("model[3]", "model[3]")
    assert sum(row.bytes for row in found.modules) < 4 * KIB
    assert sum(row.bytes for row in found.backward) < 4 * KIB


def test_without_a_complete_look_phases_must_do():
    scene = Scene()
    scene.at(0).call(MODEL)
    saved = scene.at(1).alloc(KIB)
    scene.at(2).call()
    scene.at(3).call(BACKWARD)
    gradient = scene.at(4).alloc(KIB)
    scene.at(5).call()
    assert scene.told(complete=False)[1] == {saved: "activation?", gradient: "gradient?"}


def test_two_threads_at_once_are_not_guessed_at():
    scene = Scene()
    scene.at(0).call(MODEL, thread=1)
    scene.at(0).call(BACKWARD, thread=2)
    mixed = scene.at(5).alloc(KIB)
    scene.at(6).free(mixed)
    scene.at(9).call(thread=1)
    scene.at(9).call(thread=2)
    assert scene.told()[1] == {mixed: "unknown"}


def test_what_torch_compile_makes_of_a_model_is_the_models():
    traced = ("module", "GraphModule", "GraphModule")
    scene = Scene()
    scene.at(0).call(traced, FC, MODEL)
    inside = scene.at(1).alloc(KIB)
    scene.at(2).free(inside)
    scene.at(3).call()
    assert scene.told()[2][inside] == "model.fc"


def test_lines_tell_phases_where_python_cannot_tell_calls():
    scene = Scene()
    scene.at(0).line(1, "y = model(x)")
    hidden = scene.at(1).alloc(KIB)
    scene.at(10).line(2, "loss.backward()")
    gradient = scene.at(11).alloc(2 * KIB)
    scene.at(12).free(hidden)
    scene.at(20).line(3, "optimizer.step()")
    state = scene.at(21).alloc(3 * KIB)
    scene.at(30).line(4, "scheduler.step()")
    scratch = scene.at(31).alloc(4 * KIB)
    scene.at(32).free(scratch)
    scene.at(40).line(5, "del everything")
    for life in (gradient, state):
        scene.at(41).free(life)
    found, kinds, _ = scene.told(watched=False)
    assert kinds == {hidden: "activation?", gradient: "gradient?", state: "optimizer?", scratch: "temporary?"}
    assert found.reason == "module paths need Python 3.12"


def test_a_line_that_does_everything_is_not_guessed_at():
    scene = Scene()
    scene.at(0).line(1, "loss.backward(); optimizer.step()")
    mixed = scene.at(1).alloc(KIB)
    scene.at(10).line(2, "done = True")
    scene.at(11).free(mixed)
    assert scene.told(watched=False)[1] == {mixed: "unknown"}


def test_a_call_that_hides_the_training_is_not_guessed_at():
    scene = Scene()
    scene.at(0).line(1, "train(model)")
    hidden, gradient = scene.at(1).alloc(KIB), scene.at(2).alloc(2 * KIB)
    scene.at(3).free(hidden)
    scene.at(9).look(gradient, "gradient", "model.fc.weight")
    assert scene.told(watched=False)[1] == {hidden: "unknown", gradient: "gradient"}


def test_modules_and_backward_rows_at_the_peak():
    scene = Scene()
    scene.at(0).call(FC, MODEL)
    hidden = scene.at(1).alloc(16 * KIB)
    scene.at(2).call()
    scene.at(3).call(BACKWARD)
    between = scene.at(4).alloc(32 * KIB)
    scene.at(5).free(hidden)
    scene.at(6).free(between)
    scene.at(7).call()
    found, _, _ = scene.told()
    (only,) = found.modules
    assert found.module_names[only.module] == "model.fc"
    assert (only.bytes, only.blocks, only.inferred) == (48 * KIB, 2, 48 * KIB)
    assert [size for _, size in only.by_category] == [32 * KIB, 16 * KIB]
    (row,) = found.backward
    assert (row.group, row.bytes, row.blocks) == (0, 32 * KIB, 1)
