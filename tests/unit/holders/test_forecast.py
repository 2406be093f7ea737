"""What the first step of an optimizer adds is forecast, and then found to be so."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.holders import ToldSteps, first_step_text, first_steps  # noqa: E402

WIDTH = 1024
PARAMETERS = (WIDTH + 1) * WIDTH * 4  # bytes


@pytest.fixture(autouse=True)
def nothing_left():
    gc.collect()
    yield
    gc.collect()


def state_bytes(optimizer):
    tensors = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return sum(tensor.nbytes for tensor in tensors if tensor.numel() > 1)


@pytest.mark.parametrize(
    ("make", "times"),
    [
        (torch.optim.Adam, 2),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), 3),
        (torch.optim.NAdam, 2),
        (torch.optim.RAdam, 2),
        (torch.optim.Adamax, 2),
        (torch.optim.Adadelta, 2),
        (torch.optim.RMSprop, 1),
        (lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True), 3),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
    ],
)
def test_what_the_first_step_adds(make, times):
    model = torch.nn.Linear(WIDTH, WIDTH)
    optimizer = make(model.parameters())
    assert first_steps() == ()  # without gradients a step makes nothing
    model(torch.ones(1, WIDTH)).sum().backward()
    (found,) = first_steps()
    assert (found.device, found.bytes, found.times) == ("cpu", times * PARAMETERS, times)
    optimizer.step()
    assert state_bytes(optimizer) == found.bytes
    assert first_steps() == ()


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=0.1), torch.optim.Adagrad])
def test_who_makes_nothing_in_its_first_step_is_not_told_of(make):
    model = torch.nn.Linear(WIDTH, WIDTH)
    optimizer = make(model.parameters())
    model(torch.ones(1, WIDTH)).sum().backward()
    assert first_steps() == ()
    before = state_bytes(optimizer)
    optimizer.step()
    assert state_bytes(optimizer) == before


def test_only_what_has_a_gradient_counts():
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.Adam(model.parameters())
    model[1](torch.ones(1, WIDTH)).sum().backward()
    (found,) = first_steps()
    assert found.bytes == 2 * PARAMETERS
    optimizer.step()
    assert state_bytes(optimizer) == found.bytes
    told = "the first step of Adam will add 8.01 MiB of state on cpu: 2.0 × the parameters that it trains, once"
    assert first_step_text(found) == told


def test_an_optimizer_whose_parts_are_of_other_kinds_is_left_out_and_the_others_are_told():
    models = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    plain, with_tensor, with_list, with_words = (torch.optim.Adam(model.parameters()) for model in models)
    for model in models:
        model(torch.ones(1, WIDTH)).sum().backward()
    assert len(first_steps()) == 4
    with_tensor.state["shared"] = torch.ones(3)  # neither true nor false
    with_list.param_groups[0] = list(models[2].parameters())
    with_words.param_groups[0]["params"] = ["weight", "bias"]
    assert [(step.optimizer, step.bytes) for step in first_steps()] == [("Adam", 2 * PARAMETERS)]
    assert plain.param_groups


def test_a_forecast_is_told_in_one_cell_until_something_changes():
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.Adam(model.parameters())
    model[1](torch.ones(1, WIDTH)).sum().backward()
    told = ToldSteps()
    sizes = lambda cell: [step.bytes for step in told.news(first_steps(), cell)]  # noqa: E731
    assert sizes("backward") == [2 * PARAMETERS]
    assert sizes("later") == []
    assert sizes("backward") == [2 * PARAMETERS]  # its former output is gone
    model(torch.ones(1, WIDTH)).sum().backward()  # the other layer has a gradient now
    assert sizes("both") == [4 * PARAMETERS]
    assert sizes("later") == []
    del optimizer
    gc.collect()
    again = torch.optim.Adam(model.parameters())
    assert sizes("later") == [4 * PARAMETERS]
    again.step()
    assert sizes("later") == []
