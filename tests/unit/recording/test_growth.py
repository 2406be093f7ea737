"""When the CPU source has its events counted, judged from malloc's figure and the thread's processor time."""

from __future__ import annotations

import threading
import time

import pytest

from gpumem_magic.recording.cpu.growth import Growth
from gpumem_magic.recording.cpu.malloc import MODULUS, allocated_by_malloc, give_back_free_memory

MOST = 300_000


class World:
    """What the cell did so far, as the two measures see it."""

    def __init__(self, allocated: int = 0) -> None:
        self.allocated = allocated
        self.seconds = 0.0

    def growth(self, *, has_malloc: bool = True) -> Growth:
        malloc = (lambda: self.allocated % MODULUS) if has_malloc else None
        growth = Growth(malloc, lambda: self.seconds)
        growth.begin(MOST)
        return growth

    def run(self, growth: Growth, events: int, seconds: float, frees: int = 0) -> bool:
        """Let events happen over a time in looks of 50 ms; return whether a count was asked for."""
        looks = max(1, round(seconds / 0.05))
        due = False
        for _ in range(looks):
            self.allocated += (48 * events - frees) // looks
            self.seconds += seconds / looks
            due = growth.look() or due
        return due


def test_few_events_are_left_alone():
    world = World()
    assert not world.run(world.growth(), 260_000, 1.5)


def test_many_are_counted():
    world = World()
    assert world.run(world.growth(), 320_000, 1.5)


def test_a_figure_of_32_bits_may_pass_over_its_end():
    world = World(MODULUS - 1_000_000)
    assert not world.run(world.growth(), 200_000, 1.0)
    world = World(MODULUS - 1_000_000)
    assert world.run(world.growth(), 320_000, 1.0)


def test_frees_of_the_cell_do_not_hide_events():
    world = World()
    assert world.run(world.growth(), 1_000_000, 1.0, frees=1_000_000 * 500)


def test_a_loop_that_frees_just_what_the_profiler_takes_is_counted_in_the_end():
    world = World()
    growth = world.growth()
    assert not world.run(growth, 1_000_000, 1.0, frees=1_000_000 * 48)
    assert world.run(growth, 1_000_000, 1.1, frees=1_000_000 * 48)


def test_moving_memory_alone_is_not_counted_faster_than_events_can_happen():
    world = World()
    growth = world.growth()
    world.allocated += 100_000_000
    world.seconds += 0.05
    assert not growth.look()
    world.seconds += 0.03
    assert growth.look()
    growth.counted(10)
    growth.begin(MOST)
    world.allocated += 100_000_000
    world.seconds += 0.08
    assert not growth.look()
    world.seconds += 0.06
    assert growth.look()


def test_without_malloc_the_time_alone_decides():
    world = World()
    growth = world.growth(has_malloc=False)
    world.seconds += 0.06
    assert not growth.look()
    world.seconds += 0.01
    assert growth.look()


def test_the_clock_is_the_recording_threads_whoever_reads_it():
    growth = Growth(None)
    growth.begin(1)
    looked = []
    began = time.thread_time()
    while time.thread_time() - began < 0.01:
        pass
    reader = threading.Thread(target=lambda: looked.append(growth.look()))
    reader.start()
    reader.join()
    assert looked == [True]


def test_mallocs_figure_follows_torch():
    torch = pytest.importorskip("torch")
    before = allocated_by_malloc()
    if before is None:
        pytest.skip("this C library does not tell")
    blocks = [torch.UntypedStorage(1) for _ in range(10_000)]
    grown = ((allocated_by_malloc() or 0) - before) % MODULUS
    assert 10_000 * 48 < grown < 10_000 * 2_000
    del blocks
    give_back_free_memory()
    left = ((allocated_by_malloc() or 0) - before) % MODULUS
    assert left < grown / 2 or left > MODULUS / 2
