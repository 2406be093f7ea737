"""Notebooks whose growth is hard to see, and such whose growth is bounded: the two are told apart."""

from __future__ import annotations

from tests.proof.cases import Case

__all__ = ["BOUNDED", "HIDDEN"]


def _leak(name: str, kind: str, source: str, holder: str, line: str = "") -> Case:
    return Case(name, kind, source, "leak", holder, line)


HIDDEN = (
    _leak(
        "validation every third epoch without no_grad",
        "slow leak",
        """
net = Net().to(DEVICE); optimizer = torch.optim.Adam(net.parameters()); scores = []
# %%
%%gpumem
for epoch in range(12):
    for step in range(3):
        optimizer.zero_grad()
        net(batch()).square().mean().backward()
        optimizer.step()
    if epoch % 3 == 0:
        scores.append(net(batch()).mean())
""",
        r"^scores",
        r"scores\.append",
    ),
    _leak(
        "one of four accumulation steps keeps its loss",
        "slow leak",
        """
net = Net().to(DEVICE); optimizer = torch.optim.SGD(net.parameters(), 0.01); logged = []
# %%
%%gpumem
for step in range(24):
    loss = net(batch()).square().mean() / 4
    loss.backward(retain_graph=True)
    if step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
        logged.append(loss)
""",
        r"^logged",
        r"loss = net",
    ),
    _leak(
        "small pieces of big tensors",
        "small under big",
        """
kept = []
# %%
%%gpumem
for step in range(60):
    big = block(16)
    kept.append(big[:8192].clone())
""",
        r"^kept\[",
        r"kept\.append",
    ),
    _leak(
        "a view that keeps all of a big tensor",
        "view of a big tensor",
        """
rows = []
# %%
%%gpumem
for step in range(8):
    scores = block(2).view(64, -1)
    rows.append(scores[0])
""",
        r"^rows\[",
        r"scores = block",
    ),
    _leak(
        "a loop on one line",
        "loop on one line",
        """
kept = []
# %%
%%gpumem
for step in range(8): kept.append(block(1) * step)
""",
        r"^kept\[",
        r"kept\.append",
    ),
    _leak(
        "a while loop that never forgets",
        "while loop",
        """
seen = {}; step = 0
# %%
%%gpumem
while True:
    seen[step] = block(1)
    step += 1
    if step == 9: break
""",
        r"^seen\[",
        r"seen\[step\]",
    ),
    _leak(
        "growth that begins in the middle",
        "late leak",
        """
net = Net().to(DEVICE); late = []
# %%
%%gpumem
for step in range(24):
    y = net(batch())
    if step >= 10:
        late.append(y)
    y.sum().backward()
""",
        r"^late",
        r"y = net",
    ),
    _leak(
        "modules that hold their own method",
        "reference cycle",
        """
class Looped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 512)
        self.call = self.forward
    def forward(self, x):
        return self.layer(x)
gc.disable()
# %%
%%gpumem
for trial in range(6):
    net = Looped().to(DEVICE)
    with torch.no_grad():
        net(batch(64, 512)).sum().item()
""",
        r"cycle.*Looped",
        r"net = Looped",
    ),
    _leak(
        "tensors kept on the context of a function",
        "graph behind a scalar",
        """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = x * 2
        return ctx.kept.sum()
    @staticmethod
    def backward(ctx, grad):
        return ctx.kept * grad
losses = []
# %%
%%gpumem
for step in range(8):
    x = block(1).requires_grad_()
    losses.append(Scaled.apply(x))
""",
        r"^losses",
    ),
    _leak(
        "a hidden state fed back on one line",
        "graph behind a scalar",
        """
cell = nn.GRUCell(128, 128).to(DEVICE); state = torch.zeros(32, 128, device=DEVICE)
# %%
%%gpumem
for step in range(50): state = cell(batch(32, 128), state)
""",
        r"^state",
        r"state = cell",
    ),
    _leak(
        "models that second derivatives keep",
        "C++ cycle",
        """
import warnings
warnings.simplefilter('ignore')
# %%
%%gpumem
for step in range(6):
    net = Net(512, 1).to(DEVICE)
    loss = net(batch(64, 512)).square().mean()
    loss.backward(create_graph=True)
    sum(p.grad.square().sum() for p in net.parameters()).backward()
""",
        r"^cycle through the autograd graph",
        r"net = Net|backward",
    ),
    _leak(
        "outputs that a trainer collects until the epoch ends",
        "old variables",
        """
class Trainer:
    def __init__(self, net):
        self.net, self._results = net, []
    def step(self, x):
        output = {'loss': self.net(x).square(), 'rows': len(x)}
        self._results.append(output)
        return output['loss'].mean().item()
trainer = Trainer(Net().to(DEVICE))
# %%
%%gpumem
for number in range(8):
    trainer.step(batch())
""",
        r"^trainer\._results",
        r"trainer\.step|self\.net|relu|layer",
    ),
    _leak(
        "a retry that keeps the errors",
        "last error",
        """
def attempt(mib):
    activations = block(mib)
    raise RuntimeError('does not fit')
errors = []
# %%
%%gpumem
for number in range(6):
    try: attempt(2)
    except RuntimeError as error:
        errors.append(error)
""",
        r"^errors\[\d\]\.__traceback__",
        r"attempt|block|torch\.ones",
    ),
)


def _clean(name: str, source: str) -> Case:
    return Case(name, "clean", source, "none")


BOUNDED = (
    Case(
        "a replay buffer that fills up",
        "filling up",
        """
import collections
replay = collections.deque(maxlen=1000)
# %%
%%gpumem
for step in range(20):
    replay.append(batch())
""",
        "grows",
        r"^replay\[",
        r"replay\.append",
    ),
    _clean(
        "a replay buffer that is full",
        """
import collections
replay = collections.deque(maxlen=6)
# %%
%%gpumem
for step in range(24):
    replay.append(batch())
""",
    ),
    _clean(
        "the three best outputs so far",
        """
import heapq
net = Net().to(DEVICE); best = []
# %%
%%gpumem
for step in range(30):
    with torch.no_grad():
        y = net(batch())
    heapq.heappush(best, (float(y.mean()), step, y))
    if len(best) > 3:
        heapq.heappop(best)
""",
    ),
    _clean(
        "random lengths that happen to rise",
        """
import random
net = Net().to(DEVICE); optimizer = torch.optim.SGD(net.parameters(), 0.01); history = []
random.seed(1)
# %%
%%gpumem
for step in range(20):
    optimizer.zero_grad()
    loss = net(batch(rows=64 + 32 * step + random.randrange(32))).square().mean()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
""",
    ),
    _clean(
        "the best weights, and a validation now and then",
        """
net = Net().to(DEVICE); optimizer = torch.optim.SGD(net.parameters(), 0.01); best = None; least = None
# %%
%%gpumem
for epoch in range(12):
    for step in range(2):
        optimizer.zero_grad()
        net(batch()).square().mean().backward()
        optimizer.step()
    if epoch % 3 == 2:
        with torch.no_grad():
            score = float(net(batch()).square().mean())
        if least is None or score < least:
            least, best = score, {name: value.clone() for name, value in net.state_dict().items()}
""",
    ),
    _clean(
        "micro-batches that are forgotten after each step",
        """
net = Net().to(DEVICE); optimizer = torch.optim.SGD(net.parameters(), 0.01); pending = []
# %%
%%gpumem
for step in range(22):
    pending.append(net(batch()).square().mean())
    if len(pending) == 4:
        torch.stack(pending).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        pending.clear()
""",
    ),
)
