"""Triton's own cache in the store: hits, a moved store, concurrent processes, damage, limits."""

from __future__ import annotations

import json
import os
import pathlib
import shutil

import pytest
from support import child_processes, text_files
from support.gpu import triton_parts

import opforge
from opforge.cache.layout import Layout
from opforge.cache.maintenance import garbage, gc

pytestmark = [pytest.mark.compile, triton_parts.needs_triton]

COMPILE = """
import json, os, sys
sys.path.insert(0, os.environ["FOLDER"])
import opforge
folder = opforge.triton_cache()
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton import knobs
import alone

seen = []
knobs.compilation.listener = lambda **event: seen.append(event["cache_hit"])
source = ASTSource(alone.copy, {"x": "*fp32", "y": "*fp32", "BLOCK": "constexpr"}, constexprs={"BLOCK": 128})
built = triton.compile(source, target=GPUTarget("cuda", 80, 32))
print(json.dumps({"hit": seen, "folder": folder, "bytes": len(built.asm["cubin"])}))
"""
ALONE = """\
import triton
import triton.language as tl


@triton.jit
def copy(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))
"""


@pytest.fixture
def compile_it(tmp_path, own_store):
    """Compiles one kernel through Triton in another process; returns whether it was a hit, and the folder."""
    text_files.write(tmp_path, "alone.py", ALONE)

    def run(**env: str):
        return json.loads(child_processes.run_python(COMPILE, env={"FOLDER": str(tmp_path), **env}))

    return run


def files(store) -> list[str]:
    return [
        os.path.join(top, name)
        for top, _folders, names in os.walk(os.path.join(store, "v2", "triton"))
        for name in names
    ]


def test_a_kernel_is_a_hit_also_after_the_store_was_moved(compile_it, own_store, tmp_path):
    first = compile_it()
    assert first["hit"] == [False] and first["folder"] == str(own_store / "v2" / "triton")
    assert compile_it() == {**first, "hit": [True]}
    moved = str(tmp_path / "elsewhere")
    shutil.move(own_store, moved)
    assert compile_it(OPFORGE_CACHE_DIR=moved) == {**first, "hit": [True], "folder": f"{moved}/v2/triton"}
    assert all(os.stat(path).st_mode & 0o077 == 0 for path in files(moved))
    lists = [pathlib.Path(path).read_text() for path in files(moved) if os.path.basename(path) == "record"]
    assert lists and not any(str(own_store) in text for text in lists)


def test_a_damaged_kernel_is_compiled_again(compile_it, own_store):
    compile_it()
    for ending, damage in ((".cubin", b"x"), (".ptx", None)):
        (path,) = [path for path in files(own_store) if path.endswith(ending)]
        if damage is None:
            os.unlink(path)
        else:
            with open(path, "r+b") as file:
                file.write(damage)
        assert compile_it()["hit"] == [False], ending
    assert compile_it()["hit"] == [True]


def test_processes_that_need_the_same_kernel_compile_it_once(tmp_path, own_store):
    text_files.write(tmp_path, "alone.py", ALONE)
    processes = [child_processes.start_python(COMPILE, env={"FOLDER": str(tmp_path)}) for _ in range(3)]
    outputs = [process.communicate(timeout=120) for process in processes]
    hits = [json.loads(out)["hit"] for out, _err in outputs]
    assert sorted(hits) == [[False], [True], [True]]


def test_kernels_count_towards_the_limits_and_can_be_cleared(compile_it, own_store):
    compile_it()
    layout = Layout(str(own_store))
    later = os.stat(own_store).st_mtime + 3600
    assert gc.over_limit(layout, later, max_size=1 << 30) == []
    condemned = gc.over_limit(layout, later, max_size=1)
    assert [item.kind for item in condemned] == ["Triton kernel"] and condemned[0].size > 4096
    assert "Triton kernel" in {item.kind for item in gc.over_limit(layout, later + 31 * garbage.DAY)}
    assert gc.remove(layout, [item for item in gc.everything(layout) if item.kind == "Triton kernel"])
    assert compile_it()["hit"] == [False]


def test_without_triton_the_error_says_what_to_install(own_store):
    code = """
import opforge
from opforge.errors import ToolchainNotFoundError
try:
    opforge.triton_cache()
except ToolchainNotFoundError as error:
    print(error)
"""
    output = child_processes.run_python(triton_parts.WITHOUT_TRITON + code)
    assert "No Triton was found" in output and "pip install 'opforge[triton]'" in output
    assert "triton_cache" in dir(opforge)
