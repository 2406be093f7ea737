"""Kernels whose process is not here, and servers without terminals: what cannot be started in a test."""

import datetime as dt
from types import SimpleNamespace

import pytest

from gpumem_magic.nvml.model import Reading
from gpumem_magic.server.attribution import Attributor, Directory, KernelEntry
from gpumem_magic.server.directory import read_directory
from gpumem_magic.server.state import build_state


class GatewayKernelManager:
    kernel_name = "python3"
    execution_state = "busy"


def app(**kernels):
    def get_kernel(kernel_id):
        kernel = kernels[kernel_id]
        if kernel is None:
            raise KeyError(kernel_id)
        return kernel

    def list_sessions():
        return [{"path": "a.ipynb", "name": None, "type": "notebook", "kernel": {"id": "k"}}]

    return SimpleNamespace(
        kernel_manager=SimpleNamespace(list_kernel_ids=lambda: list(kernels), get_kernel=get_kernel),
        session_manager=SimpleNamespace(list_sessions=list_sessions),
        web_app=SimpleNamespace(settings={}),
    )


def kernel(provisioner):
    return SimpleNamespace(kernel_name="python3", provisioner=provisioner)


@pytest.mark.parametrize(
    ("manager", "pid", "reason"),
    [
        (kernel(SimpleNamespace(pid=42)), 42, None),
        (kernel(SimpleNamespace(pid=None)), None, "starting"),
        (kernel(None), None, "starting"),
        (kernel(SimpleNamespace()), None, "does not tell"),
        (GatewayKernelManager(), None, "gateway"),
    ],
)
async def test_kernel_without_a_local_process_says_why(manager, pid, reason):
    (entry,) = (await read_directory(app(k=manager))).kernels
    assert (entry.pid, entry.notebooks) == (pid, ({"path": "a.ipynb", "name": "", "type": "notebook"},))
    assert (entry.missing == {}) if reason is None else (reason in entry.missing["pid"])


async def test_idle_kernel_tells_since_when_and_one_at_work_does_not():
    moment = dt.datetime(2026, 11, 30, 8, 0, 0, 250_000, tzinfo=dt.timezone.utc)
    manager = kernel(SimpleNamespace(pid=42))
    manager.last_activity = moment
    for state, expected in (("idle", 1796025600_250_000), ("busy", None)):
        manager.execution_state = state
        directory = await read_directory(app(k=manager))
        built = build_state(
            Reading(0, None, None),
            {},
            directory,
            None,
            package="0",
            interval=1.0,
            kernel_memory={},
            kernel_facts={},
        )
        assert built["kernels"][0]["lastActivityUs"] == expected


async def test_kernel_that_ends_while_it_is_listed_is_left_out():
    directory = await read_directory(app(gone=None, k=kernel(SimpleNamespace(pid=42))))
    assert [entry.id for entry in directory.kernels] == ["k"]


def test_kernels_without_a_process_own_nothing():
    attributor = Attributor()
    attributor.update(Directory((KernelEntry("k", "python3", None),)))
    assert attributor.owner(1).owner == "other"
    assert attributor.has_device_open(None) is None
