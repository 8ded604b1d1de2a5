"""Kernel packages, kernels of models, compiled graphs and programs: made on one machine, loaded on another."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib

import pytest
from support import child_processes, sample_ops, text_files
from support.kernels.projects import scale_project
from support.processes import forked_python
from support.remote import servers

pytestmark = [pytest.mark.compile, pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux")]
pytest.importorskip("cryptography", reason="needs cryptography: pip install opforge[sign]")


class Publisher:
    """A user with a key that may sign packages of acme, and a registry in a folder."""

    def __init__(self, scratch):
        self.scratch, self.registry = scratch, scratch / "registry"
        self.url = f"file://{self.registry}"
        self.variables = {"XDG_DATA_HOME": str(scratch / "data"), "OPFORGE_KERNEL_PATH": str(scratch / "kernels")}

    def run(self, *words, folder=".", code=0, **changes):
        """Runs a command in a folder below the scratch folder; returns the document that it prints."""
        (self.scratch / folder).mkdir(exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.scratch / folder)
            env = {**self.variables, **changes}
            if words == ("pack",):  # it and the processes that try the package have imported torch already
                patch.setenv("PATH", f"{forked_python.commands()}:{os.environ['PATH']}")
                argv = ["opforge", *words, "--json"]
                done = subprocess.run(argv, env=child_processes.environment(**env), capture_output=True, text=True)
            else:
                done = child_processes.run_command(*words, "--json", **env)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)


def with_a_key(scratch):
    """Makes the folders of a publisher who has a key."""
    (scratch / "registry").mkdir()
    publisher = Publisher(scratch)
    publisher.run("key", "trust", publisher.run("key", "new", "ci")["public"], "--for", "package:acme/*")


def with_a_package(scratch):
    """Makes the folders of a publisher who has published a package of Python alone."""
    from support.kernels.projects import python_project

    with_a_key(scratch)
    python_project(scratch / "project")
    publisher = Publisher(scratch)
    publisher.run("pack", "--no-try", folder="project")
    publisher.run("publish", publisher.url, folder="project")


@pytest.fixture
def publisher(made_once, tmp_path):
    made_once(with_a_key, tmp_path)
    return Publisher(tmp_path)


@pytest.fixture
def published(made_once, tmp_path):
    """A publisher who has published `acme/plain`."""
    made_once(with_a_package, tmp_path)
    return Publisher(tmp_path)


def test_a_package_is_packed_signed_published_installed_from_a_server_locked_and_loaded_by_name(publisher):
    scale_project(publisher.scratch / "project", factor=3)
    (variant,) = publisher.run("pack", folder="project")["variants"]
    metadata = publisher.scratch / "project" / "build" / variant["label"] / "metadata.json"
    assert json.loads(metadata.read_text())["name"] == "acme/scale" or metadata.is_file()
    publisher.run("publish", publisher.url, folder="project")
    code = """
import opforge, torch
scale = opforge.get_kernel("acme/scale", version=">=2")
print(scale.scale(torch.ones(2)).tolist())
"""
    with servers.without_proxies(), servers.http_server() as server:
        shutil.copytree(publisher.registry, server.root, dirs_exist_ok=True)
        remote = {"OPFORGE_REMOTES": server.url}
        text_files.write(publisher.scratch / "user", "pyproject.toml", '[tool.opforge.kernels]\n"acme/scale" = ">=2"\n')
        publisher.run("lock", folder="user", **remote)
        assert (publisher.scratch / "user" / "opforge.lock").is_file()
        publisher.run(
            "install", "--frozen", "--into", publisher.variables["OPFORGE_KERNEL_PATH"], folder="user", **remote
        )
    nothing = {**publisher.variables, "PATH": str(publisher.scratch), "OPFORGE_REMOTES": None}
    assert child_processes.run_with_torch(code, env=nothing) == "[3.0, 3.0]\n"
    assert publisher.run("lock", "--check", folder="user", **remote, code=0) is not None


@pytest.mark.parametrize("part", ["blobs", "statements", "withdrawals"])
def test_a_package_that_was_changed_in_the_registry_is_not_installed(published, part):
    files = [path for path in published.registry.rglob("*") if path.is_file() and part in path.as_posix()]
    assert files
    for path in files:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.chmod(0o644)
        path.write_bytes(content)
    into = published.variables["OPFORGE_KERNEL_PATH"]
    published.run("install", "acme/plain", "--into", into, "--remote", published.url, code=1)
    assert not [name for _, _, names in os.walk(into) for name in names if name.endswith(".py")]


def test_a_package_of_a_key_that_nobody_trusts_is_not_installed(published):
    published.run("key", "revoke", "ci")
    into = published.variables["OPFORGE_KERNEL_PATH"]
    refused = published.run("install", "acme/plain", "--into", into, "--remote", published.url, code=1)
    assert "revoked" in json.dumps(refused)


def test_a_model_runs_the_kernels_of_a_package_inside_a_scope_alone(tmp_path, monkeypatch):
    import torch

    import opforge

    text_files.write(
        tmp_path,
        "given_norms.py",
        """
from torch import nn
class RMSNorm(nn.Module):
    def forward(self, x):
        return x * 0 + 7
class layers:
    RMSNorm = RMSNorm
""",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import given_norms

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.RMSNorm(4))
    x = torch.ones(1, 4)
    before = model(x)
    with opforge.kernels_for(model, {"RMSNorm": opforge.models.LayerKernel(given_norms.RMSNorm)}):
        assert model(x).tolist() == [[7.0] * 4]
        assert "RMSNorm" in str(opforge.explain_kernels(model))
    assert torch.equal(model(x), before)


REPEATED = """
import torch
library = torch.library.Library("repeated", "DEF")
library.define("often(Tensor x) -> Tensor")
library.impl("often", lambda x: x.repeat(TIMES), "CPU")
torch.library.register_fake("repeated::often", lambda x: x.new_empty(x.numel() * TIMES), lib=library)
"""
COMPILED = """
import os, torch, opforge, torch._inductor.config
torch._inductor.config.cpp.simdlen = 1  # the headers of vectors compile for a second
with opforge.compiled("before"):  # what is registered from now on is seen
    pass
import repeated
def view(x):
    return torch.ops.repeated.often(x).view(1, -1)
def double(x):  # of this one torch makes a library
    return (view(x) * 2).sin()
with opforge.compiled("pair") as graphs:
    for function in (view, double)[: int(os.environ["FUNCTIONS"])]:
        torch.compiler.reset()
        got = torch.compile(function)(torch.ones(6))
        print(torch.equal(got, function(torch.ones(6))), end=" ")
print(graphs.found, len(graphs.compiled))
"""


def test_what_torch_compile_has_compiled_is_found_by_the_next_process_without_a_compiler(own_store, tmp_path):
    def run(name, functions, **more):
        env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name), "FUNCTIONS": str(functions), **more}
        env["PYTHONPATH"] = f"{tmp_path}:{child_processes.environment()['PYTHONPATH']}"
        return child_processes.run_python(COMPILED, python, env=env).split()

    python = os.path.join(forked_python.commands(compiling=True), "python")
    text_files.write(tmp_path, "repeated.py", f"TIMES = 2{REPEATED}")
    assert run("first", 2) == ["True", "True", "0", "2"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run("second", 2, PATH=str(empty)) == ["True", "True", "1", "0"]
    text_files.write(tmp_path, "repeated.py", f"TIMES = 3{REPEATED}")
    assert run("third", 1) == ["True", "1", "1"], "what Python has registered for an op is compared"


def test_a_program_and_its_ops_are_one_file_that_needs_no_compiler_and_is_checked(relu_folder, tmp_path):
    code = """
import os, torch, opforge
name = os.environ["NAME"]
op = opforge.load(name, [os.environ["SOURCE"]], fakes={"relu": torch.empty_like})
class Model(torch.nn.Module):
    def forward(self, x):
        return op.relu(x) + 1
opforge.save_program(os.environ["FILE"], torch.export.export(Model(), (torch.ones(2),)))
"""
    public = json.loads(child_processes.run_command("key", "new", "ci", "--json").stdout)["public"]
    child_processes.run_command("key", "trust", public, "--for", "program:*")
    file = str(tmp_path / "block.pt2")
    env = {"NAME": relu_folder.name, "SOURCE": str(relu_folder / "relu.cpp"), "FILE": file}
    python = os.path.join(forked_python.commands(compiling=True), "python")  # torch exports with its compiler
    child_processes.run_python(code, python, env=env)
    (tmp_path / "changed").mkdir()
    _add_two_in_place_of_one(changed := shutil.copy(file, tmp_path / "changed" / "block.pt2"))
    load = """
import sys, torch, opforge
for file in sys.stdin.read().split():
    try:
        print(opforge.load_program(file).module()(torch.tensor([-1.0, 2.0])).tolist())
    except opforge.errors.OpforgeError as error:
        print("REFUSED", error)
"""
    empty = tmp_path / "empty"
    empty.mkdir()
    env = child_processes.environment(PATH=str(empty), OPFORGE_CACHE_DIR=str(tmp_path / "none"))
    done = subprocess.run([python, "-c", load], env=env, input=f"{file} {changed}", capture_output=True, text=True)
    loaded, refused = done.stdout.splitlines()
    assert loaded == "[1.0, 3.0]", done.stderr
    assert re.match(r"REFUSED .* the digest of models/\S+ differs from that in its statement", refused), refused


def _add_two_in_place_of_one(path):
    """Changes the graph in a program's file, with the checksums of its form: torch itself would run it."""
    with zipfile.ZipFile(path) as file:
        info = next(info for info in file.infolist() if info.filename.endswith("models/model.json"))
        before = file.read(info)
    after, count = re.subn(rb'(arg":[ ]*\{"as_int":[ ]*)1\b', rb"\g<1>2", before)
    assert count and len(after) == len(before), before
    content = path.read_bytes().replace(before, after)
    path.write_bytes(content.replace(struct.pack("<I", info.CRC), struct.pack("<I", zlib.crc32(after))))


def test_callers_of_torchs_cpp_extension_run_on_opforge_unchanged(tmp_path, own_store):
    name = sample_ops.unique_name("ext")
    text_files.write(
        tmp_path,
        "ext.cpp",
        """
#include <Python.h>
static PyObject* value(PyObject*, PyObject*) { return PyLong_FromLong(41); }
static PyMethodDef methods[] = {{"value", value, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "module", nullptr, -1, methods};
#define NAMED(name) PyInit_##name
#define INIT(name) NAMED(name)
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&definition); }
""",
    )
    code = """
import os
from torch.utils import cpp_extension
import opforge.compat.cpp_extension
opforge.compat.cpp_extension.install()
module = cpp_extension.load(os.environ["NAME"], [os.environ["SOURCE"]])
print(module.value(), module.__file__.startswith(os.environ["OPFORGE_CACHE_DIR"]))
"""
    env = {"NAME": name, "SOURCE": str(tmp_path / "ext.cpp"), "OPFORGE_CACHE_DIR": str(own_store)}
    assert child_processes.run_with_torch(code, env=env) == "41 True\n"
