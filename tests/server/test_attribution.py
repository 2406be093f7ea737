"""PID → kernel → notebook, with real kernels, subprocesses and terminals."""

import asyncio
import importlib.metadata
import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from gpumem_magic.nvml.pids import NAMESPACE_REASON, is_initial_namespace
from gpumem_magic.server import attribution, processes
from gpumem_magic.server.attribution import Attributor, Directory, KernelEntry, TerminalEntry
from gpumem_magic.server.kernels import KernelInspector

pytestmark = pytest.mark.skipif(
    not is_initial_namespace(),
    reason="in a PID namespace a PID without an open device is foreign, and there is no device here",
)

MIB = 1 << 20
# Above what these machines count to, and within what Linux allows.
NOBODY = 4_000_001


async def test_kernels_children_terminals_and_strangers(lab):
    first, second = await lab.session("work/train.ipynb"), await lab.session("eval.ipynb")
    kernels = [session["kernel"]["id"] for session in (first, second)]
    pids = [lab.pid(session) for session in (first, second)]
    child, grandchild = await lab.spawn(first)
    await lab.fetch("api", "terminals", method="POST", allow_nonstandard_methods=True)
    (terminal,) = lab.server.web_app.settings["terminal_manager"].terminals.values()
    shell = terminal.ptyproc.pid
    helper = lab.stray()
    found, state = await lab.owners(*pids, child, grandchild, shell, os.getpid(), helper.pid, 1)
    notebooks = {kernel["id"]: [n["path"] for n in kernel["notebooks"]] for kernel in state["kernels"]}
    assert notebooks == {kernels[0]: ["work/train.ipynb"], kernels[1]: ["eval.ipynb"]}
    assert {kernel["id"]: kernel["pid"] for kernel in state["kernels"]} == dict(zip(kernels, pids, strict=True))
    whose = {pid: (process["owner"], process["kernelId"]) for pid, process in found.items()}
    assert whose == {
        pids[0]: ("kernel", kernels[0]),
        child: ("kernel", kernels[0]),
        grandchild: ("kernel", kernels[0]),
        pids[1]: ("kernel", kernels[1]),
        shell: ("terminal", None),
        os.getpid(): ("server", None),
        helper.pid: ("server", None),
        1: ("other", None),
    }
    assert found[grandchild]["notebooks"] == ["work/train.ipynb"]
    assert found[shell]["terminal"] == "1"
    assert "time.sleep(600)" in found[child]["command"]
    assert abs(found[child]["startedUs"] / 1e6 - time.time()) < 120
    # Real processes hold real host memory, and children are counted.
    memory = {kernel["id"]: kernel["hostMemory"] for kernel in state["kernels"]}
    resident = psutil.Process(pids[0]).memory_info().rss + psutil.Process(child).memory_info().rss
    assert memory[kernels[0]] > 0.8 * resident
    assert memory[kernels[0]] > memory[kernels[1]] > MIB
    helper.kill()
    helper.wait()


async def test_kernel_tells_its_interpreter_and_the_package_in_it(lab):
    session = await lab.session("a.ipynb")
    state = await lab.until(lambda s: s["kernels"] and ("package" in s["kernels"][0] or _is_uninstalled()))
    (kernel,) = state["kernels"]
    assert kernel["python"] == psutil.Process(lab.pid(session)).cmdline()[0]
    if not _is_uninstalled():
        assert kernel["package"] == state["package"]


def test_what_a_kernel_can_import_goes_by_its_own_environment(tmp_path):
    (tmp_path / "gpumem_magic").mkdir()
    (tmp_path / "gpumem_magic" / "__init__.py").touch()
    info = tmp_path / "gpumem_magic-9.8.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gpumem-magic\nVersion: 9.8.7\n")
    command = [sys.executable, "-c", "print(flush=True); input()"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout is not None
        kernel.stdout.readline()  # it is Python by now, and not yet us
        inspect = KernelInspector()
        deadline = time.monotonic() + 30
        while "package" not in (facts := inspect(kernel.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        kernel.communicate("")
    assert facts == {"python": sys.executable, "package": "9.8.7"}


def _is_uninstalled():
    """Whether this run is from a source tree, whose version no environment knows."""
    try:
        importlib.metadata.version("gpumem-magic")
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


async def test_two_notebooks_on_one_kernel_and_a_rename(lab):
    first = await lab.session("one.ipynb")
    kernel, pid = first["kernel"]["id"], lab.pid(first)
    await lab.session("two.ipynb", kernel)
    found, _ = await lab.owners(pid)
    assert (found[pid]["kernelId"], sorted(found[pid]["notebooks"])) == (kernel, ["one.ipynb", "two.ipynb"])
    body = json.dumps({"path": "renamed.ipynb", "name": "renamed.ipynb"})
    await lab.fetch("api", "sessions", first["id"], method="PATCH", body=body)
    state = await lab.until(lambda s: any(n["path"] == "renamed.ipynb" for n in s["kernels"][0]["notebooks"]))
    assert sorted(n["path"] for n in state["kernels"][0]["notebooks"]) == ["renamed.ipynb", "two.ipynb"]


async def test_restarted_kernel_and_what_it_left_behind(lab):
    session = await lab.session("train.ipynb")
    kernel, before = session["kernel"]["id"], lab.pid(session)
    child, grandchild = await lab.spawn(session)
    found, _ = await lab.owners(before, child, grandchild)
    assert {process["owner"] for process in found.values()} == {"kernel"}
    await lab.fetch("api", "kernels", kernel, "restart", method="POST", allow_nonstandard_methods=True)
    after = lab.pid(session)
    assert after != before
    await lab.owners(after, child, grandchild)
    state = await lab.until(lambda s: s["kernels"][0]["pid"] == after)
    whose = {p["pid"]: (p["owner"], p["kernelId"]) for p in state["devices"][0]["processes"]}
    assert whose == {after: ("kernel", kernel), child: ("orphan", kernel), grandchild: ("orphan", kernel)}


async def test_orphan_of_a_dead_kernel_keeps_its_notebook(lab):
    session = await lab.session("work/dead.ipynb")
    child, grandchild = await lab.spawn(session)
    await lab.owners(child)
    await lab.end(session)
    await lab.until(lambda s: s["kernels"] == [])
    # The grandchild was never seen while the kernel lived; its chain leads to a process that was.
    found, _ = await lab.owners(child, grandchild)
    for pid in (child, grandchild):
        assert (found[pid]["owner"], found[pid]["notebooks"]) == ("orphan", ["work/dead.ipynb"])
        assert found[pid]["startedUs"] is not None
        assert "sleep" in found[pid]["command"]


async def test_orphan_that_nobody_saw_in_time_is_known_by_its_environment(lab):
    session = await lab.session("late.ipynb")
    child, _ = await lab.spawn(session)
    await lab.end(session)
    found, _ = await lab.owners(child)
    assert found[child]["owner"] == "orphan"
    assert found[child]["notebooks"] == ["late.ipynb"]


async def test_process_that_a_kernel_detached_is_still_the_kernels(lab):
    session, other = await lab.session("train.ipynb"), await lab.session("other.ipynb")
    where = lab.root / "detached"
    # As `nohup … &` does: the shell ends, init is the new parent.
    await lab.execute(session, f"import os; os.system('sleep 600 > /dev/null 2>&1 & echo $! > {where}')")
    pid = int(where.read_text())
    lab.strays.append(pid)
    assert psutil.Process(pid).ppid() != lab.pid(session)
    found, _ = await lab.owners(pid, lab.pid(other))
    assert (found[pid]["owner"], found[pid]["kernelId"]) == ("kernel", session["kernel"]["id"])
    await lab.fetch("api", "kernels", session["kernel"]["id"], "restart", method="POST", allow_nonstandard_methods=True)
    await lab.until(lambda s: next(p for p in s["devices"][0]["processes"] if p["pid"] == pid)["owner"] == "orphan")


async def test_process_that_ended_is_named_as_such(lab):
    found, _ = await lab.owners(NOBODY)
    assert (found[NOBODY]["owner"], found[NOBODY]["name"]) == ("other", None)
    assert "ended" in found[NOBODY]["missing"]["name"]


async def test_memory_by_notebook_for_prometheus(lab):
    session = await lab.session("work/train.ipynb")
    await lab.owners(lab.pid(session))
    text = (await lab.fetch("metrics")).body.decode()
    assert 'gpumem_notebook_memory_bytes{index="0",notebook="work/train.ipynb",uuid="GPU-' in text


# -- without a server: what cannot be arranged with one ------------------------------------------------------------


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def kernel(pid, name="k"):
    return Directory((KernelEntry(name, "python3", pid, notebooks=({"path": f"{name}.ipynb"},)),))


def test_reused_number_of_a_kernel_is_not_the_kernel(sleeper, monkeypatch):
    attributor = Attributor(server_pid=NOBODY)
    attributor.update(kernel(sleeper.pid))
    assert attributor.owner(sleeper.pid).owner == "kernel"
    # The kernel dies, its number goes to another process, and the server has not noticed yet.
    true_look_up = processes._look_up

    def later(pid):
        found = true_look_up(pid)
        if found is None or pid != sleeper.pid:
            return found
        life, parent = found
        return life._replace(started=life.started + 1000), parent

    monkeypatch.setattr(processes, "_look_up", later)
    monkeypatch.setattr(attribution, "inherited_by", lambda _life: None)
    attributor.update(kernel(sleeper.pid))
    assert attributor.owner(sleeper.pid).owner == "other"


def test_reused_number_of_a_parent_breaks_the_chain(sleeper, monkeypatch):
    attributor = Attributor(server_pid=NOBODY)
    parent = os.getpid()
    attributor.update(kernel(parent))
    assert attributor.owner(sleeper.pid).owner == "kernel"
    true_look_up = processes._look_up

    def younger_parent(pid):
        found = true_look_up(pid)
        if found is None or pid != parent:
            return found
        life, above = found
        return life._replace(started=life.started + 1e9), above

    monkeypatch.setattr(processes, "_look_up", younger_parent)
    fresh = Attributor(server_pid=NOBODY)
    fresh.update(kernel(parent))
    assert fresh.owner(sleeper.pid).owner == "other"


def test_kernel_of_another_server_is_a_stranger_and_of_a_dead_one_an_orphan():
    def start(parent):
        environment = {**os.environ, "JPY_PARENT_PID": str(parent), "JPY_SESSION_NAME": "theirs.ipynb"}
        program = "import time; print(flush=True); time.sleep(600)"
        process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)
        # Until it runs, its environment is that of the process that it was forked from.
        assert process.stdout is not None
        process.stdout.readline()
        return process

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    living, dead = start(1), start(ended.pid)
    try:
        # Under init, so that the chain leads nowhere else.
        attributor = Attributor(server_pid=NOBODY)
        attributor.update(Directory())
        assert attributor.owner(living.pid).owner == "other"
        orphan = attributor.owner(dead.pid)
        assert (orphan.owner, orphan.notebooks) == ("orphan", ("theirs.ipynb",))
    finally:
        for process in (living, dead):
            process.kill()
            process.communicate()


def test_process_that_was_seen_before_it_became_another_program_is_read_again(monkeypatch):
    monkeypatch.setattr(attribution, "YOUNG_SECONDS", 600.0)  # a busy machine starts programs slowly
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    environment = {**os.environ, "JPY_PARENT_PID": str(ended.pid), "JPY_SESSION_NAME": "theirs.ipynb"}
    program = f"""import os, sys
print(flush=True)
sys.stdin.readline()
os.execve(sys.executable, [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], {environment!r})"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()
        attributor = Attributor(server_pid=NOBODY)
        attributor.update(Directory())
        assert attributor.owner(process.pid).owner == "other"
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        assert attributor.owner(process.pid).owner == "other"  # as it was last read
        attributor.update(Directory())
        orphan = attributor.owner(process.pid)
        assert (orphan.owner, orphan.notebooks) == ("orphan", ("theirs.ipynb",))
        assert "time.sleep(600)" in str(orphan.command)
    finally:
        process.kill()
        process.communicate()


def test_server_that_inherits_its_kernels_orphans_does_not_claim_them(sleeper):
    # As PID 1 of a container the server is the new parent of what a dead kernel left.
    attributor = Attributor(server_pid=os.getpid())
    attributor.update(kernel(sleeper.pid))
    assert attributor.owner(sleeper.pid).owner == "kernel"
    attributor.update(Directory())
    orphan = attributor.owner(sleeper.pid)
    assert (orphan.owner, orphan.kernel_id, orphan.notebooks) == ("orphan", "k", ("k.ipynb",))


def test_terminal_is_told_by_name(sleeper):
    attributor = Attributor(server_pid=NOBODY)
    attributor.update(Directory(terminals=(TerminalEntry("build", sleeper.pid),)))
    owner = attributor.owner(sleeper.pid)
    assert (owner.owner, owner.label) == ("terminal", "build")


def test_inside_a_pid_namespace_only_an_open_device_is_proof(sleeper, monkeypatch, tmp_path):
    monkeypatch.setattr(attribution, "is_initial_namespace", lambda: False)
    device = tmp_path / "nvidia0"
    device.touch()
    attributor = Attributor(device_files=(str(tmp_path / "nvidia"),), server_pid=NOBODY)
    attributor.update(kernel(os.getpid()))
    # It exists under this number, but the driver may mean another.
    assert attributor.owner(sleeper.pid).owner == "foreign"
    assert attributor.owner(sleeper.pid).missing == {"name": NAMESPACE_REASON}
    assert attributor.owner(NOBODY).owner == "foreign"
    assert attributor.owner(sleeper.pid).command is None
    with device.open():
        assert attributor.owner(os.getpid()).owner == "kernel"
        assert attributor.has_device_open(os.getpid()) is True
    assert attributor.has_device_open(sleeper.pid) is False


def test_real_namespace_sees_only_strangers():
    program = f"""
import subprocess, sys
from gpumem_magic.server.attribution import Attributor, Directory, KernelEntry
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
attributor = Attributor()
attributor.update(Directory((KernelEntry("k", "python3", inner.pid),)))
print(attributor.owner({os.getpid()}).owner, attributor.owner(inner.pid).owner)
inner.kill(); inner.wait()
"""
    command = ["unshare", "-pf", "--mount-proc", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "unshare" in done.stderr:
        pytest.skip(f"this machine may not unshare: {done.stderr.strip()}")
    assert done.stdout == "foreign foreign\n", done.stderr


def test_memory_of_trees_counts_children(sleeper):
    child = psutil.Process(sleeper.pid)
    deadline = time.monotonic() + 60
    while child.memory_info().rss < MIB and time.monotonic() < deadline:
        time.sleep(0.05)
    totals = processes.tree_memory({"all": os.getpid(), "child": sleeper.pid, "gone": NOBODY, "remote": None})
    assert totals["gone"] is None
    assert totals["remote"] is None
    assert totals["child"] is not None
    assert totals["all"] is not None
    assert totals["child"] > MIB
    assert totals["all"] >= psutil.Process().memory_info().rss * 0.9 + totals["child"] * 0.9


async def test_state_survives_a_directory_that_fails(fake_nvml, server, monitor, get_state, caplog):
    async def broken():
        await asyncio.sleep(0)
        raise RuntimeError("no sessions today")

    assert server
    assert fake_nvml
    monitor._read_directory = broken
    for _ in range(3):
        monitor._directory_at = 0.0
        state = await get_state()
        assert state["devices"][0]["memoryUsed"] == 3773628416
    assert sum("cannot be listed" in record.message for record in caplog.records) == 1
