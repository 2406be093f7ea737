from __future__ import annotations

import pytest

from gpumem_magic.trace.frames import function_name, is_library, is_notebook_cell, trim, user_frame
from gpumem_magic.trace.model import Frame

CELL = "/tmp/ipykernel_4242/3141592653.py"  # noqa: S108
WINDOWS_CELL = r"C:\Users\me\AppData\Local\Temp\ipykernel_4242\3141592653.py"


@pytest.mark.parametrize("name", [CELL, WINDOWS_CELL, "<ipython-input-3-0badcafe>", "/tmp/xpython_17/99.py"])  # noqa: S108
def test_cells(name):
    assert is_notebook_cell(name)
    assert not is_library(name)


@pytest.mark.parametrize(
    "name",
    [
        "/usr/local/lib/python3.12/site-packages/torch/nn/modules/module.py",
        r"C:\Python312\Lib\site-packages\torch\nn\modules\module.py",
        r"C:\Users\me\AppData\Local\Programs\Python\Python312\Lib\json\decoder.py",
        r"C:\Users\me\miniconda3\envs\torch\lib\json\decoder.py",
        r"C:\b\torch\csrc\autograd\engine.cpp",
        r"C:\Windows\System32\nvcuda.dll",
        "/usr/lib/python3/dist-packages/numpy/core.py",
        "/usr/lib/python3.13t/threading.py",
        "/opt/python/lib/python3.11/asyncio/base_events.py",
        "/tmp/torchinductor_root/ji/cjiigh46.py",  # noqa: S108
        "<frozen runpy>",
        "<eval_with_key>.12",
        "??",
        "",
        "CUDACachingAllocator.cpp",
        "/opt/torch/lib/libtorch_cuda.so",
        "/usr/lib/libc.so.6",
        "/srv/ipykernel/kernelbase.py",
    ],
)
def test_libraries(name):
    assert is_library(name)
    assert not is_notebook_cell(name)


@pytest.mark.parametrize(
    "name",
    [
        "/home/user/train/workloads.py",
        r"D:\projects\train.py",
        r"D:\projects\lib\layers.py",
        r"C:\Users\Ада\OneDrive\Рабочий стол\train.py",
        r"\\server\share\train.py",
        "train.py",
        "/home/user/python/model.py",
        "/home/user/lib/layers.py",
        "/home/me/проект/обучение.py",
        "/home/user/ipykernel_tricks.py",
        "<string-art>.py",
    ],
)
def test_the_users_own(name):
    assert not is_library(name)


def frames(*names):
    return tuple(Frame(name, line, "f") for line, name in enumerate(names, 1))


def test_the_innermost_user_frame_names_a_stack():
    stack = frames(
        "??", "/x/site-packages/torch/optim/adam.py", "/home/u/model.py", CELL, "/x/site-packages/IPython/a.py"
    )
    assert user_frame(stack) == stack[2]
    # Nothing of the user's: the innermost Python frame, then anything.
    assert user_frame(stack[:2]) == stack[1]
    assert user_frame(stack[:1]) == stack[0]
    assert user_frame(()) is None


def test_trim_ends_at_the_outermost_cell():
    stack = frames(
        "/x/site-packages/torch/a.py",
        CELL,
        "/home/u/model.py",
        CELL,
        "/x/site-packages/IPython/core.py",
        "<frozen runpy>",
    )
    assert trim(stack) == stack[:4]


def test_trim_without_a_cell_drops_the_machinery_alone():
    script = frames("/home/u/model.py", "/home/u/main.py")
    assert trim(script) == script
    run_by_module = frames("/home/u/main.py", "<frozen runpy>")
    assert trim(run_by_module) == run_by_module[:1]
    only_machinery = frames("/x/site-packages/ipykernel/a.py", "/x/lib/python3.12/asyncio/b.py")
    assert trim(only_machinery) == only_machinery
    assert trim(()) == ()


@pytest.mark.parametrize(
    ("recorded", "meant"),
    [("<cell line: 0>", "<module>"), ("<cell line: 12>", "<module>"), ("<module>", "<module>"), ("cell", "cell")],
)
def test_a_cells_own_code_has_one_name_under_every_ipython(recorded, meant):
    assert function_name(recorded) == meant
