"""devices, watch, log and exporter, as a user runs them."""

import contextlib
import csv
import http.client
import http.server
import json
import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from gpumem_magic.cli import exporter
from gpumem_magic.nvml.model import Device, Process, Reading
from gpumem_magic.server.attribution import KNOWN_UPDATES

GIB = 1 << 30
HEADER = (
    "time_utc,index,uuid,name,used_bytes,reserved_bytes,free_bytes,total_bytes,"
    "utilization_percent,temperature_c,power_w"
)


def command(*arguments):
    return [sys.executable, "-m", "gpumem_magic", *map(str, arguments)]


def run(fake, *arguments, code=0):
    done = subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        env=fake.environment(),
    )
    assert done.returncode == code, done.stderr
    return done


def test_devices_as_json_keeps_the_contract(fake_nvml):
    me = os.getpid()
    fake_nvml.control({"count": 2, "devices": [{"processes": [{"pid": me, "used": GIB}]}, {"error": 15}]})
    answer = json.loads(run(fake_nvml, "devices", "--json").stdout)
    assert answer.keys() >= {"driver", "problem", "devices"}
    assert (answer["driver"], answer["problem"]) == ("580.159", None)
    well, lost = answer["devices"]
    keys = {"index", "uuid", "name", "memory", "utilization", "temperature_c", "power_w", "processes", "missing"}
    assert well.keys() >= keys
    assert lost.keys() >= keys
    assert well["memory"] == {"total": 150754820096, "used": 3773628416, "reserved": 644939776, "free": 146336251904}
    assert (well["utilization"], well["temperature_c"], well["power_w"], well["missing"]) == (37, 41, 123.456, {})
    (process,) = well["processes"]
    assert (process["pid"], process["used"]) == (me, GIB)
    assert lost["memory"] == {"total": None, "used": None, "reserved": None, "free": None}
    assert "fallen off the bus" in lost["missing"]["memory"]


def test_devices_as_text(fake_nvml):
    slices = [{"total": 16 * GIB, "used": GIB, "processes": [{"pid": os.getpid(), "used": GIB}]}]
    fake_nvml.control(
        {"count": 3, "devices": [{}, {"unified": 1}, {"mig": 1, "mig_permission": 0, "mig_instances": slices}]}
    )
    text = run(fake_nvml, "devices").stdout
    assert "3.51 GiB used + 615 MiB driver of 140 GiB, 136 GiB free" in text
    assert "shared with the host" in text
    assert "MIG 0  NVIDIA Fake MIG 1g.18gb  1.00 GiB of 16.0 GiB" in text
    assert re.search(rf"{os.getpid()} +1.00 GiB", text)


def test_devices_without_a_driver_is_a_sentence_and_the_hosts_memory(fake_nvml):
    fake_nvml.control({"init": 9})
    text = run(fake_nvml, "devices").stdout
    assert "modprobe nvidia" in text
    assert "host memory: " in text
    assert json.loads(run(fake_nvml, "devices", "--json").stdout)["devices"] == []


def test_watch_without_a_terminal_shows_one_frame(fake_nvml):
    fake_nvml.control({"devices": [{"throttle": 4, "processes": [{"pid": os.getpid(), "used": GIB}]}]})
    text = run(fake_nvml, "watch").stdout
    assert "3.51 GiB / 140 GiB" in text
    assert "at the power limit" in text
    assert str(os.getpid()) in text


def test_watch_in_a_terminal_refreshes(fake_nvml):
    import pty

    fake_nvml.control({"devices": [{"name": "[bold]not markup[/bold]"}]})
    parent, child = pty.openpty()
    arguments = command("watch", "--interval", "0.1", "--count", "3")
    process = subprocess.Popen(arguments, stdout=child, env={**fake_nvml.environment(), "COLUMNS": "160"})
    os.close(child)
    shown = b""
    # A closed terminal is an error on Linux, not an end of file.
    with contextlib.suppress(OSError):
        while piece := os.read(parent, 4096):
            shown += piece
    os.close(parent)
    assert process.wait(10) == 0
    # Once a reading, and once more when the view is left standing.
    assert shown.count(b"3.51 GiB / 140 GiB") >= 3
    assert b"[bold]not markup[/bold]" in shown


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_log_appends_and_survives_a_lost_device(fake_nvml, tmp_path):
    out = tmp_path / "log.csv"
    fake_nvml.control({"count": 2, "devices": [{"name": "A, with a comma"}]})
    run(fake_nvml, "log", "--csv", out, "--interval", "0.1", "--count", "2")
    fake_nvml.control({"count": 2, "devices": [{"error": 15}]})
    done = run(fake_nvml, "log", "--csv", out, "--interval", "0.1", "--count", "3")
    assert done.stderr.count("fallen off the bus") == 1
    assert out.read_text(encoding="utf-8").splitlines()[0] == HEADER
    assert out.read_text(encoding="utf-8").count("time_utc") == 1
    logged = rows(out)
    assert [row["index"] for row in logged] == ["0", "1"] * 5
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row["time_utc"]) for row in logged)
    assert logged[0]["name"] == "A, with a comma"
    assert [row["used_bytes"] for row in logged[0::2]] == ["3773628416"] * 2 + [""] * 3
    assert [row["used_bytes"] for row in logged[1::2]] == ["3773628416"] * 5
    assert (logged[1]["utilization_percent"], logged[1]["power_w"]) == ("37", "123.456")


def test_log_goes_on_after_a_torn_line(fake_nvml, tmp_path):
    out = tmp_path / "log.csv"
    out.write_text(HEADER + "\n2026-01-01T00:00:00.000Z,0,GP", encoding="utf-8")
    run(fake_nvml, "log", "--csv", out, "--count", "1")
    assert [row["index"] for row in rows(out)] == ["0", "0"]


def test_log_leaves_other_files_alone(fake_nvml, tmp_path):
    out = tmp_path / "mine.csv"
    out.write_text("a,b\n1,2\n")
    done = run(fake_nvml, "log", "--csv", out, "--count", "1", code=1)
    assert done.stderr.startswith("gpumem-magic: ")
    assert len(done.stderr.splitlines()) == 1
    assert out.read_text() == "a,b\n1,2\n"
    assert "cannot be" in run(fake_nvml, "log", "--csv", tmp_path / "no" / "dir.csv", "--count", "1", code=1).stderr


def test_log_into_a_pipe_ends_with_its_reader(fake_nvml):
    for out, code in (("-", 1), ("/dev/stdout", 0)):
        process = subprocess.Popen(
            command("log", "--csv", out, "--interval", "0.1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=fake_nvml.environment(),
            text=True,
        )
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == HEADER + "\n"
            assert process.stdout.readline().count(",") == HEADER.count(",")
            process.stdout.close()
            assert process.wait(10) == code
            assert process.stderr.read() == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("log", "--csv", "/dev/full", "--count", "2"),
        ("log", "--csv", "-", "--count", "2"),
        ("devices",),
        ("devices", "--json"),
        ("watch",),
        ("exporter", "--print-systemd"),
    ],
)
def test_full_disk_is_one_line(fake_nvml, arguments):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command(*arguments),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=fake_nvml.environment(),
            timeout=30,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("gpumem-magic: ")
    assert done.stderr.rstrip().count("\n") == 0
    assert "No space left" in done.stderr


def test_log_flushes_each_reading_and_ends_on_interrupt(fake_nvml, tmp_path):
    out = tmp_path / "log.csv"
    process = subprocess.Popen(command("log", "--csv", out, "--interval", "0.1"), env=fake_nvml.environment())
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not (out.exists() and len(rows(out)) >= 2):
        time.sleep(0.05)
    assert len(rows(out)) >= 2
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("log", "--csv", "x", "--count", "0"),
        ("log", "--csv", "x", "--interval", "0"),
        ("log",),
        ("exporter", "--port", "70000"),
        ("exporter", "--port", "many"),
        ("exporter", "--address", "a..b"),
        ("exporter", "--push", "nowhere"),
        ("exporter", "--push", "http://[::1"),
        ("exporter", "--push", "http://host:port"),
    ],
)
def test_bad_usage_is_two(fake_nvml, arguments):
    (line,) = run(fake_nvml, *arguments, code=2).stderr.splitlines()
    assert line.startswith("gpumem-magic")


@pytest.mark.parametrize(("option", "value"), [("--interval", "soon"), ("--count", "1.5")])
def test_what_is_no_number_is_named_as_the_user_wrote_it(fake_nvml, option, value):
    assert f"argument {option}: '{value}' is not a number" in run(fake_nvml, "watch", option, value, code=2).stderr


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_exporter_answers_scrapes_from_its_last_reading(fake_nvml):
    fake_nvml.control({"count": 2, "devices": [{"processes": [{"pid": 1, "used": GIB}]}, {"error": 15}]})
    port = free_port()
    arguments = command("exporter", "--port", port, "--interval", "0.2")
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, env=fake_nvml.environment(), text=True)
    try:
        assert process.stdout is not None
        assert f":{port}/metrics" in process.stdout.readline()
        deadline = time.monotonic() + 10
        text = ""
        while "gpumem_up 1" not in text and time.monotonic() < deadline:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        label = 'index="0",uuid="GPU-00000000-0000-0000-0000-000000000000"'
        assert f"gpumem_device_memory_used_bytes{{{label}}} 3.773628416e+09" in text
        assert f"gpumem_device_utilization_ratio{{{label}}} 0.37" in text
        assert re.search(r'gpumem_device_up\{index="1",uuid=""\} 0', text)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
        assert process.returncode == 0


def test_exporter_pushes_and_outlives_a_gateway_that_fails(fake_nvml):
    pushed = []

    class Gateway(http.server.BaseHTTPRequestHandler):
        def do_PUT(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            pushed.append((self.path, body))
            self.send_response(500 if len(pushed) == 1 else 200)
            self.end_headers()

        def log_message(self, *_arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    process = subprocess.Popen(
        command("exporter", "--push", url, "--interval", "0.1"),
        stderr=subprocess.PIPE,
        env=fake_nvml.environment(),
        text=True,
    )
    deadline = time.monotonic() + 20
    while len(pushed) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    server.shutdown()
    server.server_close()
    assert process.returncode == 0
    assert errors.count("does not take metrics") == 1
    assert errors.count("takes metrics again") == 1
    path, body = pushed[-1]
    assert path == f"/metrics/job/gpumem/instance/{socket.gethostname()}"
    assert "gpumem_device_memory_total_bytes" in body


def test_exporter_outlives_what_is_no_gateway_at_all(fake_nvml):
    pushes = []

    class Other(socketserver.StreamRequestHandler):
        def handle(self):
            # Read whole, or the client sees a reset connection in place of the answer.
            self.rfile.readline()
            self.rfile.read(int(http.client.parse_headers(self.rfile)["Content-Length"]))
            self.wfile.write(b"SSH-2.0-other\r\n")
            pushes.append(1)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    arguments = command("exporter", "--push", f"http://127.0.0.1:{server.server_address[1]}", "--interval", "0.1")
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, env=fake_nvml.environment(), text=True)
    deadline = time.monotonic() + 60
    while len(pushes) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    server.shutdown()
    server.server_close()
    assert (process.returncode, errors.count("does not take metrics")) == (0, 1)


def test_exporter_forgets_the_processes_of_the_past():
    source = exporter._Source(3600.0)
    source.poller.stop()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        used = Reading(0, None, None, (Device(0, processes=(Process(process.pid, GIB),)),))
        source._take(used)
        assert [life.pid for life in source._attributor._known] == [process.pid]
        process.communicate(b"\n")
    for _ in range(KNOWN_UPDATES):
        source._take(Reading(0, None, None))
    assert not source._attributor._known


def test_systemd_unit_runs_this_interpreter(fake_nvml):
    unit = run(fake_nvml, "exporter", "--port", "1234", "--print-systemd").stdout
    (start,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    expected = f"ExecStart={sys.executable} -m gpumem_magic exporter --interval 5 --address 127.0.0.1 --port 1234"
    assert start == expected
    assert "[Install]" in unit
