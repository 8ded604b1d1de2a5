"""Triton's own cache in the store: hits, a moved store, other machines, concurrent processes, damage, limits."""

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
built = triton.compile(source, target=GPUTarget("cuda", 90, 32))
print(json.dumps({"hit": seen, "folder": folder, "bytes": len(built.asm["cubin"])}))
"""
HERE = """
import importlib.util, json, os, pathlib, sys
import opforge
opforge.triton_cache()
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

H100 = GPUTarget("cuda", 90, 32)


class Driver:
    "Names the target that a GPU would have."

    def get_current_target(self):
        return H100


triton.runtime.driver.set_active(Driver())
hits = []
triton.knobs.compilation.listener = lambda **event: hits.append(event["cache_hit"])
folder = pathlib.Path(os.environ["FOLDER"])


def kernel_in(name):
    "Returns the kernel as a program in another folder has it."
    path = folder / name / "alone.py"
    path.parent.mkdir()
    path.write_text(os.environ["ALONE"])
    spec = importlib.util.spec_from_file_location(f"alone_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.copy


def compiled(kernel):
    "Returns the machine code, and whether it was there."
    source = ASTSource(kernel, {"x": "*fp32", "y": "*fp32", "BLOCK": "constexpr"}, constexprs={"BLOCK": 128})
    return triton.compile(source, target=H100).asm["cubin"], hits[-1]


def tuned(kernel):
    "Returns the best config of Triton's own autotuner, and whether its timings were there."
    configs = [triton.Config({"BLOCK": block}) for block in (128, 256)]
    tuner = triton.autotune(configs, key=["n"], cache_results=True)(kernel)

    def time_them():
        tuner.configs_timings = {config: [1.0 / config.kwargs["BLOCK"]] * 3 for config in configs}
        tuner.cache["key",] = configs[1]

    is_found = tuner.check_disk_cache(("key",), configs, time_them)
    return tuner.cache["key",].kwargs["BLOCK"], is_found
"""
TIMINGS = """
from opforge.cache.current import current_store

kernel = kernel_in("a")
assert [tuned(kernel) for _ in range(2)] == [(256, False), (256, True)]
(path,) = pathlib.Path(current_store().layout.path("triton")).glob("*/copy.autotune.json")
path.write_text(path.read_text().replace('"BLOCK": 128', '"BLOCK": 512'))
assert [tuned(kernel) for _ in range(2)] == [(256, False), (256, True)]
path.with_name("record").unlink()  # as a process leaves it that is killed
assert [tuned(kernel) for _ in range(2)] == [(256, False), (256, True)]
"""
MACHINES = """
import pytest
from click.testing import CliRunner
from support.remote.nodes import Nodes
from opforge.cache.records import triton as records
from opforge.cli.publish import command as publish

nodes = Nodes(folder / "nodes", pytest.MonkeyPatch())
nodes.trust(nodes.public, scopes=("triton:cop*",))
nodes.enter("a")
kernel = kernel_in("a")
(code, _hit), _best = compiled(kernel), tuned(kernel)
done = CliRunner().invoke(publish, [nodes.url, "triton:copy", "--key", "ci"])
assert done.exit_code == 0, done.output
layout, kernel = nodes.enter("b").layout, kernel_in("b")
assert (compiled(kernel), tuned(kernel)) == ((code, True), (256, True))
assert [each.is_fetched for each in records.stored(layout.root)] == [True, True]
os.environ["OPFORGE_REMOTES"] = ""
assert (compiled(kernel), tuned(kernel)) == ((code, True), (256, True))
nodes.trust(nodes.public, scopes=("op:*",))
assert tuned(kernel) == (256, False)
assert sorted(each.is_fetched for each in records.stored(layout.root)) == [False, True]
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


@pytest.mark.long("compiles in a process of its own")
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


def test_a_damaged_kernel_is_compiled_again(compile_it, own_store, tmp_path):
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


def run_here(code, folder):
    """Runs a program with one kernel in another process, and returns what it warned of."""
    process = child_processes.start_python(HERE + code, env={"FOLDER": str(folder), "ALONE": ALONE})
    _out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return err.splitlines()


def test_timings_of_the_autotuner_are_kept_with_a_digest(tmp_path, own_store):
    (line,) = run_here(TIMINGS, tmp_path)
    assert line.startswith(f"copy: what is in {own_store}/v2/triton/")
    assert line.endswith(" is not used: it is damaged, or was changed: copy.autotune.json")


def test_another_machine_takes_what_one_has_compiled_and_timed(tmp_path):
    """It has the kernel's file in another folder. What was signed is not used once its key may not sign it."""
    (line,) = run_here(MACHINES, tmp_path)
    assert line.startswith("copy: what is in ") and line.endswith("may sign triton:copy: ci may sign op:*")


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
