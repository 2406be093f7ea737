"""Notebooks that only a GPU can show: a limit, fragmentation, and what stood in the way."""

from __future__ import annotations

from tests.proof.cases import Case

__all__ = ["ON_GPU"]

_LIMIT = """
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction({mib} * 2**20 / total)
"""


def _oom(name: str, source: str, cause: str, words: str = "", *, mib: int = 0) -> Case:
    before = _LIMIT.format(mib=mib) + "# %%\n" if mib else ""
    return Case(name, "out of memory", before + source.strip("\n"), "oom", cause, words, device="cuda")


ON_GPU = (
    _oom(
        "a request beyond the card", "%%gpumem\nx = torch.empty(1 << 45, dtype=torch.uint8, device='cuda')", "REQUEST"
    ),
    _oom(
        "fragmented by halves that stay",
        """
kept = []
# %%
%%gpumem
large = [block(256) for _ in range(7)]; del large
halves = [block(64) for _ in range(28)]
kept = halves[::2]; del halves
x = block(200)
""",
        "FRAGMENTATION",
        mib=1900,
    ),
    _oom(
        "Out stands in the way",
        """
block(600)
# %%
%%gpumem
x = block(600)
""",
        "ACCIDENT",
        r"Out\[",
        mib=1000,
    ),
    _oom(
        "live tensors against a small limit",
        """
%%gpumem
kept = []
for step in range(20):
    kept.append(block(100))
""",
        "LIMIT|DEMAND",
        mib=1000,
    ),
    _oom(
        "a cache of keys and values against a small limit",
        """
cache = []
# %%
%%gpumem
for token in range(100):
    key = torch.randn(1, 8, 2048, 512, device='cuda')
    cache.append(key)
""",
        "LIMIT|DEMAND",
        mib=1000,
    ),
    _oom(
        "inside a library's except block",
        """
def library():
    try:
        return block(2000)
    except RuntimeError as error:
        raise ValueError('the library failed') from error
# %%
%%gpumem
y = library()
""",
        "REQUEST|LIMIT",
        mib=1000,
    ),
)
