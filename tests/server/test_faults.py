"""The fault matrix, through the whole server: the feed, the metrics and the log each keep going."""

import asyncio
import json
import logging

import pytest

GIB = 1 << 30


def gpumem_lines(caplog, level=logging.WARNING):
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= level and record.getMessage().startswith("gpumem: ")
    ]


@pytest.mark.parametrize(
    ("code", "words"),
    [(4, "permissions"), (9, "modprobe"), (12, "No NVIDIA driver"), (18, "reboot"), (999, "unknown error")],
)
async def test_init_faults_reach_everybody_and_are_logged_once(code, words, request, open_feed, jp_fetch):
    fake_nvml, caplog = request.getfixturevalue("fake_nvml"), request.getfixturevalue("caplog")
    fake_nvml.control({"init": code})
    feed = await open_feed()
    state = (await feed.next())["state"]
    assert words in state["problem"]
    assert state["devices"] == []
    # The host's memory stands in for the devices, and goes on.
    for _ in range(3):
        message = await feed.until(lambda m: m["type"] == "delta")
        assert message["host"]["memoryUsed"] > 0
    assert "gpumem_up 0.0" in (await jp_fetch("metrics")).body.decode()
    (line,) = gpumem_lines(caplog)
    assert words in line


async def test_one_of_eight_lost_later_and_back(fake_nvml, open_feed, jp_fetch, caplog):
    fake_nvml.control({"count": 8})
    feed = await open_feed()
    first = (await feed.next())["state"]
    assert [device["memoryUsed"] for device in first["devices"]] == [3773628416] * 8
    fake_nvml.control({"count": 8, "devices": [{}, {}, {}, {"error": 15}]})
    lost = (await feed.until(lambda m: m["type"] == "state" and m["state"]["devices"][3]["missing"]))["state"]
    assert [device["memoryUsed"] is None for device in lost["devices"]] == [n == 3 for n in range(8)]
    assert lost["devices"][3]["uuid"] == first["devices"][3]["uuid"]
    assert lost["problem"] is None
    for _ in range(3):
        await feed.until(lambda m: m["type"] == "delta")
    text = (await jp_fetch("metrics")).body.decode()
    assert 'gpumem_device_up{index="3"' in text
    assert text.count("gpumem_device_memory_used_bytes{") == 7
    assert sum("GPU 3" in line for line in gpumem_lines(caplog)) == 1
    fake_nvml.control({"count": 8})
    back = await feed.until(lambda m: m["type"] == "state" and not m["state"]["devices"][3]["missing"], seconds=30)
    assert back["state"]["devices"][3]["memoryUsed"] == 3773628416
    history = (await jp_fetch("gpumem-magic", "history")).body
    columns = json.loads(history)["devices"]
    assert len(columns) == 8
    assert None in columns[3]["memoryUsed"]
    assert None not in columns[0]["memoryUsed"]


@pytest.mark.parametrize(
    ("device", "field"),
    [
        ({"errors": {"nvmlDeviceGetUtilizationRates": 3}}, "utilization"),
        ({"errors": {"nvmlDeviceGetPowerUsage": 4}}, "powerW"),
        ({"errors": {"nvmlDeviceGetTemperature": 999}}, "temperatureC"),
        ({"errors": {"nvmlDeviceGetComputeRunningProcesses_v3": 4}}, "processes"),
    ],
)
async def test_one_value_that_is_missing_says_why_and_costs_no_log(fake_nvml, open_feed, caplog, device, field):
    fake_nvml.control({"count": 2, "devices": [device]})
    feed = await open_feed()
    sick, well = (await feed.next())["state"]["devices"]
    assert not sick[field]
    assert sick["missing"][field]
    assert well["missing"] == {}
    assert sick["memoryUsed"] == well["memoryUsed"] == 3773628416
    for _ in range(3):
        await feed.until(lambda m: m["type"] == "delta")
    assert gpumem_lines(caplog, logging.INFO) == []


async def test_processes_whose_memory_is_hidden(fake_nvml, get_state):
    fake_nvml.control({"devices": [{"processes": [{"pid": 1, "used": None}]}]})
    (device,) = (await get_state())["devices"]
    (process,) = device["processes"]
    assert process["used"] is None
    assert process["missing"]["used"]
    assert device["unattributed"] is None
    assert device["missing"]["unattributed"]


async def test_unified_memory_is_labelled(fake_nvml, get_state):
    fake_nvml.control({"devices": [{"unified": 1}]})
    state = await get_state()
    (device,) = state["devices"]
    assert device["unified"] is True
    assert device["memoryTotal"] == state["host"]["memoryTotal"]
    assert "host" in device["missing"]["memoryReserved"]


@pytest.mark.parametrize("count", [0, 16])
async def test_no_devices_and_sixteen(fake_nvml, open_feed, count):
    fake_nvml.control({"count": count})
    state = (await (await open_feed()).next())["state"]
    assert len(state["devices"]) == count
    assert (state["problem"] is None) == (count > 0)


async def test_slow_driver_never_blocks_the_event_loop(fake_nvml, open_feed, jp_fetch, monitor):
    fake_nvml.control({"delay_us": {"nvmlDeviceGetMemoryInfo_v2": 4_000_000}})
    feed = await open_feed()
    while monitor._poller.busy_seconds == 0:  # noqa: ASYNC110 -- a thread's number, not an event of this loop
        await asyncio.sleep(0.01)
    for _ in range(3):
        assert (await jp_fetch("api", "status")).code == 200
    # All three were answered while the driver sat on one call.
    assert monitor._poller.ticks == 0
    assert monitor._poller.busy_seconds > 0
    fake_nvml.control({})
    state = (await feed.until(lambda m: m["type"] == "state"))["state"]
    assert state["devices"][0]["memoryUsed"] == 3773628416


async def test_slow_driver_is_asked_less_often_and_the_panel_knows(fake_nvml, open_feed):
    fake_nvml.control({"delay_us": {"nvmlDeviceGetMemoryInfo_v2": 400_000}})
    feed = await open_feed()
    # 0.4 s in the driver: asked every 2 s in place of every 0.2.
    await feed.until(lambda m: m["type"] == "state" and m["state"]["intervalMs"] >= 2000)


async def test_driver_that_hangs_is_named_and_the_last_numbers_stay(fake_nvml, monitor, get_state, monkeypatch):
    await get_state()
    monkeypatch.setattr(type(monitor._poller), "busy_seconds", property(lambda _self: 42.0))
    monkeypatch.setattr(monitor, "_current", lambda: None)
    state = await monitor.fresh_state(timeout=0.01)
    assert "not answered for 42 s" in state["problem"]
    assert state["devices"][0]["memoryUsed"] == 3773628416
    assert fake_nvml.calls()


async def test_readings_that_fail_are_not_blamed_on_the_driver(fake_nvml, monitor, monkeypatch, caplog):
    def broken(_reading):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(monitor._poller, "_publish", broken)
    state = await monitor.fresh_state(timeout=1.0)
    assert state["problem"] == "No reading of the GPUs came in time; the server's log says whether one failed."
    assert state["devices"] == []
    assert fake_nvml.calls()
    assert any("a reading failed" in line for line in gpumem_lines(caplog))


async def test_hanging_driver_reaches_the_feed(open_feed, monitor, monkeypatch, caplog):
    feed = await open_feed()
    await feed.next()
    monkeypatch.setattr(type(monitor._poller), "busy_seconds", property(lambda _self: 42.0))
    state = await feed.until(lambda m: m["type"] == "state" and m["state"]["problem"])
    assert "not answered" in state["state"]["problem"]
    assert sum("not answered" in line for line in gpumem_lines(caplog)) == 1


async def test_driver_that_is_reloaded_comes_back_by_itself(fake_nvml, open_feed):
    feed = await open_feed()
    await feed.next()
    fake_nvml.control({"driver_error": 999})
    down = await feed.until(lambda m: m["type"] == "state" and m["state"]["problem"])
    assert "unknown error" in down["state"]["problem"]
    fake_nvml.control({})
    up = await feed.until(lambda m: m["type"] == "state" and not m["state"]["problem"], seconds=40)
    assert up["state"]["devices"][0]["memoryUsed"] == 3773628416
