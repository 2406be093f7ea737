"""The recorder's small functions."""

import os

import pytest

from gpumem_magic import nvml
from gpumem_magic.nvml import sampling
from gpumem_magic.nvml.pids import NAMESPACE_REASON

GIB = 1 << 30
FIRST = "00000000-0000-0000-0000-000000000000"
SECOND = "00000000-0000-0000-0000-000000000001"


@pytest.fixture
def two(fake_nvml):
    mine = {"pid": os.getpid(), "used": 3 * GIB}
    other = {"pid": 1, "used": GIB}
    fake_nvml.control({"count": 2, "devices": [{"processes": [other]}, {"processes": [mine, other]}]})
    return fake_nvml


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("spelling", [SECOND, f"GPU-{SECOND}", f"GPU-{SECOND}".upper()])
def test_joined_by_uuid_however_torch_counts(spelling):
    (reading,) = nvml.readings(spelling)
    assert (reading.index, reading.uuid) == (1, f"GPU-{SECOND}")
    assert reading.memory is not None
    assert (reading.memory.used, reading.process_used, reading.missing) == (3773628416, 3 * GIB, {})


@pytest.mark.usefixtures("two")
def test_order_is_the_callers_and_strangers_are_named():
    second, unknown, first = nvml.readings(SECOND, "GPU-gone", FIRST)
    assert (second.index, first.index) == (1, 0)
    assert (unknown.index, unknown.memory, unknown.process_used) == (-1, None, None)
    assert "GPU-gone" in unknown.missing["memory"]


@pytest.mark.usefixtures("two")
def test_process_that_holds_nothing_is_zero_not_unknown():
    first, second = nvml.readings()
    assert (first.process_used, second.process_used) == (0, 3 * GIB)
    assert nvml.process_used() == {f"GPU-{SECOND}": 3 * GIB}
    assert nvml.process_used(1) == {f"GPU-{FIRST}": GIB, f"GPU-{SECOND}": GIB}


def test_process_list_is_read_only_when_asked_for(two):
    two.reset_calls()
    (reading,) = nvml.readings(SECOND, processes=False)
    assert reading.process_used is None
    assert "nvmlDeviceGetComputeRunningProcesses_v3" not in two.calls()
    nvml.readings(SECOND)
    # Sizing and filling; never the graphics list.
    assert two.calls()["nvmlDeviceGetComputeRunningProcesses_v3"] == 2
    assert "nvmlDeviceGetGraphicsRunningProcesses_v3" not in two.calls()


def test_slice_is_found_by_its_uuid(fake_nvml):
    mine = {"pid": os.getpid(), "used": GIB}
    slices = [{"total": 16 * GIB, "used": 2 * GIB, "uuid": "MIG-one", "name": "1g.18gb", "processes": [mine]}]
    fake_nvml.control({"devices": [{"mig": 1, "mig_permission": 0, "mig_instances": slices}]})
    (reading,) = nvml.readings("one")
    assert reading.memory is not None
    assert (reading.uuid, reading.name, reading.memory.total) == ("MIG-one", "1g.18gb", 16 * GIB)
    assert reading.process_used == GIB


def test_unified_device_gives_the_hosts_memory(fake_nvml):
    fake_nvml.control({"devices": [{"unified": 1, "processes": [{"pid": "self", "used": 5}]}]})
    (reading,) = nvml.readings()
    assert reading.memory is not None
    assert (reading.process_used, reading.missing) == (5, {})


def test_lost_device_says_so(fake_nvml):
    fake_nvml.control({})
    assert nvml.readings()[0].memory is not None
    fake_nvml.control({"devices": [{"error": 15}]})
    for _ in range(2):
        (reading,) = nvml.readings()
        assert (reading.memory, reading.process_used) == (None, None)
        assert "fallen off the bus" in reading.missing["memory"]


def test_unknown_process_memory_is_not_zero(fake_nvml):
    fake_nvml.control({"devices": [{"processes": [{"pid": "self", "used": None}]}]})
    (reading,) = nvml.readings()
    assert reading.process_used is None
    assert "does not tell" in reading.missing["process_used"]


@pytest.mark.parametrize(
    ("listed", "used"),
    [
        # A host PID that is not here: which of them is this process cannot be told.
        ([{"pid": 4_000_001, "used": GIB}], None),
        # The number is ours, but in this namespace it may be somebody else's.
        ([{"pid": "self", "used": GIB}], None),
        ([], 0),
    ],
)
def test_inside_a_pid_namespace_a_number_is_not_believed(fake_nvml, monkeypatch, listed, used):
    monkeypatch.setattr(sampling, "is_initial_namespace", lambda: False)
    monkeypatch.setattr("gpumem_magic.nvml.pids.is_initial_namespace", lambda: False)
    fake_nvml.control({"devices": [{"processes": listed}]})
    (reading,) = nvml.readings()
    assert reading.process_used == used
    assert reading.missing == ({} if used == 0 else {"process_used": NAMESPACE_REASON})
