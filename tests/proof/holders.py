"""Notebooks whose memory is held where one does not look: by other libraries' objects, debuggers, tasks, callbacks."""

from __future__ import annotations

from tests.proof.cases import Case

__all__ = ["HOLDERS"]


def _who(name: str, kind: str, source: str, holder: str, *, device: str = "any") -> Case:
    return Case(name, kind, f"{source.strip()}\n# %%\n%gpumem_who --budget 10\n", "who", holder, device=device)


HOLDERS = (
    _who(
        "the debugger after the next error",
        "debugger",
        """
def train():
    activations = block(16)
    raise ValueError('bad batch')
# %%
train()
# %%
import builtins
commands = ['p activations.shape', 'q']
builtins.input = lambda prompt='': commands.pop(0)
%debug
# %%
1 / 0
""",
        r"^debugger, local `activations`",
    ),
    _who(
        "a context variable",
        "context variable",
        """
import contextvars
current = contextvars.ContextVar('current_batch')
token = current.set(block(8)); del token
""",
        r"^context variable `current_batch`",
    ),
    _who(
        "a NumPy array made of a tensor",
        "another library's object",
        "features = block(8).numpy()",
        r"^features\.base",
        device="cpu",
    ),
    _who(
        "a DLPack capsule that nobody took",
        "another library's object",
        "capsule = torch.utils.dlpack.to_dlpack(block(8))",
        r"^capsule \(DLPack capsule\)",
    ),
    _who(
        "a thread that never ends",
        "thread",
        """
import threading
started, leave = threading.Event(), threading.Event()
def serve():
    weights = block(8)
    started.set()
    leave.wait()
threading.Thread(target=serve, name='server', daemon=True).start()
started.wait()
""",
        r"^running in serve\(\) on thread server, local `weights`",
    ),
    _who(
        "a task that nobody waits for",
        "coroutine",
        """
import asyncio
async def serve():
    weights = block(8)
    await asyncio.sleep(3600)
asyncio.ensure_future(serve()).set_name('server')
await asyncio.sleep(0)
""",
        r"^asyncio task server \(coroutine serve, local `weights`\)",
    ),
    _who(
        "a finalizer that holds what it will log",
        "callback",
        """
import weakref
class Run: pass
run = Run()
weakref.finalize(run, len, block(8)).atexit = False
""",
        r"^weakref\.finalize callback\.args\[0\]",
    ),
    _who(
        "a sparse tensor",
        "old variables",
        "adjacency = torch.sparse_coo_tensor(torch.zeros(1, MIB, dtype=torch.int32, device=DEVICE), block(1), (10,))",
        r"^adjacency\._(values|indices)\(\)",
    ),
    _who(
        "what a pack hook put aside",
        "graph behind a scalar",
        """
x = torch.ones(8, device=DEVICE, requires_grad=True)
with torch.autograd.graph.saved_tensors_hooks(lambda t: (t.shape, block(8)), lambda packed: packed[1][:8]):
    loss = x.exp()
""",
        r"^loss\.grad_fn → ExpBackward0.*packed by a hook",
    ),
    _who(
        "the model of a run that failed before the last one",
        "last error",
        """
gc.disable()
class Failing(Net):
    def forward(self, x):
        raise ValueError('a bad batch')
# %% x2
model = Failing(1024).to(DEVICE)
model(batch(8, 1024))
# %%
model = Failing(64).to(DEVICE)
model(batch(8, 64))
""",
        r"^reference cycle through an earlier error's frame: forward\(\), local `self`\.layers\[\d\]\.weight",
    ),
    _who(
        "a cycle that a library made",
        "reference cycle",
        """
import os, sys
gc.disable()
os.makedirs('site-packages', exist_ok=True)
with open('site-packages/boxlib.py', 'w') as file:
    file.write('class Box:\\n    def __init__(self, held):\\n        self.held, self.me = held, self\\n')
sys.path.insert(0, os.path.abspath('site-packages'))
import boxlib
boxlib.Box(block(8)) and None
""",
        r"^reference cycle Box\.me → Box \(freed by gc\.collect\(\): .*; a class of boxlib's, not your code\)",
    ),
    _who(
        "what a custom function keeps on its context",
        "graph behind a scalar",
        """
class Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mask = block(8)
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient
loss = Masked.apply(torch.ones(8, device=DEVICE, requires_grad=True)).sum()
""",
        r"^loss\.grad_fn → MaskedBackward attribute `mask`",
    ),
    _who(
        "parameters that create_graph tied to their gradients",
        "C++ cycle",
        """
import warnings
warnings.simplefilter('ignore')
for step in range(4):
    net = Net(1024, 1).to(DEVICE)
    net(batch(8, 1024)).square().mean().backward(create_graph=True)
del net
""",
        r"^cycle through the autograd graph: \.grad\.grad_fn",
    ),
    _who(
        "what a checkpoint recomputes from",
        "graph behind a scalar",
        """
from torch.utils.checkpoint import checkpoint
loss = checkpoint(lambda x: x.view(-1, 8).exp().sum(), block(8).requires_grad_() * 1, use_reentrant=False)
""",
        r"^loss\.grad_fn → ",
    ),
    _who(
        "records of a log with their errors",
        "old variables",
        """
import logging
class Keep(logging.Handler):
    records = []
    def emit(self, record):
        self.records.append(record)
log = logging.getLogger('run')
log.propagate = False
log.addHandler(keep := Keep())
def work():
    activations = block(8)
    raise ValueError
try:
    work()
except ValueError:
    log.exception('failed')
""",
        r"records\[0\]\.exc_info\[[12]\].*frame work, local `activations`",
    ),
    _who(
        "the error of a future",
        "old variables",
        """
from concurrent.futures import ThreadPoolExecutor
def work():
    activations = block(8)
    raise ValueError
failed = ThreadPoolExecutor(1).submit(work)
while not failed.done():
    pass
""",
        r"^failed\._exception\.__traceback__ \(frame work, local `activations`\)",
    ),
    _who(
        "a context variable of a task",
        "generator or coroutine",
        """
import asyncio, contextvars
current = contextvars.ContextVar('current')
async def wait():
    current.set(block(8))
    await asyncio.sleep(3600)
task = asyncio.ensure_future(wait())
await asyncio.sleep(0.01)
""",
        r"\(context variable `current`\)",
    ),
    _who(
        "a traced model whose original is gone",
        "old variables",
        """
net = nn.Sequential(nn.Linear(1024, 1024)).to(DEVICE)
traced = torch.jit.trace(net, batch(2, 1024))
del net
""",
        r"^traced\.0\.weight",
    ),
)
