"""Fixtures for every kind of test."""

from __future__ import annotations

import importlib.util
import lzma
import os
import pickle
from pathlib import Path

import pytest

# For torch, here and in every kernel and process that a test starts: on a machine with other work, threads that wait
# for each other made the same notebook take 283 s in place of 43 s. Nothing here is about speed.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _load_build():
    path = Path(__file__).parent / "fake_nvml" / "build.py"
    spec = importlib.util.spec_from_file_location("fake_nvml_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fake_nvml_build():
    """The helper that builds the fake NVML and drives it (tests/fake_nvml/build.py)."""
    return _load_build()


@pytest.fixture(scope="session")
def _fake_nvml_library(fake_nvml_build, tmp_path_factory):
    fake = fake_nvml_build.FakeNvml(tmp_path_factory.mktemp("fake_nvml"))
    fake.load()
    return fake


@pytest.fixture
def fake_nvml(_fake_nvml_library, monkeypatch):
    """The fake NVML in this process, under the real pynvml, with a fresh session; elsewhere there is still none."""
    from gpumem_magic.nvml import sampling
    from gpumem_magic.nvml.session import Session

    fake = _fake_nvml_library
    fake.control({})
    fake.reset_calls()
    monkeypatch.setenv("FAKE_NVML", str(fake.file))
    session = Session()
    monkeypatch.setattr(sampling, "_session", session)
    yield fake
    session.close()


@pytest.fixture
def untimed(tmp_path):
    """A function that writes a recording of tests/data as a torch before 2.3 would have: without times."""

    def write(name):
        recording = Path(__file__).parent / "data" / "recordings" / f"{name}.pickle.xz"
        snapshot = pickle.loads(lzma.decompress(recording.read_bytes()))  # noqa: S301 - ours
        for entries in snapshot["device_traces"]:
            for entry in entries:
                del entry["time_us"]
        path = tmp_path / f"{name}.pickle"
        path.write_bytes(pickle.dumps(snapshot, 4))
        return path

    return write
