"""A session over the fake library, with a clock that the test moves."""

from __future__ import annotations

import pytest

from gpumem_magic.nvml.session import Session


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def session(request, clock):
    request.getfixturevalue("fake_nvml")
    session = Session(clock)
    yield session
    session.close()
