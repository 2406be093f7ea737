"""Init faults, lost devices and driver restarts: what is said, what goes on, and how it heals."""

import logging
import os
import subprocess
import sys

import pynvml
import pytest

from gpumem_magic.nvml import faults
from gpumem_magic.nvml.poller import FaultLog
from gpumem_magic.nvml.reader import Reader
from gpumem_magic.nvml.session import DEVICE_RETRY_SECONDS, RESCAN_SECONDS, RETRY_SECONDS


@pytest.mark.parametrize(
    ("code", "cause", "step"),
    [
        (4, "may not open", "video"),
        (9, "not loaded", "modprobe nvidia"),
        (12, "No NVIDIA driver", ""),
        (17, "blocks", "allow /dev/nvidia"),
        (18, "versions differ", "reboot"),
        (999, "unknown error", "re"),
        (8, "error 8", "nvidia-smi"),
    ],
)
def test_init_faults_are_one_sentence_with_the_next_step(fake_nvml, session, code, cause, step):
    fake_nvml.control({"init": code})
    reading = Reader(session).read()
    assert reading.devices == ()
    problem = reading.problem or ""
    assert cause in problem
    assert step in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("wsl", "container", "words"),
    [(True, False, "Windows side"), (False, True, "--gpus all"), (False, False, "on this machine")],
)
def test_missing_library_says_what_to_do_where(monkeypatch, wsl, container, words):
    monkeypatch.setattr(faults, "is_wsl", lambda: wsl)
    monkeypatch.setattr(faults, "is_container", lambda: container)
    assert words in faults.problem_sentence(12)


def test_failed_init_is_tried_again_slowly_and_heals(fake_nvml, session, clock):
    reader = Reader(session)
    fake_nvml.control({"init": 9})
    for _ in range(10):
        reader.read()
    assert fake_nvml.calls()["nvmlInitWithFlags"] == 1
    fake_nvml.control({})
    clock.now += RETRY_SECONDS - 1
    assert reader.read().problem is not None
    clock.now += 2
    reading = reader.read()
    assert (reading.problem, len(reading.devices)) == (None, 1)


def test_one_init_serves_every_reading(fake_nvml, session):
    reader = Reader(session)
    for tick in range(50):
        reader.read(tick)
    assert fake_nvml.calls()["nvmlInitWithFlags"] == 1
    assert "nvmlShutdown" not in fake_nvml.calls()


def eight(*lost):
    return {"count": 8, "devices": [{"error": 15} if index in lost else {} for index in range(8)]}


@pytest.mark.parametrize("code", [15, 16, 28])
def test_device_lost_later_leaves_the_others_and_comes_back(fake_nvml, session, clock, code):
    reader = Reader(session)
    fake_nvml.control(eight())
    before = reader.read(0)
    fake_nvml.control({"count": 8, "devices": [{}, {}, {}, {"error": code}]})
    for tick in range(1, 5):
        reading = reader.read(tick)
        assert reading.problem is None
        assert [device.index for device in reading.devices if device.lost] == [3]
        assert all(device.memory == before.devices[0].memory for device in reading.devices if device.index != 3)
        # It is still known which one it was.
        assert (reading.devices[3].uuid, reading.devices[3].name) == (before.devices[3].uuid, before.devices[3].name)
        assert set(reading.devices[3].missing) >= {"memory", "utilization", "processes"}
    fake_nvml.control(eight())
    clock.now += DEVICE_RETRY_SECONDS[0] + 1
    assert not any(device.lost for device in reader.read(9).devices)


def test_device_lost_at_the_start(fake_nvml, session):
    fake_nvml.control(eight(0))
    reading = Reader(session).read()
    assert [device.lost is not None for device in reading.devices] == [True] + [False] * 7
    assert reading.problem is None


def test_lost_device_is_looked_for_less_and_less_often(fake_nvml, session, clock):
    reader = Reader(session)
    fake_nvml.control(eight(3))
    reader.read(0)
    asked = []
    for _second in range(40):
        clock.now += 1
        fake_nvml.reset_calls()
        reader.read(1)
        asked.append(fake_nvml.calls().get("nvmlDeviceGetHandleByIndex_v2", 0))
    assert sum(asked) == 3
    assert [second + 1 for second, count in enumerate(asked) if count] == [5, 15, 35]


def test_device_that_only_a_new_init_can_see(fake_nvml, session, clock):
    reader = Reader(session)
    fake_nvml.control(eight(3))
    reader.read(0)
    clock.now += RESCAN_SECONDS + 1
    reader.read(1)
    assert fake_nvml.calls()["nvmlInitWithFlags"] == 2


@pytest.mark.parametrize("code", [9, 18, 999, 17])
def test_driver_that_is_reloaded_is_found_again(fake_nvml, session, clock, code):
    reader = Reader(session)
    fake_nvml.control({"count": 2})
    generation = reader.read(0) and session.generation
    fake_nvml.control({"count": 2, "driver_error": code})
    reader.read(1)
    down = reader.read(2)
    assert down.problem is not None
    assert down.devices == ()
    fake_nvml.control({"count": 2})
    clock.now += RETRY_SECONDS + 1
    up = reader.read(3)
    assert (up.problem, [device.lost for device in up.devices]) == (None, [None, None])
    assert session.generation > generation


@pytest.mark.parametrize("code", [9, 18])
def test_driver_that_stays_away_is_one_fault(fake_nvml, session, clock, caplog, code):
    reader, faults_told = Reader(session), FaultLog(logging.getLogger("driver"))
    fake_nvml.control({"count": 2})
    faults_told.note(reader.read(0))
    fake_nvml.control({"count": 2, "init": code, "driver_error": code})
    reader.read(1)
    caplog.clear()
    for tick in range(2, 12):
        clock.now += RETRY_SECONDS / 3
        reading = reader.read(tick)
        assert reading.devices == ()
        faults_told.note(reading)
    assert len(caplog.records) == 1


def test_shutdown_by_somebody_else_heals_at_once(session):
    reader = Reader(session)
    reader.read(0)
    pynvml.nvmlShutdown()
    reader.read(1)
    reading = reader.read(2)
    assert (reading.problem, reading.devices[0].lost) == (None, None)


def test_one_value_that_fails_is_not_a_lost_device(fake_nvml, session):
    reader = Reader(session)
    fake_nvml.control({"count": 2, "devices": [{"errors": {"nvmlDeviceGetTemperature": 999}}]})
    for tick in range(3):
        sick, well = reader.read(tick).devices
    assert (sick.temperature_c, sick.missing) == (
        None,
        {"temperature_c": "the driver reports an unknown internal error"},
    )
    assert (sick.memory, sick.lost) == (well.memory, None)
    assert fake_nvml.calls()["nvmlInitWithFlags"] == 1


def run(program, **environment):
    command = [sys.executable, "-c", program]
    clean = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "FAKE_NVML")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**clean, **environment})
    return done.stdout


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("def nvmlInit(): raise SystemError('dead')\n", "`pynvml` is not NVIDIA's: "),
        ("try: pass\nexcept NVMLError, e: pass\n", "`pynvml` cannot be imported (SyntaxError: "),
        ("import tools_of_python_2\n", "`pynvml` cannot be imported (ModuleNotFoundError: No module named 'tools_of"),
        ("raise OSError('no driver\\nhere')\n", "`pynvml` cannot be imported (OSError: no driver here): "),
    ],
)
@pytest.mark.parametrize("owner", ["pynvml", "nvidia-ml-py3", None])
def test_foreign_module_is_named_with_the_line_that_removes_it(tmp_path, owner, code, what):
    (tmp_path / "pynvml.py").write_text(code)
    if owner:
        info = tmp_path / f"{owner.replace('-', '_')}-11.4.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {owner}\nVersion: 11.4.0\n")
        (info / "RECORD").write_text("pynvml.py,,\n")
    program = "import gpumem_magic.nvml as n; print(n.problem()); print(n.readings(), n.read_all().devices)"
    problem, rest = run(program, PYTHONPATH=str(tmp_path)).splitlines()
    assert problem.startswith(what)
    assert "pip install --force-reinstall nvidia-ml-py" in problem
    assert (f"pip uninstall -y {owner}" if owner else str(tmp_path / "pynvml.py")) in problem
    assert rest == "[] ()"


def test_without_a_driver_it_fails_once_and_cheaply():
    program = """
import time, gpumem_magic.nvml as n
assert n.problem().endswith(".")
began = time.perf_counter()
for _ in range(1000): n.readings("GPU-x"), n.readings()
assert time.perf_counter() - began < 5
print(n.readings("GPU-x")[0].missing["memory"] == n.problem(), n.process_used())
"""
    assert run(program) == "True {}\n"


def test_forked_child_has_a_session_of_its_own(fake_nvml):
    program = """
import os, gpumem_magic.nvml as n
from gpumem_magic.nvml import sampling
n.readings()
sampling.default_session()._lock.acquire()
child = os.fork()
if child == 0:
    os._exit(0 if n.readings()[0].memory else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(program, **fake_nvml.environment({})) == "0\n"


@pytest.mark.parametrize("without", ["MEMORY_V2", "PROCESSES_V3"])
def test_driver_whose_library_lacks_the_newer_functions(fake_nvml_build, tmp_path, without):
    old = fake_nvml_build.FakeNvml(tmp_path, without=[without])
    old.control({"devices": [{"processes": [{"pid": "self", "used": 5}]}]})
    program = """
import os, gpumem_magic.nvml as n
device = n.read_all().devices[0]
print(device.memory.used, device.memory.reserved, [p.used for p in device.processes if p.pid == os.getpid()])
"""
    clean = {key: value for key, value in os.environ.items() if key != "FAKE_NVML"}
    if without == "PROCESSES_V3" and not hasattr(pynvml, "nvmlDeviceGetComputeRunningProcesses_v2"):
        pytest.skip("an older nvidia-ml-py, which cannot ask an older driver either")
    expected = "4418568192 None [5]\n" if without == "MEMORY_V2" else "3773628416 644939776 [5]\n"
    assert run(program, **old.environment(clean)) == expected
