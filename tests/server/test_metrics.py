"""The series by the rules of Prometheus: names, units, bounded labels, and no answer that is out of date."""

import time

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpumem_magic.nvml.model import Device, Memory, MigInstance, Process, Reading
from gpumem_magic.server.attribution import Owner
from gpumem_magic.server.metrics import MOST_NOTEBOOKS, OLDEST_SECONDS, GpuCollector

GIB = 1 << 30
# promtool's advice: base units, spelled out, at the end of the name.
UNITS = ("_bytes", "_celsius", "_ratio", "_seconds", "_watts")
UNITLESS = ("gpumem_up", "gpumem_device_info", "gpumem_device_up", "gpumem_device_throttled")


def scrape(devices, owners=None, age=0.0, problem=None):
    reading = Reading(round((time.time() - age) * 1e6), "580", problem, devices)
    scrapes = []
    registry = CollectorRegistry()
    registry.register(GpuCollector(lambda: (reading, owners or {}), lambda: scrapes.append(1)))
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert scrapes == [1]
    return {family.name: family for family in families}


def device(index=0, **fields):
    return Device(index, f"GPU-{index}", "NVIDIA H200", Memory(140 * GIB, 60 * GIB, 79 * GIB, GIB), **fields)


def values(family):
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


def test_names_say_what_they_count_and_in_which_base_unit():
    full = device(utilization=50, temperature_c=40, power_w=300.5, power_limit_w=700.0, throttle=("hot",))
    families = scrape((full,))
    for name, family in families.items():
        assert name.startswith("gpumem_")
        assert family.documentation.endswith("."), name
        assert family.type == "gauge", name
        assert (name in UNITLESS) != name.endswith(UNITS), name
    assert values(families["gpumem_device_utilization_ratio"]) == {("0", "GPU-0"): 0.5}
    assert values(families["gpumem_device_power_watts"]) == {("0", "GPU-0"): 300.5}
    assert values(families["gpumem_device_memory_used_bytes"]) == {("0", "GPU-0"): 60 * GIB}
    assert values(families["gpumem_device_throttled"]) == {("0", "GPU-0"): 1}


def test_what_is_unknown_is_left_out_and_a_lost_device_is_down():
    lost = Device(1, "GPU-1", "NVIDIA H200", None, lost="fallen off the bus")
    families = scrape((device(), lost))
    assert values(families["gpumem_device_up"]) == {("0", "GPU-0"): 1, ("1", "GPU-1"): 0}
    assert values(families["gpumem_device_memory_total_bytes"]) == {("0", "GPU-0"): 140 * GIB}
    assert values(families["gpumem_device_power_watts"]) == {}
    assert values(scrape((), problem="no driver")["gpumem_up"]) == {(): 0}


def test_a_hundred_notebooks_make_fifty_series_and_one_for_the_rest():
    processes = tuple(Process(pid, (pid + 1) * GIB) for pid in range(100))
    owners = {pid: Owner("kernel", f"k{pid}", (f"n{pid}.ipynb",)) for pid in range(100)}
    families = scrape((device(processes=processes),), owners)
    held = {name: value for (_index, name, _uuid), value in values(families["gpumem_notebook_memory_bytes"]).items()}
    assert len(held) == MOST_NOTEBOOKS + 1
    assert held["n99.ipynb"] == 100 * GIB
    assert held["other notebooks"] == sum(range(1, 51)) * GIB
    assert sum(held.values()) == sum(range(1, 101)) * GIB
    (whole,) = values(families["gpumem_owner_memory_bytes"]).values()
    assert whole == sum(held.values())


def test_slices_tell_what_their_device_does_not():
    instance = MigInstance(0, "MIG-0", "1g", None, (Process(7, GIB), Process(8, None)))
    owners = {7: Owner("kernel", "k", ("train.ipynb",)), 8: Owner("other")}
    families = scrape((device(processes=None, mig=(instance,)),), owners)
    assert values(families["gpumem_notebook_memory_bytes"]) == {("0", "train.ipynb", "GPU-0"): GIB}


def test_an_old_sample_is_no_answer():
    assert "gpumem_up" in scrape((device(),), age=OLDEST_SECONDS - 10)
    assert scrape((device(),), age=OLDEST_SECONDS + 10) == {}
