"""Each snippet holds one storage of a size of its own; one scan of all must name the exact way to each."""

from __future__ import annotations

import gc
import re
import sys
import textwrap
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")

from gpumem_magic.holders import HolderKind, who_holds  # noqa: E402

FIRST = 30_011  # elements of the first one; each has 8 more than the one before


class Shell:
    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {"__name__": "__main__", "torch": torch}
        self.user_ns_hidden: dict[str, object] = {}


VARIABLE, GRAPH, RUNNING = HolderKind.VARIABLE, HolderKind.GRAPH, HolderKind.RUNNING

# name → code, the path, its kind.
CASES: dict[str, tuple[str, str] | tuple[str, str, HolderKind]] = {
    # containers
    "deque": ("from collections import deque\nqueue1 = deque([1, torch.ones(N)])", "queue1[1]"),
    "set": ("group = {torch.ones(N)}", "group (in the set)"),
    "key of a dict": ("by_tensor = {torch.ones(N): 1}", "by_tensor (a key)"),
    "default dict": (
        "import collections\nfor_k = collections.defaultdict(list)\nfor_k['k'].append(torch.ones(N))",
        "for_k['k'][0]",
    ),
    "user dict": ("import collections\nuser = collections.UserDict(a=torch.ones(N))", "user.data['a']"),
    "mapping proxy": ("import types\nproxy = types.MappingProxyType({'a': torch.ones(N)})", "proxy['a']"),
    "simple namespace": ("import types\nplace = types.SimpleNamespace(a=torch.ones(N))", "place.a"),
    "list iterator": ("walker = iter([torch.ones(N)])", "walker (list_iterator)[0]"),
    "data class with slots": (
        "import dataclasses\n@dataclasses.dataclass(slots=True)\nclass D:\n    y: object\nrecord = D(torch.ones(N))",
        "record.y",
    ),
    "weak keys": (
        "import weakref\nclass K: pass\nk = K()\nweak = weakref.WeakKeyDictionary({k: torch.ones(N)})",
        "weak.data[<K>]",
    ),
    "queue": ("import queue\nq1 = queue.Queue()\nq1.put({'x': torch.ones(N)})", "q1.queue[0]['x']"),
    "simple queue": ("import queue\nq2 = queue.SimpleQueue()\nq2.put(torch.ones(N))", "q2 (SimpleQueue)[0]"),
    # functions
    "closure through a decorator": (
        """
        import functools
        def remember(function):
            cache = {}
            @functools.wraps(function)
            def wrapper(k):
                return cache.setdefault(k, function(k))
            return wrapper
        @remember
        def encode(k):
            return torch.ones(N)
        encode(3)
        """,
        "encode (closure variable `cache`)[3]",
    ),
    "attribute of a function": ("def f1(): pass\nf1.cache = torch.ones(N)", "f1.cache"),
    "default by keyword": ("def f2(*, a=torch.ones(N)): pass", "f2 (default argument)['a']"),
    "bound method": (
        "class B:\n    def m(self): pass\nb = B(); b.t = torch.ones(N)\ncallback = b.m\ndel b",
        "callback.__self__.t",
    ),
    "static method": (
        """
        def make_class(k):
            class A:
                s = staticmethod(lambda: k)
            return A
        A1 = make_class(torch.ones(N))
        """,
        "A1.s (closure variable `k`)",
    ),
    "method of a local class": (
        """
        def local():
            big = torch.ones(N)
            class A:
                def f(self): return big
            return A()
        a1 = local()
        """,
        "a1.__class__.f (closure variable `big`)",
    ),
    "context manager": (
        """
        import contextlib
        @contextlib.contextmanager
        def cm():
            acts = torch.ones(N)
            yield
        open1 = cm()
        open1.__enter__()
        """,
        "open1.gen (generator cm, local `acts`)",
    ),
    "exit stack": (
        "import contextlib\nstack = contextlib.ExitStack()\nstack.callback(print, torch.ones(N))",
        "stack._exit_callbacks[0][1] (closure variable `args`)[0]",
    ),
    "generator expression": (
        "def expression():\n    t = torch.ones(N)\n    return (t[i] for i in range(3))\ng1 = expression()",
        "g1 (generator <genexpr>, closure variable `t`)",
    ),
    # caches of functools
    "lru_cache of a method": (
        """
        import functools
        class C:
            @functools.lru_cache(None)
            def big(self, k): return torch.ones(N)
        c1 = C()
        c1.big(1)
        """,
        "C.big (functools cache)[(<C>, 1)]",
    ),
    "key of a cache": (
        "import functools\n@functools.cache\ndef keyed(t): return 1\nkeyed(torch.ones(N))",
        "keyed (functools cache) (a key)[0]",
    ),
    "cached property": (
        """
        import functools
        class P:
            @functools.cached_property
            def big(self): return torch.ones(N)
        p1 = P()
        p1.big
        """,
        "p1.big",
    ),
    "single dispatch": (
        """
        import functools
        @functools.singledispatch
        def dispatch(x): pass
        def register(t):
            @dispatch.register
            def _(x: int): return t
        register(torch.ones(N))
        """,
        "dispatch.registry[int] (closure variable `t`)",
    ),
    # threads and futures
    "thread local": ("import threading\nlocal1 = threading.local()\nlocal1.buffer = torch.ones(N)", "local1.buffer"),
    "thread that was not started": (
        "import threading\nthread1 = threading.Thread(target=print, args=(torch.ones(N),))",
        "thread1._args[0]",
    ),
    "future of a pool": (
        """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(torch.ones, N)
        """,
        "done._result",
    ),
    "future of asyncio": (
        """
        import asyncio
        loop1 = asyncio.new_event_loop()
        future1 = loop1.create_future()
        future1.set_result(torch.ones(N))
        """,
        "future1.result()",
    ),
    "queue of asyncio": ("import asyncio\nq3 = asyncio.Queue()\nq3.put_nowait(torch.ones(N))", "q3._queue[0]"),
    "timer of asyncio": (
        "import asyncio\nloop2 = asyncio.new_event_loop()\nloop2.call_later(99, print, torch.ones(N))",
        "loop2._scheduled[0]._args[0]",
    ),
    # torch
    "attribute of a tensor": ("t1 = torch.ones(2)\nt1.extra = torch.ones(N)", "t1.extra"),
    "hook of a tensor": (
        """
        def hook_of(k): return lambda g: k.sum() * g
        t2 = torch.ones(2, requires_grad=True)
        h2 = t2.register_hook(hook_of(torch.ones(N)))
        """,
        "t2._backward_hooks[<int>] (closure variable `k`)",
    ),
    "backward hook of a module": (
        """
        def hook_for(k): return lambda *a: None if k is None else None
        m1 = torch.nn.Linear(2, 2)
        h1 = m1.register_full_backward_hook(hook_for(torch.ones(N)))
        """,
        "m1._backward_hooks[<int>] (closure variable `k`)",
    ),
    "state dict": ("weights = torch.nn.Linear(N, 1, bias=False).state_dict()", "weights['weight']"),
    "averaged model": (
        "ema = torch.optim.swa_utils.AveragedModel(torch.nn.Linear(N, 1, bias=False))",
        "ema.module.weight",
    ),
    "optimizer of a model that is gone": (
        "sgd = torch.optim.SGD(torch.nn.Linear(N, 1, bias=False).parameters(), lr=0.1)",
        "sgd.param_groups[0]['params'][0]",
    ),
    "scheduler's optimizer": (
        """
        def scheduled():
            p = torch.nn.Parameter(torch.ones(N))
            return torch.optim.lr_scheduler.StepLR(torch.optim.SGD([p], lr=0.1), 1)
        scheduler = scheduled()
        """,
        "scheduler.optimizer.param_groups[0]['params'][0]",
    ),
    "storage without a tensor": ("bare = torch.ones(N).untyped_storage()", "bare"),
    "sparse tensor": (
        "sparse = torch.sparse_coo_tensor(torch.zeros(1, N, dtype=torch.int32), torch.ones(N), (10,))",
        "sparse._values()",
    ),
    "nested tensor": ("nested = torch.nested.nested_tensor([torch.ones(N)])", "nested"),
    "wrapper subclass": (
        """
        class W(torch.Tensor):
            @staticmethod
            def __new__(cls, x):
                return torch.Tensor._make_wrapper_subclass(cls, x.shape)
            def __init__(self, x):
                self.inner = x
            @classmethod
            def __torch_dispatch__(cls, *a): raise RuntimeError
        wrapped = W(torch.ones(N))
        """,
        "wrapped.inner",
    ),
    "attribute of a function's ctx": (
        """
        class Keep(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.scratch = {'acts': [torch.ones(N)]}
                return x * 2
            @staticmethod
            def backward(ctx, g): return g
        kept1 = Keep.apply(torch.ones(2, requires_grad=True))
        """,
        "kept1.grad_fn → KeepBackward attribute `scratch`['acts'][0]",
        GRAPH,
    ),
    "what a pack hook keeps": (
        """
        x1 = torch.ones(2, requires_grad=True)
        def pack(t): return ['packed', torch.ones(N)]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda p: p[1][:2]):
            packed1 = x1.exp()
        """,
        "packed1.grad_fn → ExpBackward0.saved_result, packed by a hook[1]",
        GRAPH,
    ),
    "loader's iterator": (
        "from torch.utils.data import DataLoader\nbatches = iter(DataLoader([torch.ones(N)], batch_size=None))",
        "batches._dataset[0]",
    ),
    # other libraries
    "NumPy array made of a tensor": ("array1 = torch.ones(N).numpy()", "array1.base"),
    "NumPy array of objects": (
        "import numpy\narray2 = numpy.empty(2, object)\narray2[1] = torch.ones(N)",
        "array2.flat[1]",
    ),
    "memory view": ("view1 = memoryview(torch.ones(N).numpy())", "view1 → managedbuffer → ndarray.base"),
    "DLPack capsule": ("capsule = torch.utils.dlpack.to_dlpack(torch.ones(N))", "capsule (DLPack capsule)"),
    "NumPy array through DLPack": ("import numpy\narray3 = numpy.from_dlpack(torch.ones(N))", "array3 (NumPy array)"),
    "shared with other processes": ("shared = torch.ones(N).share_memory_()", "shared"),
    # errors
    "error in a variable": (
        """
        def fail():
            acts = torch.ones(N)
            raise ValueError
        try:
            fail()
        except ValueError as error:
            problem = error
        """,
        "problem.__traceback__ (frame fail, local `acts`)",
    ),
    # elsewhere
    "finalizer": (
        "import weakref\nclass F: pass\nobject1 = F()\nweakref.finalize(object1, len, torch.ones(N)).atexit = False",
        "weakref.finalize callback.args[0]",
        RUNNING,
    ),
    "hook of all modules": (
        """
        import torch.nn.modules.module as all_modules
        all_hooks = [all_modules.register_module_forward_hook(lambda *a, k=torch.ones(N): None)]
        """,
        "module torch.nn.modules.module: _global_forward_hooks[<int>] (default argument)['k']",
        HolderKind.MODULE,
    ),
}
if sys.version_info >= (3, 11):
    CASES["group of errors"] = (
        """
        def fail_in():
            acts = torch.ones(N)
            raise ValueError
        try:
            fail_in()
        except ValueError as error:
            together = ExceptionGroup('all', [error])
        """,
        "together.exceptions[0].__traceback__ (frame fail_in, local `acts`)",
    )


@pytest.fixture(scope="module")
def held():
    """Paths and kinds by the number of elements of the storage, of one scan over all cases."""
    shell = Shell()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls some of these a prototype
            for number, case in enumerate(CASES.values()):
                code = re.sub(r"\bN\b", str(FIRST + 8 * number), textwrap.dedent(case[0]))
                exec(compile(code, "<cell>", "exec"), shell.user_ns)  # noqa: S102 - stands for a cell
        scan = who_holds(shell, budget=120)
        assert scan.cut is None
        yield {s.size // 4: [(h.path, h.kind) for h in s.holders] for s in scan.storages}
    finally:
        for handle in shell.user_ns.get("all_hooks", ()):
            handle.remove()
        for name in ("loop1", "loop2"):
            if name in shell.user_ns:
                shell.user_ns[name].close()
        shell.user_ns.clear()
        gc.collect()


@pytest.mark.parametrize("name", CASES)
def test_the_exact_path(held, name):
    case = CASES[name]
    path, kind = case[1], case[2] if len(case) == 3 else VARIABLE
    found = held[FIRST + 8 * list(CASES).index(name)]
    assert re.fullmatch(re.escape(path).replace("<int>", r"\d+"), found[0][0]), found
    assert found[0][1] is kind
