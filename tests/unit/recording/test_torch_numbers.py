"""torch's numbers for the sidebar, read between cells and beside them."""

from __future__ import annotations

import sys

import pytest

from gpumem_magic.recording import torch_numbers


@pytest.fixture
def torch(fake_torch, monkeypatch):
    fake = fake_torch(devices=2)
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_nothing_is_asked_before_cuda_is_in_use(torch):
    assert torch_numbers.read_on_main_thread() == []
    assert torch_numbers.read_now([]) == []
    assert not torch.initialised


def test_beside_a_cell_only_counters_are_read(torch, monkeypatch):
    torch.initialise()
    known = torch_numbers.read_on_main_thread()
    assert [numbers.key for numbers in known] == ["cuda:0", "cuda:1"]

    def runtime(*_):
        raise AssertionError("the CUDA runtime was called beside the cell")

    for name in ("device_count", "get_device_properties"):
        monkeypatch.setattr(torch.cuda, name, runtime)
    stats = torch._C._cuda_memoryStats

    def bounded(device):
        if device >= torch.devices:
            raise RuntimeError("Allocator not initialized for device")
        return stats(device)

    monkeypatch.setattr(torch._C, "_cuda_memoryStats", bounded)
    torch.bytes[1] = 4096
    now = torch_numbers.read_now(known)
    assert [(numbers.key, numbers.uuid, numbers.allocated) for numbers in now] == [
        ("cuda:0", "uuid-0", 0),
        ("cuda:1", "uuid-1", 4096),
    ]
    # In the cell that first uses CUDA, nothing but the counters is known.
    assert [numbers.uuid for numbers in torch_numbers.read_now([])] == [None, None]
