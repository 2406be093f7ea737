"""Notebooks that keep memory by accident, each in the manner of a public report, with the answer that must come."""

from __future__ import annotations

from tests.proof.cases import Case
from tests.proof.hidden import HIDDEN
from tests.proof.holders import HOLDERS
from tests.proof.training import TRAINING

__all__ = ["FAULTY"]

FAULTY = (
    *TRAINING,
    *HOLDERS,
    *HIDDEN,
    Case(
        "a forward hook that collects activations",
        "module hook",
        """
net = Net().to(DEVICE); features = []
handle = net.layers[1].register_forward_hook(lambda module, args, output: features.append(output.detach()))
# %%
%%gpumem
for step in range(8):
    with torch.no_grad():
        net(batch())
""",
        "leak",
        r"^features\[",
        r"net\(batch|features\.append|torch\.relu",
    ),
    Case(
        "a hook whose list is only in its closure",
        "module hook",
        """
net = Net().to(DEVICE)
def watch(module):
    seen = []
    def hook(module, args, output):
        seen.append(output.detach())
    module.register_forward_hook(hook)
watch(net.layers[1])
# %%
%%gpumem
for step in range(8):
    with torch.no_grad():
        net(batch())
""",
        "leak",
        r"^net\.layers\[1\].*hook.*seen",
    ),
    Case(
        "functools.lru_cache over tensors",
        "functools cache",
        """
import functools
@functools.lru_cache(maxsize=None)
def features(step):
    return block(1) * step
# %%
%%gpumem
for step in range(8):
    features(step).sum()
""",
        "leak",
        r"^features\b.*cache",
    ),
    Case(
        "a global dict as a cache",
        "global cache",
        """
CACHE = {}
def encode(key):
    if key not in CACHE:
        CACHE[key] = block(1) * 2
    return CACHE[key]
# %%
%%gpumem
for step in range(8):
    encode(step).sum()
""",
        "leak",
        r"^CACHE\[",
    ),
    Case(
        "a class attribute as a cache",
        "global cache",
        """
class Encoder:
    memory = []
    def encode(self):
        value = block(1)
        self.memory.append(value)
        return value
encoder = Encoder()
# %%
%%gpumem
for step in range(8):
    encoder.encode().sum()
""",
        "leak",
        r"memory\[",
    ),
    Case(
        "a mutable default argument",
        "global cache",
        """
def collect(value, into=[]):
    into.append(value)
    return len(into)
# %%
%%gpumem
for step in range(8):
    collect(block(1))
""",
        "leak",
        r"^collect\b.*(default|into)",
    ),
    Case(
        "a list in an imported module",
        "global cache",
        """
import sys, types
store = types.ModuleType('feature_store'); store.items = []
sys.modules['feature_store'] = store
del store
import feature_store
# %%
%%gpumem
for step in range(8):
    feature_store.items.append(block(1))
""",
        "leak",
        r"feature_store\b.*items\[",
        r"feature_store\.items\.append",
    ),
    Case(
        "closures that each hold a block",
        "closure",
        """
callbacks = []
def make(value):
    return lambda: value.sum()
# %%
%%gpumem
for step in range(8):
    callbacks.append(make(block(1)))
""",
        "leak",
        r"^callbacks\[\d+\].*closure variable `value`",
    ),
    Case(
        "partials that each hold a block",
        "closure",
        """
import functools
jobs = []
# %%
%%gpumem
for step in range(8):
    jobs.append(functools.partial(torch.add, block(1)))
""",
        "leak",
        r"^jobs\[\d+\]\.args",
    ),
    Case(
        "a suspended generator",
        "generator",
        """
def stream():
    window = block(8)
    for step in range(10):
        yield window.sum()
# %%
%%gpumem
batches = stream()
first = next(batches).item()
# %%
%gpumem_who
""",
        "who",
        r"^batches \(generator stream, local `window`\)",
    ),
    Case(
        "generators that are never finished",
        "generator",
        """
def stream():
    window = block(1)
    while True:
        yield window.sum().item()
streams = []
# %%
%%gpumem
for step in range(8):
    streams.append(stream())
    next(streams[-1])
""",
        "leak",
        r"^streams\[\d+\] \(generator stream, local `window`\)",
    ),
    Case(
        "prefetched batches in a deque without an end",
        "loader prefetch",
        """
from collections import deque
prefetched = deque()
# %%
%%gpumem
for step in range(8):
    prefetched.append(batch())
    x = prefetched[-1] * 2
""",
        "leak",
        r"^prefetched\[?",
        r"prefetched\.append",
    ),
    Case(
        "a loader over a list that keeps its batches",
        "loader prefetch",
        """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(4096, 256)); loader = DataLoader(data, batch_size=512)
seen = []
# %%
%%gpumem
for (x,) in loader:
    x = x.to(DEVICE) * 1
    seen.append(x)
""",
        "leak",
        r"^seen\[",
    ),
    Case(
        "errors kept in a list",
        "exception kept",
        """
errors = []
def work(step):
    scratch = block(1)
    raise ValueError(step)
# %%
%%gpumem
for step in range(8):
    try:
        work(step)
    except ValueError as error:
        errors.append(error)
""",
        "leak",
        r"^errors\[\d+\].*(traceback|frame|work)",
    ),
    Case(
        "futures that keep their results",
        "futures",
        """
from concurrent.futures import Future
futures = []
# %%
%%gpumem
for step in range(8):
    future = Future(); future.set_result(block(1)); futures.append(future)
""",
        "leak",
        r"^futures\[\d+\]\._result",
    ),
    Case(
        "attributes on the model in forward",
        "module attribute",
        """
class Recorder(Net):
    def forward(self, x):
        y = super().forward(x)
        self.history = getattr(self, 'history', []) + [y.detach()]
        return y
net = Recorder().to(DEVICE)
# %%
%%gpumem
for step in range(8):
    with torch.no_grad():
        net(batch())
""",
        "leak",
        r"^net\.history\[",
    ),
    Case(
        "cycles that wait for the collector",
        "reference cycle",
        """
class Node:
    def __init__(self):
        self.me = self
        self.data = block(1)
gc.disable()
# %%
%%gpumem
for step in range(8):
    node = Node()
node = None
""",
        "leak",
        r"reference cycle",
    ),
    Case(
        "an error's frame in a cycle with itself",
        "reference cycle",
        """
gc.disable()
def work():
    scratch = block(8)
    try:
        raise KeyError('missing')
    except KeyError as error:
        kept = error
work()
# %%
%gpumem_who
""",
        "who",
        r"reference cycle",
    ),
    Case(
        "the cell's value in Out, run again and again",
        "Out and _",
        """
%gpumem_auto off
# %% x4
block(4)
# %%
%gpumem_who
""",
        "who",
        r"^Out\[\d+\]",
    ),
    Case(
        "the last value in _",
        "Out and _",
        """
block(4)
# %%
Out.clear()
for name in list(globals()):
    if name.startswith('_') and name[1:].isdigit():
        del globals()[name]
# %%
%gpumem_who
""",
        "who",
        r"^_+\b",
    ),
    Case(
        "the last error's frames",
        "last error",
        """
def train():
    activations = block(16)
    raise ValueError('bad batch')
# %%
train()
# %%
%gpumem_who
""",
        "who",
        r"last error: ValueError.*train\(\).*`activations`",
    ),
    Case(
        "an interrupted cell",
        "last error",
        """
def train():
    activations = block(16)
    raise KeyboardInterrupt
# %%
train()
# %%
%gpumem_who
""",
        "who",
        r"last error: KeyboardInterrupt.*train\(\).*`activations`",
    ),
    Case(
        "a chained error's first frames",
        "last error",
        """
def inner():
    activations = block(16)
    raise KeyError('x')
def outer():
    try:
        inner()
    except KeyError as error:
        raise RuntimeError('failed') from error
# %%
outer()
# %%
%gpumem_who
""",
        "who",
        r"last error: .*inner\(\).*`activations`",
    ),
    Case(
        "an exception in a variable",
        "exception kept",
        """
def work():
    activations = block(16)
    raise ValueError('bad batch')
try:
    work()
except ValueError as error:
    problem = error
# %%
1 / 0
# %%
%gpumem_who
""",
        "who",
        r"^problem\b.*(work|activations)",
    ),
    Case(
        "the optimizer of an old model",
        "optimizer of an old model",
        """
net = Net(512).to(DEVICE); optimizer = torch.optim.Adam(net.parameters())
net(batch(8, 512)).sum().backward(); optimizer.step()
# %%
net = Net(16).to(DEVICE)
# %%
%gpumem_who
""",
        "who",
        r"^optimizer\.",
    ),
    Case(
        "the old model under another name",
        "old variables",
        """
net_v1 = Net(512).to(DEVICE)
# %%
net = Net(16).to(DEVICE)
# %%
%gpumem_who
""",
        "who",
        r"^net_v1\.layers\[\d\]\.weight",
    ),
    Case(
        "a coroutine that waits",
        "coroutine",
        """
import asyncio
async def serve():
    buffer = block(8)
    await asyncio.sleep(3600)
    return buffer
task = asyncio.ensure_future(serve())
await asyncio.sleep(0)
# %%
%gpumem_who
""",
        "who",
        r"coroutine serve, local `buffer`",
    ),
    Case(
        "a cell that appends each time it runs",
        "reruns",
        """
results = []
# %% x4
%%gpumem
results.append(block(2))
""",
        "leak",
        r"^results\[",
    ),
    Case(
        "a request beyond the machine",
        "out of memory",
        """
%%gpumem
kept = torch.ones(1024, 1024)
huge = torch.empty(1 << 50)
""",
        "oom",
        r"REQUEST",
        device="cpu",
    ),
)
