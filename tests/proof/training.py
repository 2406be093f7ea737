"""Faulty notebooks about training loops: graphs, caches and copies that grow with the steps."""

from __future__ import annotations

from tests.proof.cases import Case

__all__ = ["TRAINING"]

TRAINING = (
    Case(
        "losses appended with their graph",
        "graph behind a scalar",
        """
net = Net().to(DEVICE); losses = []
# %%
%%gpumem
for step in range(8):
    loss = net(batch()).square().mean()
    losses.append(loss)
""",
        "leak",
        r"^losses\[",
        r"loss = |losses\.append",
    ),
    Case(
        "total += loss",
        "graph behind a scalar",
        """
net = Net().to(DEVICE); total = 0
# %%
%%gpumem
for step in range(8):
    loss = net(batch()).square().mean()
    total += loss
""",
        "leak",
        r"^(total|loss)\b.*grad_fn",
        r"loss = ",
    ),
    Case(
        "a running average of losses",
        "graph behind a scalar",
        """
net = Net().to(DEVICE); average = torch.zeros((), device=DEVICE)
# %%
%%gpumem
for step in range(8):
    loss = net(batch()).square().mean()
    average = 0.9 * average + 0.1 * loss
""",
        "leak",
        r"^(average|loss)\b.*grad_fn",
        r"loss = ",
    ),
    Case(
        "losses in a dict by epoch, inside a function",
        "graph behind a scalar",
        """
net = Net().to(DEVICE)
def train(history):
    for step in range(8):
        loss = net(batch()).square().mean()
        history[step] = loss
history = {}
# %%
%%gpumem
train(history)
""",
        "leak",
        r"^history\[",
    ),
    Case(
        "evaluation without no_grad",
        "missing no_grad",
        """
net = Net().to(DEVICE); outputs = []
# %%
%%gpumem
for step in range(8):
    outputs.append(net(batch()).mean(dim=1))
""",
        "leak",
        r"^outputs\[",
        r"outputs\.append",
    ),
    Case(
        "a metric that keeps predictions",
        "missing no_grad",
        """
net = Net().to(DEVICE)
class Metric:
    def __init__(self): self.seen = []
    def update(self, value): self.seen.append(value)
metric = Metric()
# %%
%%gpumem
for step in range(8):
    metric.update(net(batch()).mean())
""",
        "leak",
        r"^metric\.seen\[",
    ),
    Case(
        "create_graph without zero_grad",
        "missing zero_grad",
        """
net = Net().to(DEVICE)
# %%
%%gpumem
import warnings; warnings.simplefilter('ignore')
for step in range(8):
    loss = net(batch()).square().mean()
    loss.backward(create_graph=True)
""",
        "leak",
        r"grad",
        r"backward|loss = ",
    ),
    Case(
        "retain_graph and a list of losses",
        "retain_graph",
        """
net = Net().to(DEVICE); kept = []
# %%
%%gpumem
for step in range(8):
    loss = net(batch()).square().mean()
    loss.backward(retain_graph=True)
    kept.append(loss)
    net.zero_grad()
""",
        "leak",
        r"^kept\[",
    ),
    Case(
        "a hidden state that is never detached",
        "graph through time",
        """
cell = nn.GRUCell(256, 256).to(DEVICE); hidden = torch.zeros(512, 256, device=DEVICE)
# %%
%%gpumem
for step in range(10):
    hidden = cell(batch(), hidden)
""",
        "leak",
        r"^hidden\b.*grad_fn",
        r"hidden = cell",
    ),
    Case(
        "a list of key-value blocks",
        "growing KV cache",
        """
cache = []
# %%
%%gpumem
for token in range(10):
    key = torch.randn(1, 8, 64, 512, device=DEVICE)
    cache.append(key)
""",
        "leak",
        r"^cache\[",
        r"key = ",
    ),
    Case(
        "a cache that is concatenated",
        "growing KV cache",
        """
cache = torch.zeros(1, 8, 0, 512, device=DEVICE)
# %%
%%gpumem
for token in range(10):
    key = torch.randn(1, 8, 64, 512, device=DEVICE)
    cache = torch.cat([cache, key], dim=2)
""",
        "leak",
        r"^cache\b",
        r"cache = torch\.cat",
    ),
    Case(
        "detached copies of a weight",
        "detached copies",
        """
net = Net(512).to(DEVICE); snapshots = []
# %%
%%gpumem
for step in range(8):
    snapshots.append(net.layers[0].weight.detach().clone())
""",
        "leak",
        r"^snapshots\[",
        r"snapshots\.append",
    ),
    Case(
        "a checkpoint of the model each epoch",
        "detached copies",
        """
net = Net(512).to(DEVICE); best = {}
# %%
%%gpumem
for epoch in range(6):
    best[epoch] = {name: value.clone() for name, value in net.state_dict().items()}
""",
        "leak",
        r"^best\[",
    ),
    Case(
        "deepcopy of the model each epoch",
        "detached copies",
        """
import copy
net = Net(512).to(DEVICE); averaged = []
# %%
%%gpumem
for epoch in range(6):
    averaged.append(copy.deepcopy(net))
""",
        "grows",
        r"^averaged\[",
    ),
)
