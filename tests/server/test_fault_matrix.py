"""Every fault of the driver against feed, metrics and both logs; panelView.test.ts is the panel's half.

The states that the server sends are kept in ``faults.json`` here, which the front end's tests draw.
After a change that is meant: ``GPUMEM_WRITE_FAULTS=1 pytest tests/server/test_fault_matrix.py``.
"""

from __future__ import annotations

import asyncio
import csv
import json
import logging
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpumem_magic.cli.csv_log import write_log
from gpumem_magic.nvml.pids import NAMESPACE_REASON
from gpumem_magic.server import attribution

GIB = 1 << 30
STATES = Path(__file__).with_name("faults.json")
SLICES = [{"total": 71 * GIB, "used": 20 * GIB, "reserved": 0, "processes": [{"pid": 1, "used": 19 * GIB}]}]
OLD = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetCurrentClocksEventReasons",
)
HOLDER = {"processes": [{"pid": 1, "used": GIB}]}


@dataclass(frozen=True)
class Fault:
    """A fault and what must hold under it.

    Attributes
    ----------
    control
        What the fake library shows.
    problem
        A word of the sentence about the driver; None when there is none.
    memory
        How many devices tell their memory.
    warnings
        Patterns of the lines that each log must have once; it must have no others.
    """

    name: str
    control: dict[str, Any]
    problem: str | None = None
    memory: int = 0
    warnings: tuple[str, ...] = ()
    foreign: bool = False
    series: dict[str, int] = field(default_factory=dict)


def _init(code: int, word: str) -> Fault:
    return Fault(f"init fails with {code}", {"init": code}, problem=word, warnings=(word,))


FAULTS = (
    _init(4, "permissions"),
    _init(9, "modprobe"),
    _init(12, "No NVIDIA driver"),
    _init(18, "reboot"),
    _init(999, "unknown error"),
    Fault(
        "one of eight is lost from the start",
        {"count": 8, "devices": [HOLDER, {}, {}, {"error": 15}]},
        memory=7,
        warnings=("GPU 3 .*fallen off the bus",),
        series={"utilization_ratio": 7},
    ),
    Fault(
        "two of eight are lost, each in its own way",
        {"count": 8, "devices": [{"error": 28}, {}, {}, {}, {}, {}, {}, {"error": 16}]},
        memory=6,
        warnings=("GPU 0 .*no longer there", "GPU 7 .*must be reset"),
    ),
    Fault(
        "values that a device does not support",
        {
            "count": 2,
            "devices": [
                {
                    "errors": {
                        "nvmlDeviceGetUtilizationRates": 3,
                        "nvmlDeviceGetPowerUsage": 3,
                        "nvmlDeviceGetEnforcedPowerLimit": 3,
                        "nvmlDeviceGetTemperature": 3,
                        "nvmlDeviceGetCurrentClocksEventReasons": 3,
                        "nvmlDeviceGetCurrentClocksThrottleReasons": 3,
                        "nvmlDeviceGetTotalEccErrors": 3,
                        "nvmlDeviceGetRemappedRows": 3,
                    },
                },
            ],
        },
        memory=2,
        series={"utilization_ratio": 1, "power_watts": 1, "temperature_celsius": 1, "throttled": 1},
    ),
    Fault(
        "a device in MIG mode, with permission",
        {"count": 2, "devices": [{"mig": 1, "mig_instances": SLICES}]},
        memory=2,
        series={"utilization_ratio": 1},
    ),
    Fault(
        "a device in MIG mode, without permission",
        {"count": 2, "devices": [{"mig": 1, "mig_permission": 0, "mig_instances": SLICES}]},
        memory=1,
        series={"utilization_ratio": 1},
    ),
    Fault("memory that is the host's", {"count": 2, "devices": [{"unified": 1}]}, memory=2),
    Fault(
        "processes whose memory is hidden",
        {"devices": [{"processes": [{"pid": 1, "used": None}, {"pid": 2, "used": None}]}]},
        memory=1,
    ),
    Fault("PIDs of another namespace", {"devices": [HOLDER]}, memory=1, foreign=True),
    Fault("no devices", {"count": 0}, problem="shows no GPU", warnings=("shows no GPU",)),
    Fault("sixteen devices", {"count": 16, "devices": [HOLDER] * 16}, memory=16, series={"power_watts": 16}),
    Fault("a driver with older structs", {"devices": [HOLDER], "missing": dict.fromkeys(OLD, 1)}, memory=1),
    Fault("slow calls", {"count": 2, "delay_us": {"all": 5000}}, memory=2),
)


@pytest.fixture
def kept() -> dict[str, Any]:
    """The states as they were last written."""
    return dict(json.loads(STATES.read_text("utf-8"))) if STATES.exists() else {}


def steady(state: dict[str, Any]) -> dict[str, Any]:
    """Leave out what differs from run to run: time, pace, the machine's own memory, names and ages of its processes."""
    state = json.loads(json.dumps(state))
    host: dict[str, Any] = {"name": "node", "memoryTotal": 64 * GIB, "memoryUsed": 8 * GIB, "missing": {}}
    state |= {"timeUs": 1_800_000_000_000_000, "intervalMs": 1000, "package": "0.1.0", "host": host}
    for device in state["devices"]:
        if device["unified"]:
            used, total = host["memoryUsed"], host["memoryTotal"]
            device |= {"memoryUsed": used, "memoryTotal": total, "memoryFree": total - used}
            device["unattributed"] = used
        for process in [*device["processes"], *(p for mig in device["mig"] for p in mig["processes"])]:
            foreign = process["owner"] == "foreign"
            known = {} if foreign else {"name": f"program {process['pid']}", "missing": {}}
            hidden = {"used": process["missing"]["used"]} if "used" in process["missing"] else {}
            missing = {**process["missing"], **hidden} if foreign else hidden
            process.update({"command": None, "startedUs": None} | known | {"missing": missing})
    return state


def lines(caplog: pytest.LogCaptureFixture, *, csv_log: bool) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.INFO
        and record.getMessage().startswith("gpumem: ")
        and (record.name == "gpumem_magic.log") == csv_log
    ]


@pytest.fixture
def under_fault(fake_nvml, open_feed, jp_fetch, caplog):
    """The driver's stand-in, the two ways to the server, and what is logged."""
    return SimpleNamespace(fake=fake_nvml, open_feed=open_feed, fetch=jp_fetch, caplog=caplog)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_everybody_keeps_going(fault, kept, under_fault, tmp_path, monkeypatch):
    fake, caplog = under_fault.fake, under_fault.caplog
    caplog.set_level(logging.INFO)
    fake.control(fault.control)
    if fault.foreign:
        monkeypatch.setattr(attribution, "is_initial_namespace", lambda: False)
    # The feed: a whole state, and then on and on.
    feed = await under_fault.open_feed()
    state = (await feed.next())["state"]
    moments = [state["timeUs"]]
    for _ in range(4):
        message = await feed.next()
        assert message["type"] in {"state", "delta"}
        moments.append(message["timeUs"] if message["type"] == "delta" else message["state"]["timeUs"])
    assert moments == sorted(set(moments))
    assert (state["problem"] is None) == (fault.problem is None)
    assert fault.problem is None or fault.problem in state["problem"]
    told = [device for device in state["devices"] if device["memoryUsed"] is not None]
    assert len(told) == fault.memory
    for device in state["devices"]:
        unknown = [name for name in ("memoryUsed", "utilization", "powerW", "temperatureC") if device[name] is None]
        assert all(device["missing"].get(name) for name in unknown), device
    if fault.foreign:
        (process,) = state["devices"][0]["processes"]
        assert (process["owner"], process["missing"]["name"]) == ("foreign", NAMESPACE_REASON)
    # The metrics: what is known, and nothing that is not.
    metrics = (await under_fault.fetch("metrics")).body.decode()
    assert f"gpumem_up {0.0 if fault.problem else 1.0}" in metrics
    for series, count in ({"memory_used_bytes": fault.memory} | fault.series).items():
        assert metrics.count(f"gpumem_device_{series}{{") == count, series
    # The CSV log: a row for each device and reading.
    out = tmp_path / "log.csv"
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, lambda: write_log(str(out), interval=0.1, count=3))
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * len(state["devices"])
    assert sum(row["used_bytes"] != "" for row in rows) == 3 * fault.memory
    # Each log: one line a fault, and not one a tick.
    for logged in (lines(caplog, csv_log=False), lines(caplog, csv_log=True)):
        assert len(logged) == len(fault.warnings), logged
        for pattern in fault.warnings:
            assert sum(bool(re.search(pattern, line)) for line in logged) == 1, logged
    # The panel's half.
    if os.environ.get("GPUMEM_WRITE_FAULTS"):
        text = json.dumps(kept | {fault.name: steady(state)}, indent=1, ensure_ascii=False)
        STATES.write_text(text + "\n", "utf-8")
    else:
        assert kept[fault.name] == steady(state)


def test_the_front_end_draws_these_and_no_others(kept):
    assert list(kept) == [fault.name for fault in FAULTS]
