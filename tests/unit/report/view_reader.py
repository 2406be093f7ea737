"""Reads a view document as its format's description says, and nothing else."""

from __future__ import annotations

import numpy as np

from gpumem_magic.report.container import decode


class Reader:
    """Rebuilds one device from the format's description alone."""

    def __init__(self, data, device=0):
        self.header, arrays = decode(data)
        self.device = self.header["devices"][device]
        self.arrays = {name[len(f"d{device}.") :]: a for name, a in arrays.items() if name.startswith(f"d{device}.")}
        timeline = self.device["timeline"]
        old = timeline["preexisting"]
        self.time = self.device["startUs"] + np.cumsum(self.arrays["t"].astype(np.int64))
        self.start = np.concatenate([np.full(old, -1), np.cumsum(self.arrays["start"].astype(np.int64))])
        span = self.arrays["span"].astype(np.int64)
        self.end = np.where(span > 0, self.start + span, timeline["changes"] + 1)
        self.bytes = self.arrays["sizes"][self.arrays["bytes"]].astype(np.int64)
        self.requested = self.arrays["sizes"][self.arrays["requested"]].astype(np.int64)
        self.group = self.arrays["group"]

    def state(self, time_us):
        """Bytes by group after all changes up to a time; the rest, where there is one, at its bin's end."""
        change = int(np.searchsorted(self.time, time_us, "right")) - 1
        alive = (self.start <= change) & (self.end > change)
        sums = np.bincount(self.group[alive], self.bytes[alive], len(self.device["groups"])).astype(np.int64)
        if self.device["timeline"]["rest"]:
            edges = self.arrays["rest.t"] + self.device["startUs"]
            (index,) = np.flatnonzero(edges[1:] == time_us)
            bins = self.device["timeline"]["rest"]["bins"]
            value = self.arrays["rest.value"].reshape(-1, bins)[:, index]
            np.add.at(sums, self.arrays["rest.group"], value.astype(np.int64))
        return sums


def assert_shape(reader):
    timeline = reader.device["timeline"]
    assert len(reader.arrays["t"]) == timeline["changes"]
    for name in ("span", "bytes", "requested", "group", "stack", "stream"):
        assert len(reader.arrays[name]) == timeline["lifetimes"]
    assert len(reader.arrays["start"]) == timeline["lifetimes"] - timeline["preexisting"]
    assert reader.arrays["stack"].max(initial=0) < len(reader.header["stacks"])
    assert reader.arrays["stream"].max(initial=0) < max(len(timeline["streams"]), 1)
