"""The extension as Jupyter Server sees it: routes, settings, start and stop."""

from __future__ import annotations

import functools
from typing import Any

import prometheus_client
from jupyter_server.extension.application import ExtensionApp
from traitlets import Bool, Float, List, Unicode

import gpumem_magic
from gpumem_magic.nvml.pids import DEVICE_FILES
from gpumem_magic.server.directory import read_directory
from gpumem_magic.server.handlers import FeedHandler, HistoryHandler, StateHandler
from gpumem_magic.server.kernels import KernelInspector
from gpumem_magic.server.metrics import GpuCollector
from gpumem_magic.server.monitor import Monitor

__all__ = ["GpumemMonitor"]


class GpumemMonitor(ExtensionApp):
    """GPU memory by notebook, for the sidebar and for Prometheus."""

    name = "gpumem_magic"
    load_other_extensions = True

    interval = Float(1.0, min=0.2, help="Seconds between readings, where the panel asks for no other.").tag(config=True)
    record_in_background = Bool(
        default_value=False,
        help="Keep reading, for the history, while nobody looks.",
    ).tag(config=True)
    device_files = List(
        Unicode(),
        default_value=list(DEVICE_FILES),
        help="Beginnings of the driver's device nodes. In a container, a process that has one of them open is the "
        "one the driver means by that PID.",
    ).tag(config=True)

    def initialize_settings(self) -> None:
        """Create the monitor; nothing runs before somebody looks."""
        if self.serverapp is None:
            raise RuntimeError("the extension was started without a server")
        self.monitor = Monitor(
            functools.partial(read_directory, self.serverapp),
            interval=self.interval,
            record=self.record_in_background,
            device_files=tuple(self.device_files),
            root_dir=self.serverapp.root_dir,
            package=gpumem_magic.__version__,
            describe_kernel=KernelInspector(),
            log=self.log,
        )
        self._collector = GpuCollector(self._last, self.monitor.note_scrape)
        prometheus_client.REGISTRY.register(self._collector)

    def initialize_handlers(self) -> None:
        """Add the three routes; the base URL is put before them."""
        shared = {"monitor": self.monitor}
        self.handlers.extend(
            [
                (r"/gpumem-magic/state", StateHandler, shared),
                (r"/gpumem-magic/history", HistoryHandler, shared),
                (r"/gpumem-magic/feed", FeedHandler, shared),
            ],
        )

    async def _start_jupyter_server_extension(self, _serverapp: Any) -> None:
        self.monitor.start()

    async def stop_extension(self) -> None:
        """End the poller and leave the registry as it was."""
        prometheus_client.REGISTRY.unregister(self._collector)
        self.monitor.stop()

    def _last(self) -> Any:
        sample = self.monitor.sample
        return None if sample is None else (sample.reading, sample.owners)
