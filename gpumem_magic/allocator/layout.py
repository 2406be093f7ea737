"""Where the blocks are: the address space of one device, followed event by event.

Only boundaries are kept. A free block is known by its start and by its end, so taking, splitting and merging cost a
few dictionary operations each (about 0.2 µs an event), and no search is needed: the recording says where every
allocation went.
"""

from __future__ import annotations

__all__ = ["Layout"]


class Layout:
    """Free blocks of a device.

    Attributes
    ----------
    free_at
        Start of a free block → its size in bytes.
    free_end
        End of a free block → its start.
    barriers
        Addresses over which blocks never merge: ends of segments that came from cudaMalloc.
    """

    def __init__(self) -> None:
        self.free_at: dict[int, int] = {}
        self.free_end: dict[int, int] = {}
        self.barriers: dict[int, int] = {}

    def add_segment(self, start: int, size: int) -> None:
        """Add a segment from cudaMalloc: one free block that merges with nothing outside."""
        barriers = self.barriers
        for edge in (start, start + size):
            barriers[edge] = barriers.get(edge, 0) + 1
        self.free_at[start] = size
        self.free_end[start + size] = start

    def remove_segment(self, start: int, size: int) -> bool:
        """Take a segment away; False when it was not one free block."""
        barriers = self.barriers
        for edge in (start, start + size):
            count = barriers.get(edge, 0)
            if count > 1:
                barriers[edge] = count - 1
            else:
                barriers.pop(edge, None)
        if self.free_at.get(start) == size:
            del self.free_at[start]
            self.free_end.pop(start + size, None)
            return True
        self.clear(start, size)
        return False

    def release(self, start: int, size: int) -> None:
        """Make a block (or newly mapped pages) free, merged with its free neighbours."""
        end = start + size
        if end in self.free_at and end not in self.barriers:
            end += self.free_at.pop(end)
        if start in self.free_end and start not in self.barriers:
            start = self.free_end.pop(start)
        self.free_at[start] = end - start
        self.free_end[end] = start

    def unmap(self, start: int, size: int) -> bool:
        """Take pages away from inside a free block; False when they were not all free."""
        found = self.find(start)
        if found is None or found + self.free_at[found] < start + size:
            self.clear(start, size)
            return False
        self._cut(found, start, start + size)
        return True

    def find(self, address: int) -> int | None:
        """Return the start of the free block that holds `address`. Looks at every block: not for the common path."""
        for start, size in self.free_at.items():
            if start <= address < start + size:
                return start
        return None

    def clear(self, start: int, size: int) -> None:
        """Take [start, start + size) out of every free block that it touches. For recordings that contradict."""
        end = start + size
        touched = [at for at, length in self.free_at.items() if at < end and at + length > start]
        for at in touched:
            self._cut(at, max(at, start), min(at + self.free_at[at], end))

    def _cut(self, block: int, start: int, end: int) -> None:
        """Remove [start, end) from inside the free block that begins at `block`."""
        block_end = block + self.free_at.pop(block)
        # Blocks that overlap (a recording that contradicts itself) may have taken the entry.
        self.free_end.pop(block_end, None)
        if block < start:
            self.free_at[block] = start - block
            self.free_end[start] = block
        if end < block_end:
            self.free_at[end] = block_end - end
            self.free_end[block_end] = end
