"""The Jupyter Server extension: one poller, three routes, pid to notebook.

app          routes, settings, start and stop
handlers     REST and the feed
monitor      who looks, one sample for all, who is told what
directory    kernels, notebooks and terminals of this server
attribution  PID → kernel → notebook
processes    processes beyond their number, and their trees
kernels      which version of this package a kernel has
state        samples as protocol messages
history      the last day
metrics      Prometheus

Nothing is imported before the server asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["extension_points", "load"]


def extension_points() -> list[dict[str, Any]]:
    """Give Jupyter Server's extension points."""
    from gpumem_magic.server.app import GpumemMonitor

    return [{"module": "gpumem_magic.server", "app": GpumemMonitor}]


def load(app: Any) -> None:
    """Load the extension into a server."""
    from gpumem_magic.server.app import GpumemMonitor

    loader: Callable[[Any], object] = GpumemMonitor._load_jupyter_server_extension  # noqa: SLF001 -- the server's name
    loader(app)


# Names that Jupyter Server looks for in an extension's module.
_jupyter_server_extension_points = extension_points
_load_jupyter_server_extension = load
