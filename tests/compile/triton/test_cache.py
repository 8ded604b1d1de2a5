"""What Triton compiles itself, kept by `opforge.warm`: hits, other machines, concurrent processes, damage, limits.

Triton is the real one; the CUDA driver is one that does nothing.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from support import child_processes, text_files
from support.gpu import triton_parts
from support.jits import contracts

from opforge.cache.current_store import current_store
from opforge.cache.layout import Layout
from opforge.cache.maintenance import gc, unneeded
from opforge.jits.kind import JIT

pytestmark = [pytest.mark.compile, triton_parts.needs_triton]

KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def copy(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))
"""
HERE = """
import os, pathlib, sys
import opforge
from opforge.jits.triton import KERNELS

scope = opforge.warm("solver", jits=["triton"])
scope.__enter__()
import triton


def tuned():
    "Returns the best config of Triton's own autotuner, and whether its timings were there."
    sys.path.insert(0, os.environ["FOLDER"])
    import kernel

    configs = [triton.Config({"BLOCK": block}) for block in (128, 256)]
    tuner = triton.autotune(configs, key=[], cache_results=True)(kernel.copy)

    def time_them():
        tuner.configs_timings = {config: [1.0 / config.kwargs["BLOCK"]] * 3 for config in configs}
        tuner.cache["key",] = configs[1]

    is_found = tuner.check_disk_cache(("key",), configs, time_them)
    return tuner.cache["key",].kwargs["BLOCK"], is_found


class Driver:
    def get_current_target(self):
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)


triton.runtime.driver.set_active(Driver())
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """The folder of a driver that does nothing."""
    return contracts.driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def folder(tmp_path):
    text_files.write(tmp_path, "kernel.py", KERNEL)
    return tmp_path


def launch(driver, folder, *jits, label="solver", **env):
    """Launches the kernel in another process; returns what it compiled, found and started."""
    process = start(driver, folder, *jits, label=label, **env)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


def start(driver, folder, *jits, label="solver", **env):
    return subprocess.Popen(
        [sys.executable, os.path.join(os.path.dirname(contracts.__file__), "triton_program.py"), label, *jits],
        env=child_processes.environment(**{**contracts.driver_variables(driver), "KERNEL_FOLDER": str(folder), **env}),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_second_machine_without_a_compiler_launches_what_the_first_one_compiled(driver, folder, own_store, tmp_path):
    """It has another home, project folder, driver folder and store, an empty PATH, and `file` is not on it."""
    first = launch(driver, folder)
    assert (first["hit"], "gcc" in first["started"]) == ([False], True)
    for name in ("home", "empty"):
        (tmp_path / name).mkdir()
    shutil.move(own_store, tmp_path / "moved")
    shutil.copytree(driver, tmp_path / "other-driver")
    text_files.write(tmp_path / "project", "kernel.py", KERNEL)
    os.unlink(folder / "kernel.py")
    env = {
        "HOME": str(tmp_path / "home"),
        "OPFORGE_CACHE_DIR": str(tmp_path / "moved"),
        "PATH": str(tmp_path / "empty"),
    }
    second = launch(tmp_path / "other-driver", tmp_path / "project", CC=None, **env)
    assert (second["hit"], second["compiled"]) == ([True], {"triton": [], "triton-host": []})
    assert second["found"] == {"triton": 1, "triton-host": 1}
    assert {*second["started"]} <= {"ptxas", "ptxas-blackwell"}, "Triton asks its own assembler for its version"
    assert not (tmp_path / "home" / ".triton").exists()


@pytest.mark.long("three processes with torch and Triton")
def test_kernels_and_the_host_library_are_topics_of_their_own(driver, folder, own_store):
    launch(driver, folder)
    assert sorted((one.name, one.facts["holds"]) for one in JIT.stored(current_store().layout)) == [
        ("triton-host/solver", "host"),
        ("triton/solver", "gpu"),
    ]
    without = launch(driver, folder, "triton")
    assert without["hit"] == [True] and "gcc" in without["started"]
    assert launch(driver, folder, label="other")["hit"] == [False]


@pytest.mark.long("processes with torch and Triton")
def test_an_edit_and_a_flipped_byte_are_a_miss(driver, folder, own_store):
    launch(driver, folder)
    (one,) = [one for one in JIT.stored(current_store().layout) if one.name == "triton/solver"]
    objects = pathlib.Path(one.path, "tree", "objects")
    (cubin,) = [path for path in objects.iterdir() if path.read_bytes()[:4] == b"\x7fELF"]
    content = bytearray(cubin.read_bytes())
    content[-1] ^= 1
    cubin.write_bytes(bytes(content))
    assert launch(driver, folder)["hit"] == [False]
    assert launch(driver, folder)["hit"] == [True]
    text_files.write(folder, "kernel.py", KERNEL.replace("tl.load(x + at)", "tl.load(x + at) * 2"))
    assert launch(driver, folder)["hit"] == [False]


@pytest.mark.long("processes with torch and Triton")
def test_processes_that_need_the_same_kernel_compile_it_once(driver, folder, own_store):
    processes = [start(driver, folder) for _ in range(3)]
    outputs = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    assert sorted(output["hit"] for output in outputs) == [[False], [True], [True]]
    assert sum("gcc" in output["started"] for output in outputs) == 1


def test_kernels_count_towards_the_limits_and_can_be_cleared(own_store):
    from support.jits import pages

    pages.keep({"key": {"code": b"x" * 5000}})
    layout = Layout(str(own_store))
    later = os.stat(own_store).st_mtime + 3600
    assert gc.over_limit(layout, later, max_size=1 << 30) == []
    condemned = gc.over_limit(layout, later, max_size=1)
    assert [item.kind for item in condemned] == ["page of a JIT"] and condemned[0].size > 4096
    assert "page of a JIT" in {item.kind for item in gc.over_limit(layout, later + 31 * unneeded.DAY)}
    assert gc.remove(layout, [item for item in gc.everything(layout) if item.kind == "page of a JIT"])
    assert pages.entries().get("key") is None


def test_timings_of_the_autotuner_are_kept_with_a_digest(folder, own_store):
    code = HERE + "print(tuned(), tuned()); scope.__exit__(None, None, None); print(scope.compiled)"
    env = {"FOLDER": str(folder)}
    first = child_processes.run_python(code, env=env).splitlines()
    assert first == ["(256, False) (256, True)", "{'triton': ('the timings of copy',)}"]
    assert child_processes.run_python(code, env=env).splitlines()[0] == "(256, True) (256, True)"


def test_another_release_of_triton_is_left_alone_and_named(own_store, monkeypatch, caplog):
    import opforge
    from opforge.jits import triton as adapters

    monkeypatch.setattr(adapters.KERNELS, "version", lambda: "4.0.0")
    import triton

    with opforge.warm("solver", jits=["triton"]) as scope:
        assert triton.knobs.cache.manager_class is None and scope.compiled == {}
    assert "jit:triton/solver: triton 4.0.0: its compiled code is neither found nor kept" in caplog.text
    assert caplog.messages[0].endswith("opforge's adapter was tried with 3.7, 3.8, 3.9")


def test_after_the_scope_triton_is_as_it_was(own_store):
    import triton
    from triton.runtime import build

    import opforge

    before = triton.knobs.cache.manager_class, build.platform_key
    with opforge.warm("outer", jits=["triton", "triton-host"]), opforge.warm("inner", jits=["triton"]):
        assert triton.knobs.cache.manager_class is not before[0] and build.platform_key is not before[1]
    assert (triton.knobs.cache.manager_class, build.platform_key) == before


def test_a_scope_that_names_what_is_not_installed_says_so(own_store, monkeypatch, caplog):
    import opforge
    from opforge.jits import triton as adapters

    monkeypatch.setattr(adapters.KERNELS, "version", lambda: "")
    with opforge.warm("solver", jits=["triton"]):
        pass
    assert caplog.messages == ["jit:triton is neither found nor kept: triton: triton is not installed"]
