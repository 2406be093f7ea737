"""Kernels whose process is not here, and servers without terminals: what cannot be started in a test."""

from types import SimpleNamespace

import pytest

from gpumem_magic.server.attribution import Attributor, Directory, KernelEntry
from gpumem_magic.server.directory import read_directory


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


async def test_kernel_that_ends_while_it_is_listed_is_left_out():
    directory = await read_directory(app(gone=None, k=kernel(SimpleNamespace(pid=42))))
    assert [entry.id for entry in directory.kernels] == ["k"]


def test_kernels_without_a_process_own_nothing():
    attributor = Attributor()
    attributor.update(Directory((KernelEntry("k", "python3", None),)))
    assert attributor.owner(1).owner == "other"
    assert attributor.has_device_open(None) is None
