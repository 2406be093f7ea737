"""What a reading says, value by value, over the fake library and the real pynvml."""

import os
import re

import pynvml
import pytest

from gpumem_magic.nvml.model import Memory, Process
from gpumem_magic.nvml.reader import MEDIUM_TICKS, SLOW_TICKS, Reader

GIB = 1 << 30


def read_one(session):
    return Reader(session).read().devices[0]


def test_a_healthy_device(fake_nvml, session):
    processes = [{"pid": 4000, "used": 2 * GIB}, {"pid": 3000, "used": GIB}]
    fake_nvml.control({"devices": [{"name": "NVIDIA H200", "uuid": "GPU-abc", "processes": processes}]})
    reading = Reader(session).read()
    assert (reading.driver, reading.problem) == ("580.159", None)
    (device,) = reading.devices
    assert (device.index, device.uuid, device.name) == (0, "GPU-abc", "NVIDIA H200")
    # The numbers of a real H200: total = used + reserved + free, to the byte.
    assert device.memory == Memory(150754820096, 3773628416, 146336251904, 644939776)
    assert (device.utilization, device.temperature_c, device.power_w, device.power_limit_w) == (37, 41, 123.456, 700.0)
    assert device.throttle == ()
    assert device.processes == (Process(3000, GIB), Process(4000, 2 * GIB))
    assert device.unattributed == 3773628416 - 3 * GIB
    assert not device.unified
    assert device.missing == {}
    assert device.lost is None


def test_older_driver_counts_its_own_part_as_used(fake_nvml, session):
    fake_nvml.control({"missing": {"nvmlDeviceGetMemoryInfo_v2": 1}})
    device = read_one(session)
    assert device.memory == Memory(150754820096, 3773628416 + 644939776, 146336251904, None)
    assert "driver" in device.missing["reserved"]


def test_second_version_that_fails_on_wsl_falls_back_too(fake_nvml, session):
    fake_nvml.control({"devices": [{"errors": {"nvmlDeviceGetMemoryInfo_v2": 999}}]})
    assert read_one(session).memory.used == 3773628416 + 644939776


@pytest.mark.skipif(not hasattr(pynvml, "nvmlDeviceGetComputeRunningProcesses_v2"), reason="an older nvidia-ml-py")
def test_older_process_list(fake_nvml, session):
    fake_nvml.control(
        {
            "missing": {"nvmlDeviceGetComputeRunningProcesses_v3": 1, "nvmlDeviceGetGraphicsRunningProcesses_v3": 1},
            "devices": [{"processes": [{"pid": 7, "used": 5}], "graphics": [{"pid": 8, "used": 6}]}],
        },
    )
    assert read_one(session).processes == (Process(7, 5), Process(8, 6, graphics=True))


def test_process_in_both_lists_counts_once(fake_nvml, session):
    both = {"pid": 7, "used": 5}
    fake_nvml.control({"devices": [{"processes": [both], "graphics": [both]}]})
    assert read_one(session).processes == (Process(7, 5),)


def test_process_of_two_slices_adds_up(fake_nvml, session):
    fake_nvml.control({"devices": [{"processes": [{"pid": 7, "used": 5}, {"pid": 7, "used": 6}]}]})
    assert read_one(session).processes == (Process(7, 11),)


def test_process_memory_that_is_not_told(fake_nvml, session):
    fake_nvml.control({"devices": [{"processes": [{"pid": 7, "used": None}, {"pid": 8, "used": 3}]}]})
    device = read_one(session)
    assert [process.used for process in device.processes] == [None, 3]
    assert "does not tell" in device.processes[0].missing["used"]
    assert device.unattributed is None


@pytest.mark.parametrize("garbage", [{"pid": 1 << 30, "used": 5}, {"pid": 7, "used": 1 << 60}, {"pid": 0, "used": 5}])
def test_garbled_process_list_is_dropped_and_totals_stay(fake_nvml, session, garbage):
    fake_nvml.control({"devices": [{"processes": [garbage]}]})
    device = read_one(session)
    assert device.processes is None
    assert "garbled" in device.missing["processes"]
    assert device.memory.used == 3773628416


def test_unified_memory_is_the_hosts(fake_nvml, session):
    fake_nvml.control({"count": 2, "devices": [{"unified": True}, {"total": 0, "used": 0, "reserved": 0}]})
    for device in Reader(session).read().devices:
        assert device.unified
        assert device.memory is not None
        assert device.memory.total == device.memory.used + device.memory.free
        assert 0 < device.memory.used < device.memory.total
        assert "host" in device.missing["reserved"]
        assert "memory" not in device.missing


@pytest.mark.skipif(not hasattr(pynvml, "nvmlDeviceGetNumaNodeId"), reason="an older nvidia-ml-py")
def test_unified_device_of_a_numa_machine_keeps_its_own(fake_nvml, session):
    fake_nvml.control({"devices": [{"numa_node": 1}]})
    device = read_one(session)
    assert (device.numa_node, device.unified, device.memory.total) == (1, False, 150754820096)


SLICES = [
    {"total": 16 * GIB, "used": GIB, "reserved": 0, "processes": [{"pid": 7, "used": GIB}]},
    {"total": 32 * GIB, "used": 2 * GIB, "reserved": 0, "uuid": "MIG-two", "name": "3g.71gb"},
]


def test_slices_with_permission_on_the_parent(fake_nvml, session):
    fake_nvml.control({"devices": [{"mig": 1, "mig_instances": SLICES}]})
    device = read_one(session)
    assert device.memory.total == 150754820096
    assert device.utilization is None
    assert "MIG" in device.missing["utilization"]
    first, second = device.mig
    assert (first.index, first.memory.total, first.processes) == (0, 16 * GIB, (Process(7, GIB),))
    assert (second.uuid, second.name, second.memory.used, second.processes) == ("MIG-two", "3g.71gb", 2 * GIB, ())


def test_slices_without_permission_on_the_parent(fake_nvml, session):
    fake_nvml.control({"devices": [{"mig": 1, "mig_permission": 0, "mig_instances": SLICES}]})
    device = read_one(session)
    assert (device.memory, device.processes, device.unattributed) == (None, None, None)
    assert "MIG" in device.missing["memory"]
    assert not device.unified
    assert [instance.memory.used for instance in device.mig] == [GIB, 2 * GIB]


def test_slices_that_are_remade_under_the_reader(fake_nvml, session):
    reader = Reader(session)
    fake_nvml.control({"devices": [{"mig": 1, "mig_instances": SLICES}]})
    assert len(reader.read().devices[0].mig) == 2
    fake_nvml.control({"devices": [{"mig": 1, "mig_instances": [{**SLICES[1], "errors": {}}]}]})
    assert [instance.uuid for instance in reader.read().devices[0].mig] == ["MIG-two"]
    fake_nvml.control({"devices": [{"mig": 0}]})
    device = reader.read().devices[0]
    assert (device.mig, device.utilization) == ((), 37)


def test_throttle_reasons_in_words(fake_nvml, session):
    fake_nvml.control({"count": 2, "devices": [{"throttle": 0x4 | 0x40 | 0x1}, {"throttle": 0x1}]})
    hot, idle = Reader(session).read().devices
    assert hot.throttle == ("at the power limit", "too hot, slowed down by hardware")
    assert idle.throttle == ()


def test_throttle_reasons_by_their_name_until_driver_535(fake_nvml, session):
    fake_nvml.control({"missing": {"nvmlDeviceGetCurrentClocksEventReasons": 1}, "devices": [{"throttle": 0x80}]})
    assert read_one(session).throttle == ("slowed down by the external power brake",)


def test_health_in_words(fake_nvml, session):
    states = [{}, {"ecc_uncorrected": 1}, {"ecc_uncorrected": 2, "remap_pending": 1}, {"remap_failed": 1}]
    fake_nvml.control({"count": 4, "devices": states})
    found = [device.health for device in Reader(session).read().devices]
    assert found[0] == ()
    assert found[1] == ("1 uncorrected ECC error since the driver was loaded",)
    assert found[2][0].startswith("2 uncorrected ECC errors")
    assert "reset the device" in found[2][1]
    assert "replaced" in found[3][0]


@pytest.mark.parametrize(
    ("function", "field", "calls"),
    [
        ("nvmlDeviceGetUtilizationRates", "utilization", 1),
        ("nvmlDeviceGetTemperature", "temperature_c", 1),
        ("nvmlDeviceGetPowerUsage", "power_w", 1),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_w", 1),
    ],
)
def test_unsupported_values_are_named_and_asked_once(fake_nvml, session, function, field, calls):
    fake_nvml.control({"devices": [{"errors": {function: 3}}]})
    reader = Reader(session)
    for _ in range(5):
        device = reader.read().devices[0]
        assert getattr(device, field) is None
        assert device.missing == {field: "not supported by this device or driver"}
    assert fake_nvml.calls()[function] == calls


def test_denied_values_are_asked_again_after_a_minute(fake_nvml, session, clock):
    fake_nvml.control({"devices": [{"errors": {"nvmlDeviceGetPowerUsage": 4}}]})
    reader = Reader(session)
    assert "denies" in reader.read().devices[0].missing["power_w"]
    fake_nvml.control({})
    assert reader.read().devices[0].power_w is None
    clock.now += 61
    assert reader.read().devices[0].power_w == 123.456


@pytest.mark.parametrize("count", [0, 16])
def test_no_devices_and_many(fake_nvml, session, count):
    fake_nvml.control({"count": count})
    reading = Reader(session).read()
    assert len(reading.devices) == count
    assert [device.index for device in reading.devices] == list(range(count))
    if count:
        assert reading.problem is None
    else:
        assert "nvidia-smi -L" in (reading.problem or "")


def test_tiers_ask_the_expensive_more_rarely(fake_nvml, session):
    fake_nvml.control({"count": 8})
    reader = Reader(session)
    reader.read(0)
    fake_nvml.reset_calls()
    for tick in range(1, 1 + 2 * SLOW_TICKS):
        reader.read(tick)
    calls = fake_nvml.calls()
    ticks, devices = 2 * SLOW_TICKS, 8
    fast = ("MemoryInfo_v2", "UtilizationRates", "Temperature", "PowerUsage")
    assert [calls[f"nvmlDeviceGet{name}"] for name in fast] == [ticks * devices] * 4
    assert calls["nvmlDeviceGetComputeRunningProcesses_v3"] == ticks * devices / MEDIUM_TICKS
    assert calls["nvmlDeviceGetMigMode"] == 2 * devices
    assert not {"nvmlDeviceGetPcieThroughput", "nvmlDeviceGetTotalEnergyConsumption"} & calls.keys()


def test_reading_starts_nothing_but_nvml():
    import subprocess
    import sys

    program = (
        "import sys, gpumem_magic.nvml as n; assert 'pynvml' not in sys.modules; n.read_all();"
        "print(sorted({'torch', 'cuda', 'jupyter_server', 'IPython'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "[]\n"


def test_binding_that_another_monitor_has_patched(session, monkeypatch):
    # As gpustat and nvitop do: one parameter, the second version's fields.
    true_call = pynvml.nvmlDeviceGetMemoryInfo
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: true_call(handle, pynvml.nvmlMemory_v2))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda: 1)
    device = read_one(session)
    assert device.memory == Memory(150754820096, 3773628416, 146336251904, 644939776)
    assert device.power_w is None
    assert "another package" in device.missing["power_w"]


def test_xid_errors_are_told_once_and_kept(fake_nvml, session):
    reader = Reader(session, xids=True)
    fake_nvml.control({"count": 2})
    assert [device.health for device in reader.read(0).devices] == [(), ()]
    fake_nvml.control({"count": 2, "devices": [{}, {"xids": [31, 4242]}]})
    for tick in (2, 3, 4):
        well, sick = reader.read(tick).devices
        assert well.health == ()
        newest, first = sick.health
        assert re.fullmatch(r"Xid 4242 at \d\d:\d\d", newest)
        assert re.fullmatch(r"Xid 31 at \d\d:\d\d: .*application error.*", first)


def test_xid_of_a_lost_device_stays(fake_nvml, session):
    reader = Reader(session, xids=True)
    fake_nvml.control({})
    reader.read(0)
    fake_nvml.control({"devices": [{"xids": [79]}]})
    reader.read(2)
    fake_nvml.control({"devices": [{"error": 15}]})
    (device,) = reader.read(4).devices
    assert device.lost is not None
    assert "Xid 79" in device.health[0]


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"])
def test_driver_without_events_is_read_all_the_same(fake_nvml, session, function):
    fake_nvml.control({"missing": {function: 1}, "devices": [{"xids": [79]}]})
    (device,) = Reader(session, xids=True).read(0).devices
    assert (device.health, device.missing) == ((), {})
