"""Trees of processes as people make them: loaders, launchers, terminals, consoles, crashes, containers."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import psutil
import pytest

from gpumem_magic.nvml.pids import NAMESPACE_REASON, is_initial_namespace

GIB = 1 << 30
WAIT = "import time; time.sleep(600)"
in_initial_namespace = pytest.mark.skipif(
    not is_initial_namespace(),
    reason="in a PID namespace a PID without an open device is foreign, and there is no device here",
)

# Two workers that stay, and a launcher with two more, each of which writes its PID down.
TORCH = """
import multiprocessing, pathlib, subprocess, sys, time, torch
loader = torch.utils.data.DataLoader(range(8), num_workers=2, persistent_workers=True)
list(loader)
here = pathlib.Path(HERE)
here.joinpath("loader").write_text(" ".join(str(child.pid) for child in multiprocessing.active_children()))
here.joinpath("rank.py").write_text(
    "import os, pathlib, time; "
    "pathlib.Path(__file__).with_name('rank' + os.environ['RANK']).write_text(str(os.getpid())); time.sleep(600)"
)
launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(here / "rank.py")]
launcher = subprocess.Popen(launch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while not all(here.joinpath(f"rank{rank}").exists() for rank in (0, 1)):
    assert launcher.poll() is None
    time.sleep(0.1)
here.joinpath("launcher").write_text(str(launcher.pid))
"""

SPAWN = """
import concurrent.futures, multiprocessing, pathlib, subprocess, sys, time
wait = "import time; time.sleep(600)"
through_shell = subprocess.Popen(f"exec 3>&1; {sys.executable} -c '{wait}' & echo $!; wait", shell=True,
                                 stdout=subprocess.PIPE, text=True)
pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver"))
pool.submit(abs, 1).result()
pids = [int(through_shell.stdout.readline()), *pool._processes]
pathlib.Path(HERE, "spawned").write_text(" ".join(map(str, pids)))
"""


def written(path):
    return [int(word) for word in path.read_text().split()]


@in_initial_namespace
async def test_workers_of_a_loader_and_of_a_launcher_are_the_notebooks(lab):
    pytest.importorskip("torch")
    session = await lab.session("work/train.ipynb")
    here = lab.root / "pids"
    here.mkdir()
    await lab.execute(session, f"HERE = {str(here)!r}\n{TORCH}")
    pids = [pid for name in ("loader", "rank0", "rank1", "launcher") for pid in written(here / name)]
    lab.strays += pids
    assert len(set(pids)) == 5
    found, _ = await lab.owners(*pids)
    for pid in pids:
        assert (found[pid]["owner"], found[pid]["notebooks"]) == ("kernel", ["work/train.ipynb"]), found[pid]
    # The launcher is killed: its ranks have another parent now, and are still the notebook's.
    ranks = pids[2:4]
    os.kill(pids[4], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(psutil.Process(rank).ppid() == pids[4] for rank in ranks):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    found, _ = await lab.owners(*ranks)
    assert {(found[rank]["owner"], found[rank]["kernelId"]) for rank in ranks} == {("kernel", session["kernel"]["id"])}


@in_initial_namespace
async def test_shells_and_fork_servers_are_followed(lab):
    session = await lab.session("pool.ipynb")
    await lab.execute(session, f"HERE = {str(lab.root)!r}\n{SPAWN}")
    pids = written(lab.root / "spawned")
    lab.strays += pids
    found, _ = await lab.owners(*pids)
    assert [found[pid]["notebooks"] for pid in pids] == [["pool.ipynb"]] * 2


@in_initial_namespace
async def test_program_in_a_terminal_is_the_terminals(lab):
    await lab.fetch("api", "terminals", method="POST", allow_nonstandard_methods=True)
    (terminal,) = lab.server.web_app.settings["terminal_manager"].terminals.values()
    where = lab.root / "program"
    terminal.ptyproc.write(f"{sys.executable} -c '{WAIT}' & echo $! > {where}\n")
    deadline = time.monotonic() + 20
    while not (where.exists() and where.read_text().strip()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    (pid,) = written(where)
    lab.strays.append(pid)
    found, _ = await lab.owners(pid)
    assert (found[pid]["owner"], found[pid]["terminal"], found[pid]["kernelId"]) == ("terminal", "1", None)


@in_initial_namespace
async def test_consoles_and_kernels_without_a_document(lab):
    body = {"path": "console-1", "name": "Console 1", "type": "console", "kernel": {"name": "python3"}}
    console = json.loads((await lab.fetch("api", "sessions", method="POST", body=json.dumps(body))).body)
    bare = json.loads((await lab.fetch("api", "kernels", method="POST", body=json.dumps({"name": "python3"}))).body)
    pids = [lab.pid(console), lab.pid({"kernel": bare})]
    found, state = await lab.owners(*pids)
    whose = [(found[pid]["owner"], found[pid]["kernelId"], found[pid]["notebooks"]) for pid in pids]
    assert whose == [
        ("kernel", console["kernel"]["id"], ["console-1"]),
        ("kernel", bare["id"], []),
    ]
    types = {kernel["id"]: [n["type"] for n in kernel["notebooks"]] for kernel in state["kernels"]}
    assert types == {console["kernel"]["id"]: ["console"], bare["id"]: []}


@in_initial_namespace
async def test_kernel_that_crashed_is_another_process_and_its_workers_are_orphans(lab):
    session = await lab.session("crash.ipynb")
    before = lab.pid(session)
    child, _ = await lab.spawn(session)
    await lab.owners(before, child)
    os.kill(before, signal.SIGKILL)
    # Jupyter restarts it by itself, under the same id.
    state = await lab.until(lambda s: s["kernels"] and s["kernels"][0]["pid"] not in (before, None), seconds=40)
    after = state["kernels"][0]["pid"]
    found, _ = await lab.owners(after, child)
    assert (found[after]["owner"], found[child]["owner"]) == ("kernel", "orphan")
    assert found[child]["notebooks"] == ["crash.ipynb"]
    assert found[child]["startedUs"] is not None


class Contained:
    """A whole server in a PID namespace of its own, as in a container without ``--pid=host``."""

    def __init__(self, fake, folder, devices):
        self.port = _free_port()
        config: dict[str, object] = {"ServerApp": {"jpserver_extensions": {"gpumem_magic": True}}}
        config["GpumemMonitor"] = {"interval": 0.2, "device_files": [str(devices / "nvidia")]}
        (folder / "jupyter_server_config.json").write_text(json.dumps(config))
        command = ["unshare", "-pf", "--kill-child", "--mount-proc", sys.executable, "-m", "jupyter_server"]
        options = {"port": self.port, "port_retries": 0, "open_browser": False, "allow_root": True, "root_dir": folder}
        command += [f"--ServerApp.{name}={value}" for name, value in options.items()]
        environment = {**fake.environment(), "JUPYTER_CONFIG_DIR": str(folder), "JUPYTER_RUNTIME_DIR": str(folder)}
        self.log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [*command, "--IdentityProvider.token=t"],
            env=environment,
            stdout=self.log,
            stderr=self.log,
        )

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}/{path}"
        request = urllib.request.Request(url, data, {"Authorization": "token t"})
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 -- our own
            return json.loads(answer.read())

    def until(self, condition, seconds=40):
        deadline = time.monotonic() + seconds
        while True:
            try:
                state = self.ask("gpumem-magic/state")
                if condition(state):
                    return state
            except (urllib.error.URLError, ConnectionError):
                state = None
            assert time.monotonic() < deadline, state
            time.sleep(0.2)

    def close(self):
        # `unshare` does not pass on a gentler signal; its end takes the namespace with it.
        self.process.kill()
        self.process.wait(20)
        self.log.close()


def _free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_server_in_a_namespace_says_so_and_who_has_the_device_open(fake_nvml, tmp_path):
    probe = subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"this machine may not unshare: {probe.stderr.strip()}")
    devices = tmp_path / "dev"
    devices.mkdir()
    (devices / "nvidia0").touch()
    # The driver gives the host's PIDs: this process's, and one that by accident is a process in there, too.
    holders = [{"pid": os.getpid(), "used": GIB}, {"pid": 1, "used": GIB}]
    fake_nvml.control({"devices": [{"used": 3 * GIB, "processes": holders}]})
    server = Contained(fake_nvml, tmp_path, devices)
    try:
        server.until(lambda state: state["devices"])
        body = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
        kernel = server.ask("api/sessions", body)["kernel"]["id"]
        state = server.until(lambda s: s["kernels"] and s["kernels"][0].get("opensDevice") is False)
        (device,) = state["devices"]
        assert [(p["owner"], p["missing"]["name"]) for p in device["processes"]] == [("foreign", NAMESPACE_REASON)] * 2
        # Inside, the numbers are small ones; what the kernel holds in host memory is known all the same.
        assert state["kernels"][0]["pid"] < 1000
        assert state["kernels"][0]["hostMemory"] > 1 << 20
        # It opens the device: seen from outside by the process that starts in there.
        inner = next(
            child
            for child in psutil.Process(server.process.pid).children(recursive=True)
            if "ipykernel_launcher" in " ".join(child.cmdline())
        )
        assert kernel in " ".join(inner.cmdline())
        assert inner.pid != state["kernels"][0]["pid"]
        hold_open(server, kernel, devices / "nvidia0")
        state = server.until(lambda s: s["kernels"][0].get("opensDevice") is True)
        assert state["devices"][0]["processes"][0]["owner"] == "foreign"
    finally:
        server.close()


def hold_open(server, kernel, path):
    """Have a kernel open a file and keep it, through the server's own socket."""
    from tornado.httpclient import HTTPRequest
    from tornado.ioloop import IOLoop
    from tornado.websocket import websocket_connect

    header = {"msg_id": "1", "username": "", "session": "s", "msg_type": "execute_request", "version": "5.3"}
    content = {"code": f"kept = open({str(path)!r})", "silent": False, "store_history": False}
    message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content}

    async def go():
        url = f"ws://127.0.0.1:{server.port}/api/kernels/{kernel}/channels"
        socket = await websocket_connect(HTTPRequest(url, headers={"Authorization": "token t"}))
        await socket.write_message(json.dumps(message))
        while True:
            reply = json.loads(await socket.read_message() or "null")
            if reply["msg_type"] == "execute_reply":
                socket.close()
                return reply["content"]["status"]

    loop = IOLoop(make_current=False)
    try:
        assert loop.run_sync(go, timeout=40) == "ok"
    finally:
        loop.close()
