"""Servers for the panel: the real NVML binding over the fake library, with processes of real kernels on its devices."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 2**30


def _fake_nvml_class() -> Any:
    path = Path(__file__).parents[2] / "fake_nvml" / "build.py"
    spec = importlib.util.spec_from_file_location("fake_nvml_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FakeNvml


class PanelServer:
    """A server with a fake NVML, and the kernels that a test starts on it."""

    def __init__(self, jupyter: Any, fake: Any) -> None:
        self.jupyter = jupyter
        self.fake = fake

    @staticmethod
    def device(**fields: Any) -> dict[str, Any]:
        """One device of 100 GiB that is idle, except for what is named."""
        usual: dict[str, Any] = {
            "name": "NVIDIA H200",
            "total": 100 * GIB,
            "used": GIB,
            "reserved": GIB,
            "utilization": 0,
        }
        usual |= {"temperature": 31, "power_mw": 77_000, "limit_mw": 700_000} | fields
        return {"free": usual["total"] - usual["used"] - usual["reserved"], **usual}

    def start_kernel(self, path: str) -> dict[str, Any]:
        """Start a notebook's kernel; return it as the monitor sees it (`id`, `pid`, …)."""
        name = Path(path).name
        body = {"path": path, "name": name, "type": "notebook", "kernel": {"name": "python3"}}
        session = self.jupyter.request("api/sessions", method="POST", body=body)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            kernels = self.jupyter.request("gpumem-magic/state")["kernels"]
            mine = [kernel for kernel in kernels if kernel["id"] == session["kernel"]["id"] and kernel["pid"]]
            if mine:
                return dict(mine[0])
            time.sleep(0.2)
        raise AssertionError(f"the monitor does not know the kernel of {path}")

    def show(self, *devices: dict[str, Any], **fields: Any) -> None:
        """Let the driver have these devices from now on."""
        self.fake.control({"count": len(devices), "driver": "580.95.05", "devices": list(devices), **fields})

    def open(self, page: Any, path: str = "") -> None:
        """Open a notebook (or the start page) with the panel beside it."""
        self.jupyter.open(page, path)
        page.evaluate("async () => { await window.jupyterapp.commands.execute('gpumem-magic:open'); }")
        page.wait_for_selector("#gpumem-magic-panel .gpumem-status[data-kind=live]")


@pytest.fixture(scope="module")
def panel_server(
    start_jupyter: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., PanelServer]:
    """Give a function that starts a server over its own fake NVML; arguments as for ``start_jupyter``."""

    def start(app: str = "lab", **options: Any) -> PanelServer:
        fake = _fake_nvml_class()(tmp_path_factory.mktemp("nvml"))
        env = {name: fake.environment()[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML")}
        return PanelServer(start_jupyter(app, env=env, **options), fake)

    return start
