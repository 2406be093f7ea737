"""State, history, feed and metrics as a browser and Prometheus meet them."""

import asyncio
import json
import time

import pytest
from tornado.httpclient import HTTPClientError

from gpumem_magic.nvml.model import Reading
from gpumem_magic.server.monitor import SHORTEST_INTERVAL

GIB = 1 << 30
# A busy machine stalls for seconds; what is waited for either comes or never does.
PATIENCE = 60.0

DEVICE = {
    "index", "uuid", "name", "memoryTotal", "memoryUsed", "memoryReserved", "memoryFree", "utilization",
    "temperatureC", "powerW", "powerLimitW", "throttle", "unified", "processes", "unattributed", "mig", "missing",
}  # fmt: skip


async def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_state_keeps_the_protocol(fake_nvml, get_state):
    fake_nvml.control({"count": 2, "devices": [{"processes": [{"pid": 1, "used": GIB}]}, {"error": 15}]})
    state = await get_state()
    assert state.keys() == {
        "protocol", "package", "timeUs", "intervalMs", "driver", "problem", "host", "devices", "kernels",
    }  # fmt: skip
    assert (state["protocol"], state["driver"], state["problem"], state["kernels"]) == (1, "580.159", None, [])
    assert abs(state["timeUs"] / 1e6 - time.time()) < 30
    assert 0 < state["host"]["memoryUsed"] < state["host"]["memoryTotal"]
    well, lost = state["devices"]
    assert well.keys() >= DEVICE
    assert lost.keys() >= DEVICE
    assert [well[name] for name in ("memoryTotal", "memoryUsed", "memoryReserved", "memoryFree")] == [
        150754820096, 3773628416, 644939776, 146336251904,
    ]  # fmt: skip
    assert (well["unattributed"], well["missing"]) == (3773628416 - GIB, {})
    assert [(p["pid"], p["used"], p["owner"]) for p in well["processes"]] == [(1, GIB, "other")]
    unknown = ("memoryTotal", "memoryUsed", "memoryReserved", "memoryFree", "utilization", "temperatureC", "powerW")
    for name in unknown:
        assert lost[name] is None
        assert "fallen off the bus" in lost["missing"][name]


async def test_slices_are_rows_of_their_device(fake_nvml, get_state):
    slices = [{"total": 16 * GIB, "used": GIB, "processes": [{"pid": 1, "used": GIB}]}]
    fake_nvml.control({"devices": [{"mig": 1, "mig_permission": 0, "mig_instances": slices}]})
    (device,) = (await get_state())["devices"]
    (instance,) = device["mig"]
    assert (device["memoryUsed"], instance["memoryTotal"], instance["memoryUsed"]) == (None, 16 * GIB, GIB)
    assert [(p["pid"], p["owner"]) for p in instance["processes"]] == [(1, "other")]
    assert "MIG" in device["missing"]["memoryUsed"]


async def test_history_holds_what_was_read(get_state, jp_fetch):
    first = await get_state()
    answer = await jp_fetch("gpumem-magic", "history", params={"seconds": "60"})
    history = json.loads(answer.body)
    assert first["timeUs"] in history["timeUs"]
    assert history["devices"][0]["memoryUsed"][0] == 3773628416
    assert history["devices"][0]["uuid"] == first["devices"][0]["uuid"]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("name", ["seconds", "points"])
@pytest.mark.parametrize("value", ["x", "-1", "0", "nan"])
async def test_history_of_nonsense_is_a_bad_request(jp_fetch, name, value):
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("gpumem-magic", "history", params={name: value})
    assert caught.value.code == 400


async def test_history_comes_in_as_many_points_as_asked_for(monitor, get_state, jp_fetch):
    await get_state()
    now = time.time_ns() // 1000
    for second in range(3000, 0, -1):
        monitor.history.append(Reading(now - second * 1_000_000, None, None), second, 1.0)

    async def points(**asked):
        return len(json.loads((await jp_fetch("gpumem-magic", "history", params=asked)).body)["timeUs"])

    assert await points() <= 1201
    assert await points(points="20000") >= 3000
    assert await points(points="10") <= 15


async def test_feed_begins_with_a_state_and_goes_on_with_deltas(fake_nvml, open_feed):
    feed = await open_feed()
    first = await feed.next()
    assert first["type"] == "state"
    assert first["state"]["devices"][0]["memoryUsed"] == 3773628416
    delta = await feed.until(lambda message: message["type"] == "delta")
    assert delta["devices"][0].keys() == {
        "index", "memoryUsed", "memoryReserved", "memoryFree", "utilization", "temperatureC", "powerW",
    }  # fmt: skip
    assert delta["host"].keys() == {"memoryUsed"}
    fake_nvml.control({"devices": [{"used": 5 * GIB}]})
    changed = await feed.until(lambda m: m["type"] == "delta" and m["devices"][0]["memoryUsed"] == 5 * GIB)
    assert changed["timeUs"] > first["state"]["timeUs"]


async def test_structural_change_makes_a_state(fake_nvml, open_feed):
    feed = await open_feed()
    await feed.until(lambda message: message["type"] == "delta")
    fake_nvml.control({"devices": [{"processes": [{"pid": 1, "used": GIB}]}]})
    message = await feed.until(lambda m: m["type"] == "state" and m["state"]["devices"][0]["processes"])
    assert message["state"]["devices"][0]["processes"][0]["pid"] == 1


async def test_one_poller_for_all_clients_and_none_for_nobody(fake_nvml, open_feed):
    feeds = [await open_feed() for _ in range(5)]
    for feed in feeds:
        assert (await feed.next())["type"] == "state"
    fake_nvml.reset_calls()
    began = time.monotonic()
    await asyncio.sleep(2)
    asked = fake_nvml.calls()["nvmlDeviceGetMemoryInfo_v2"]
    # Five readings a second, whoever looks; twice as many would be a second poller.
    assert asked <= (time.monotonic() - began) / 0.2 + 2
    for feed in feeds[1:]:
        feed.close()
    feeds[0].tell(type="visible", visible=False)
    await asyncio.to_thread(fake_nvml.wait_until_quiet)
    fake_nvml.reset_calls()
    shown = time.time() * 1e6
    feeds[0].tell(type="visible", visible=True)
    await feeds[0].until(lambda message: message["type"] == "state" and message["state"]["timeUs"] > shown)
    assert fake_nvml.calls()["nvmlDeviceGetMemoryInfo_v2"] >= 1


async def test_time_when_nobody_looked_is_a_gap_though_the_driver_is_slow(fake_nvml, open_feed, jp_fetch):
    # A reading takes so long that the next one would come more than a second later.
    fake_nvml.control({"delay_us": {"nvmlDeviceGetTemperature": 300_000}})
    feed = await open_feed()
    await feed.next()
    await feed.next()
    feed.close()
    await asyncio.to_thread(fake_nvml.wait_until_quiet, 2.0)
    shown = time.time() * 1e6
    feed = await open_feed()
    await feed.until(lambda message: message["type"] == "state" and message["state"]["timeUs"] > shown)
    history = json.loads((await jp_fetch("gpumem-magic", "history")).body)
    assert history["host"]["memoryUsed"].count(None) == 1
    assert history["host"]["memoryUsed"][-1] is not None


async def test_nothing_is_asked_before_anybody_looks(fake_nvml, server, jp_fetch):
    await jp_fetch("api", "status")
    await asyncio.sleep(0.5)
    assert server
    assert fake_nvml.calls() == {}


async def test_clients_shorten_the_interval_for_all(open_feed):
    first, second = await open_feed(), await open_feed()
    first.tell(type="configure", intervalMs=3000, recordInBackground=False)
    await first.until(lambda m: m["type"] == "state" and m["state"]["intervalMs"] == 3000)
    second.tell(type="configure", intervalMs=500, recordInBackground=False)
    await second.until(lambda m: m["type"] == "state" and m["state"]["intervalMs"] == 500)


async def test_recording_in_the_background_goes_on_until_it_is_switched_off(fake_nvml, open_feed, monitor):
    feed = await open_feed()
    feed.tell(type="configure", intervalMs=200, recordInBackground=True)
    feed.tell(type="visible", visible=False)
    feed.close()
    await until(lambda: not monitor._clients)
    fake_nvml.reset_calls()
    await until(lambda: fake_nvml.calls().get("nvmlDeviceGetMemoryInfo_v2", 0) >= 3)
    monitor.configure(feed, interval=0.2, record=False)
    await asyncio.to_thread(fake_nvml.wait_until_quiet)


async def test_nonsense_on_the_feed_is_ignored(open_feed):
    feed = await open_feed()
    for text in ("", "[]", "{}", '{"type": "visible"}', '{"type": "configure", "intervalMs": "x"}', "\x00"):
        feed.socket.write_message(text)
    await feed.until(lambda message: message["type"] == "delta")


@pytest.mark.usefixtures("server")
async def test_scrape_reads_the_last_sample_and_counts_as_a_look(fake_nvml, jp_fetch):
    async def scrape():
        return (await jp_fetch("metrics")).body.decode()

    fake_nvml.control({"devices": [{"processes": [{"pid": 1, "used": GIB}]}]})
    assert fake_nvml.calls() == {}
    text = await scrape()
    assert "gpumem_device_memory_used_bytes{" not in text
    deadline = time.monotonic() + PATIENCE
    while "gpumem_up 1.0" not in text and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
        text = await scrape()
    label = 'index="0",uuid="GPU-00000000-0000-0000-0000-000000000000"'
    assert f"gpumem_device_memory_used_bytes{{{label}}} 3.773628416e+09" in text
    owned = 'index="0",owner="other",uuid="GPU-00000000-0000-0000-0000-000000000000"'
    assert f"gpumem_owner_memory_bytes{{{owned}}} 1.073741824e+09" in text
    assert f"gpumem_device_power_watts{{{label}}} 123.456" in text


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("path", ["state", "history", "feed"])
async def test_without_a_token_the_doors_are_shut(jp_base_url, http_server_client, fake_nvml, path):
    with pytest.raises(HTTPClientError) as caught:
        await http_server_client.fetch(jp_base_url + "gpumem-magic/" + path, follow_redirects=False)
    assert caught.value.code in (302, 403)
    assert fake_nvml.calls() == {}


@pytest.mark.usefixtures("server", "http_server_client")
async def test_feed_without_a_token_is_refused(jp_http_port, jp_base_url):
    import tornado.websocket

    url = f"ws://localhost:{jp_http_port}{jp_base_url}gpumem-magic/feed"
    with pytest.raises(HTTPClientError) as caught:
        await tornado.websocket.websocket_connect(url)
    assert caught.value.code == 403


@pytest.mark.parametrize(
    "jp_server_config",
    [{"ServerApp": {"jpserver_extensions": {"gpumem_magic": True}, "allow_unauthenticated_access": False}}],
)
async def test_server_that_forbids_open_doors_finds_none_of_ours(get_state):
    # It would leave an extension out that has one.
    assert (await get_state())["protocol"] == 1


async def test_authorizer_is_asked(server, jp_fetch, jp_ws_fetch, monkeypatch):
    asked = []

    def refuse(_handler, _user, action, resource):
        asked.append((action, resource))
        return False

    monkeypatch.setattr(server.authorizer, "is_authorized", refuse)
    for path in ("state", "history"):
        with pytest.raises(HTTPClientError) as caught:
            await jp_fetch("gpumem-magic", path)
        assert caught.value.code == 403
    with pytest.raises(HTTPClientError) as caught:
        await jp_ws_fetch("gpumem-magic", "feed")
    assert caught.value.code == 403
    assert asked == [("read", "gpumem"), ("read", "gpumem"), ("execute", "gpumem")]


@pytest.mark.usefixtures("http_server_client")
async def test_other_origins_may_not_open_the_feed(server, jp_http_port, jp_base_url, jp_auth_header, monkeypatch):
    import tornado.httpclient
    import tornado.websocket

    # As for a browser, which brings a cookie and no token of its own.
    monkeypatch.setattr(server.identity_provider, "should_check_origin", lambda _handler: True)
    url = f"ws://localhost:{jp_http_port}{jp_base_url}gpumem-magic/feed"
    headers = {**jp_auth_header, "Origin": "https://elsewhere.example"}
    with pytest.raises(HTTPClientError) as caught:
        await tornado.websocket.websocket_connect(tornado.httpclient.HTTPRequest(url, headers=headers))
    assert caught.value.code == 403


async def test_stopping_leaves_nothing_running(fake_nvml, server, open_feed):
    import threading

    import prometheus_client

    extension = server.web_app.settings["gpumem_magic"]
    feed = await open_feed()
    await feed.next()
    assert "gpumem-poller" in {thread.name for thread in threading.enumerate()}
    await extension.stop_extension()
    assert "gpumem-poller" not in {thread.name for thread in threading.enumerate()}
    assert "gpumem_up" not in prometheus_client.generate_latest().decode()
    fake_nvml.reset_calls()
    # A look that comes too late wakes nobody.
    extension.monitor.note_scrape()
    await asyncio.sleep(0.5)
    assert fake_nvml.calls() == {}
    # The server stops extensions again when the test ends.
    prometheus_client.REGISTRY.register(extension._collector)


async def test_a_client_that_is_gone_before_its_first_message_is_taken_off(monitor, get_state):
    class Gone:
        def send(self, _message):
            monitor.detach(self)
            return False

    await get_state()
    monitor.attach(Gone())
    assert not monitor._clients


async def test_no_number_is_no_interval(monitor, open_feed):
    feed = await open_feed()
    await feed.next()
    feed.tell(type="configure", intervalMs=float("nan"), recordInBackground=False)
    feed.tell(type="visible", visible=False)
    await until(lambda: not next(iter(monitor._clients.values())).visible)
    assert next(iter(monitor._clients.values())).interval == SHORTEST_INTERVAL
