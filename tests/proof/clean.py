"""Notebooks that do nothing wrong: no verdict may come."""

from __future__ import annotations

from tests.proof.cases import Case
from tests.proof.hidden import BOUNDED

__all__ = ["CLEAN"]


def _clean(name: str, source: str) -> Case:
    return Case(name, "clean", source, "none")


CLEAN = (
    *BOUNDED,
    _clean(
        "training with losses as numbers",
        """
net = Net().to(DEVICE); optimizer = torch.optim.SGD(net.parameters(), 0.01); losses = []
# %%
%%gpumem
for step in range(10):
    optimizer.zero_grad()
    loss = net(batch()).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    ),
    _clean(
        "Adam's state at the first step",
        """
net = Net(512).to(DEVICE); optimizer = torch.optim.Adam(net.parameters())
# %%
%%gpumem
for step in range(10):
    optimizer.zero_grad()
    net(batch(64, 512)).square().mean().backward()
    optimizer.step()
""",
    ),
    _clean(
        "detached scalars in a list",
        """
net = Net().to(DEVICE); losses = []
# %%
%%gpumem
for step in range(20):
    loss = net(batch()).square().mean()
    loss.backward()
    net.zero_grad()
    losses.append(loss.detach())
""",
    ),
    _clean(
        "evaluation under no_grad",
        """
net = Net().to(DEVICE)
# %%
%%gpumem
right = 0
with torch.no_grad():
    for step in range(10):
        right += (net(batch()).argmax(dim=1) == 0).sum().item()
""",
    ),
    _clean(
        "a preallocated cache",
        """
cache = torch.zeros(1, 8, 640, 64, device=DEVICE)
# %%
%%gpumem
for token in range(10):
    cache[:, :, token] = torch.randn(1, 8, 64, device=DEVICE)
    scores = cache[:, :, : token + 1].sum()
""",
    ),
    _clean(
        "a deque with an end",
        """
from collections import deque
recent = deque(maxlen=2)
# %%
%%gpumem
for step in range(12):
    recent.append(batch())
""",
    ),
    _clean(
        "gradient accumulation",
        """
net = Net().to(DEVICE); optimizer = torch.optim.SGD(net.parameters(), 0.01)
# %%
%%gpumem
for step in range(12):
    (net(batch()).square().mean() / 4).backward()
    if step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
    _clean(
        "a hidden state that is detached",
        """
cell = nn.GRUCell(256, 256).to(DEVICE); hidden = torch.zeros(512, 256, device=DEVICE)
# %%
%%gpumem
for step in range(10):
    hidden = cell(batch(), hidden)
    hidden.square().mean().backward()
    cell.zero_grad()
    hidden = hidden.detach()
""",
    ),
    _clean(
        "activation checkpoints",
        """
from torch.utils.checkpoint import checkpoint
net = Net(depth=4).to(DEVICE)
# %%
%%gpumem
for step in range(8):
    x = batch().requires_grad_()
    for layer in net.layers:
        x = checkpoint(layer, x, use_reentrant=False)
    x.square().mean().backward()
    net.zero_grad()
""",
    ),
    _clean(
        "a model built in a loop",
        """
%%gpumem
layers = nn.ModuleList()
for depth in range(8):
    layers.append(nn.Linear(512, 512, device=DEVICE))
""",
    ),
    _clean(
        "a small cache that forgets",
        """
import functools
@functools.lru_cache(maxsize=2)
def features(step):
    return block(1) * step
# %%
%%gpumem
for step in range(10):
    features(step).sum()
""",
    ),
    _clean(
        "a cell that overwrites its variables",
        """
net = Net().to(DEVICE)
# %% x4
%%gpumem
data = [batch() for _ in range(4)]
with torch.no_grad():
    outputs = [net(x) for x in data]
""",
    ),
    _clean(
        "errors that are handled and forgotten",
        """
def work(step):
    scratch = block(1)
    raise ValueError(step)
# %%
%%gpumem
failed = 0
for step in range(10):
    try:
        work(step)
    except ValueError:
        failed += 1
""",
    ),
    _clean(
        "a buffer made in the first iteration",
        """
%%gpumem
buffer = None
for step in range(10):
    if buffer is None:
        buffer = block(8)
    buffer.mul_(0.5).add_(block(8))
""",
    ),
    _clean(
        "sequences that grow with the curriculum",
        """
net = Net().to(DEVICE)
# %%
%%gpumem
for step in range(1, 9):
    x = batch(rows=128 * step)
    loss = net(x).square().mean()
    loss.backward()
    net.zero_grad()
""",
    ),
    _clean(
        "token by token, ids concatenated",
        """
net = Net(64).to(DEVICE); table = torch.randn(1000, 64, device=DEVICE)
ids = torch.zeros(4, 1, dtype=torch.long, device=DEVICE)
# %%
%%gpumem
with torch.no_grad():
    for token in range(60):
        scores = net(table[ids[:, -1]]) @ table.T
        ids = torch.cat([ids, scores.argmax(dim=1, keepdim=True)], dim=1)
""",
    ),
    _clean(
        "a search over learning rates",
        """
results = []
# %%
%%gpumem
for rate in (0.1, 0.03, 0.01, 0.003, 0.001):
    net = Net(512).to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), rate)
    for step in range(3):
        optimizer.zero_grad()
        loss = net(batch(64, 512)).square().mean()
        loss.backward()
        optimizer.step()
    results.append((rate, loss.item()))
""",
    ),
    _clean(
        "two models that train each other",
        """
maker, judge = Net().to(DEVICE), Net().to(DEVICE)
first = torch.optim.Adam(maker.parameters()); second = torch.optim.Adam(judge.parameters())
# %%
%%gpumem
for step in range(8):
    fake = maker(batch())
    second.zero_grad()
    judge(fake.detach()).mean().backward()
    second.step()
    first.zero_grad()
    judge(fake).mean().neg().backward()
    first.step()
""",
    ),
    _clean(
        "a moving average of the weights",
        """
import copy
net = Net().to(DEVICE); average = copy.deepcopy(net); optimizer = torch.optim.SGD(net.parameters(), 0.01)
# %%
%%gpumem
for step in range(8):
    optimizer.zero_grad()
    net(batch()).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        for mine, other in zip(average.parameters(), net.parameters()):
            mine.lerp_(other, 0.1)
""",
    ),
    _clean(
        "epochs of training and evaluation in functions",
        """
net = Net().to(DEVICE); optimizer = torch.optim.AdamW(net.parameters())
def train_epoch():
    total = 0.0
    for step in range(5):
        optimizer.zero_grad()
        loss = net(batch()).square().mean()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / 5
@torch.no_grad()
def evaluate():
    return sum(net(batch()).mean().item() for step in range(5)) / 5
history = {"train": [], "test": []}
# %%
%%gpumem
for epoch in range(4):
    history["train"].append(train_epoch())
    history["test"].append(evaluate())
""",
    ),
    _clean(
        "a window of the latest batches",
        """
window = []
# %%
%%gpumem
for step in range(12):
    window.append(batch())
    if len(window) > 3:
        window.pop(0)
    mean = torch.stack(window).mean().item()
""",
    ),
    _clean(
        "a loader, autocast and clipped gradients",
        """
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(4096, 256)), batch_size=512, shuffle=True)
net = Net().to(DEVICE); optimizer = torch.optim.AdamW(net.parameters())
# %%
%%gpumem
for (x,) in loader:
    optimizer.zero_grad()
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = net(x.to(DEVICE)).float().square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
""",
    ),
    _clean(
        "one forward of a deep model, its graph kept",
        """
net = Net(depth=12).to(DEVICE)
# %%
%%gpumem
y = net(batch())
loss = y.square().mean()
""",
    ),
    _clean(
        "one forward as a statement",
        """
net = Net(depth=12).to(DEVICE); x = batch()
# %%
%gpumem y = net(x)
""",
    ),
    _clean(
        "a model loaded layer by layer",
        """
state = {f"layer.{number}": torch.randn(512, 512) for number in range(8)}
# %%
%%gpumem
on_device = {}
for name, value in state.items():
    on_device[name] = nn.Parameter(value.to(DEVICE) * 1)
""",
    ),
    _clean(
        "layers called one after the other in a loop",
        """
layers = [nn.Linear(256, 256).to(DEVICE) for _ in range(12)]
# %%
%%gpumem
x = batch()
for layer in layers:
    x = torch.relu(layer(x))
""",
    ),
    _clean(
        "layers called one after the other on one line",
        """
layers = [nn.Linear(256, 256).to(DEVICE) for _ in range(12)]; x = batch()
# %%
%%gpumem
for layer in layers: x = torch.relu(layer(x))
""",
    ),
    _clean(
        "per-sample gradients with torch.func",
        """
from torch.func import functional_call, grad, vmap
net = Net(128, 1).to(DEVICE); parameters = {k: v.detach() for k, v in net.named_parameters()}; norms = []
def loss(parameters, x):
    return functional_call(net, parameters, (x,)).square().mean()
# %%
%%gpumem
for step in range(6):
    gradients = vmap(grad(loss), in_dims=(None, 0))(parameters, batch(16, 128))
    norms.append(sum(g.square().sum() for g in gradients.values()).item())
""",
    ),
    _clean(
        "training on one line, the last losses kept",
        """
from collections import deque
net = Net().to(DEVICE); optimizer = torch.optim.Adam(net.parameters()); losses = deque(maxlen=4)
# %%
%%gpumem
for step in range(12):
    loss = net(batch()).mean(); optimizer.zero_grad(); loss.backward(); optimizer.step(); losses.append(loss.detach())
""",
    ),
    _clean(
        "second derivatives with the gradients set free",
        """
import warnings
warnings.simplefilter('ignore')
net = Net().to(DEVICE)
# %%
%%gpumem
for step in range(6):
    loss = net(batch(64)).square().mean()
    gradients = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
    sum(g.square().sum() for g in gradients).backward()
    net.zero_grad(set_to_none=True)
""",
    ),
)
