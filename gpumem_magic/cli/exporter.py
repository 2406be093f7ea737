"""``gpumem-magic exporter``: the same series as the server's ``/metrics``, on a machine without Jupyter."""

from __future__ import annotations

import http.client
import logging
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import prometheus_client
from prometheus_client.exposition import push_to_gateway

from gpumem_magic._errors import BadUsageError, ExportError
from gpumem_magic.nvml.poller import FaultLog, Poller
from gpumem_magic.nvml.reader import Reader
from gpumem_magic.nvml.sampling import default_session
from gpumem_magic.server.attribution import Attributor, Directory
from gpumem_magic.server.metrics import GpuCollector

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from gpumem_magic.nvml.model import Reading
    from gpumem_magic.server.attribution import Owner

__all__ = ["push", "serve", "systemd_unit"]

JOB = "gpumem"


class _Source:
    """Reads on a thread and keeps the last reading, with a registry of its own."""

    def __init__(self, interval: float) -> None:
        self.log = logging.getLogger("gpumem_magic.exporter")
        if not self.log.handlers:
            self.log.addHandler(logging.StreamHandler())
        self.log.setLevel(logging.INFO)
        self.fresh = threading.Event()
        self._faults = FaultLog(self.log)
        self._attributor = Attributor()
        self._last: tuple[Reading, Mapping[int, Owner]] | None = None
        self.registry = prometheus_client.CollectorRegistry()
        self.registry.register(GpuCollector(lambda: self._last, lambda: None))
        self.poller = Poller(
            Reader(default_session()),
            self._take,
            wanted=lambda: True,
            interval=lambda: interval,
            log=self.log,
        )
        self.poller.wake()

    def _take(self, reading: Reading) -> None:
        self._faults.note(reading)
        # Also forgets the processes of the past: this runs for months.
        self._attributor.update(Directory())
        self._last = reading, {pid: self._attributor.owner(pid) for pid in reading.pids}
        self.fresh.set()


def serve(address: str, port: int, *, interval: float) -> int:
    """Answer scrapes until interrupted.

    Parameters
    ----------
    address, port
        Where to listen.
    interval
        Seconds between readings; a scrape gets the last one.
    """
    source = _Source(interval)
    try:
        prometheus_client.start_http_server(port, addr=address, registry=source.registry)
    except (OSError, UnicodeError) as error:
        source.poller.stop()
        why = getattr(error, "strerror", None) or error
        raise BadUsageError(f"cannot listen on {address}:{port} ({why}); choose another") from None
    print(f"gpumem-magic: http://{address}:{port}/metrics", flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        source.poller.stop()
        return 0


def push(url: str, *, interval: float) -> int:
    """Push each reading to a Pushgateway until interrupted; one that does not answer is tried again.

    Parameters
    ----------
    url
        The gateway's address, ``http://host:9091``.
    interval
        Seconds between pushes.
    """
    if not _is_address(url):
        raise BadUsageError(f"--push needs an address like http://host:9091, not {url!r}")
    source = _Source(interval)
    fails = False
    try:
        while source.fresh.wait():
            source.fresh.clear()
            try:
                push_to_gateway(url, job=JOB, registry=source.registry, grouping_key={"instance": socket.gethostname()})
            except (OSError, http.client.HTTPException) as error:
                # Once a fault, not once a push.
                if not fails:
                    source.log.warning("gpumem: %s does not take metrics (%s); trying on", url, error)
                fails = True
            except ValueError as error:
                raise ExportError(f"{url} is not a Pushgateway's address: {error}") from None
            else:
                if fails:
                    source.log.info("gpumem: %s takes metrics again", url)
                fails = False
    except KeyboardInterrupt:
        pass
    finally:
        source.poller.stop()
    return 0


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and " " not in url
    except ValueError:  # brackets that do not close, a port that is no number
        return False


def systemd_unit(arguments: argparse.Namespace) -> str:
    """Write a unit that runs the exporter with these options.

    Parameters
    ----------
    arguments
        The parsed command line.
    """
    options = f"--interval {arguments.interval:g}"
    if arguments.push:
        options += f" --push {_quote(arguments.push)}"
    else:
        options += f" --address {_quote(arguments.address)} --port {arguments.port}"
    return f"""\
# Write to /etc/systemd/system/gpumem-exporter.service, then: systemctl enable --now gpumem-exporter
[Unit]
Description=GPU memory for Prometheus (gpumem-magic)
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={_quote(sys.executable)} -m gpumem_magic exporter {options}
Restart=on-failure
RestartSec=10
# Reading needs no rights beyond the device files. If this Python lives under /root, set User=root instead.
DynamicUser=yes
SupplementaryGroups=video
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""


def _quote(word: str) -> str:
    # systemd's own quoting: % introduces a specifier, and a word with a space needs quotes.
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if any(c in escaped for c in ' \t"\\;') else escaped
