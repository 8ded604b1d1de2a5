"""Variants that hold sources: get_kernel builds them where no other variant fits."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest
import torch
from support.kernels.projects import scale_project
from support.sample_ops import EXPORT
from support.text_files import write

import opforge
from opforge.builders.triton import TritonOpBuilder
from opforge.errors import KernelIncompatibleError, PackError
from opforge.packages.choose import environment, order
from opforge.packages.form import digests
from opforge.packages.load import checkout
from opforge.packages.load import get_kernel as loading
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading

pytestmark = [pytest.mark.compile, pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux")]
X = torch.tensor([1.0, -2.0])
PLAIN = f"{EXPORT} float scale(float x) {{ return x * @FACTOR@; }}\n"
PLAIN_BUILDER = """\
import ctypes
from opforge import OpBuilder
class B(OpBuilder):
    name, abi, sources = "scale", "c", ["scale.cpp"]
    signatures = {"scale": (ctypes.c_float, [ctypes.c_float])}
"""
WITH_SOURCE = Options(with_source=True, tried=False)


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    loading.reset()
    yield
    loading.reset()


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """acme/scale 2.3 with its header in another folder, and a header that only another processor's build reads."""
    folder = tmp_path_factory.mktemp("source") / "scale"
    scale_project(folder)
    write(folder, "kernel.toml", (folder / "kernel.toml").read_text() + 'abi = "c"\n')
    text = f"{EXPORT} int scale(int x) {{ return x FACTOR; }}\n"
    write(folder, "csrc/scale.cpp", f'#ifdef NEVER\n#include "never.h"\n#endif\n#include "factor.h"\n{text}')
    write(folder, "csrc/factor.h", "#define FACTOR * 4\n")
    write(folder, "csrc/never.h", "#error never\n")
    write(folder, "csrc/notes.txt", "not a source\n")
    pack(reading.read(str(folder)), str(folder), WITH_SOURCE)
    return str(folder)


def other_processor(folder):
    """Makes the compiled variants of a packed project those of a processor that this is not."""
    build = os.path.join(folder, "build")
    for label in os.listdir(build):
        if label.startswith("torch-"):
            path = os.path.join(build, label, "metadata.json")
            with open(path) as file:
                stated = json.load(file)
            stated["x-opforge"]["record"]["floors"] = {"GLIBC": "9.99"}
            write(os.path.dirname(path), "metadata.json", json.dumps(stated))


def use(monkeypatch, folder):
    monkeypatch.setenv("OPFORGE_KERNELS", f"acme/scale={folder}")


def test_it_holds_every_source_and_header_and_nothing_else(packed):
    folder = os.path.join(packed, "build", "source-cpu")
    assert digests.files_of(folder) == [
        "__init__.py",
        "_ops.py",
        "_source/csrc/factor.h",
        "_source/csrc/never.h",
        "_source/csrc/scale.cpp",
    ]


def test_a_variant_that_fits_comes_first(packed):
    choices = [choice.candidate for choice in checkout.variants(packed)[0]]
    decisions = order.decide(choices, environment.here())
    assert [choice.candidate.label[:6] for choice in decisions] == ["torch-", "source"]
    assert not any(choice.problem for choice in decisions)


def test_it_is_built_where_no_other_variant_fits_and_found_again(packed, monkeypatch, tmp_path):
    folder = shutil.copytree(packed, tmp_path / "copy")
    other_processor(folder)
    use(monkeypatch, folder)
    module = opforge.get_kernel("acme/scale", 2)
    assert module.scale(2) == 8
    use(monkeypatch, shutil.copytree(folder, tmp_path / "second"))
    with opforge.no_builds():
        second = opforge.get_kernel("acme/scale", 2)
    assert second is not module and second.scale(2) == 8


def test_one_on_the_stable_abi_registers_its_ops(monkeypatch, tmp_path):
    project = reading.read(scale_project(tmp_path / "project", factor=5))
    # Of this very processor, so that the source variant finds the library of the other one.
    pack(project, str(tmp_path), WITH_SOURCE._replace(targets=(project.builder(None, False).target,)))
    use(monkeypatch, tmp_path / "build" / "source-cpu")
    assert opforge.get_kernel("acme/scale").scale(X).tolist() == [5.0, -10.0]


def test_every_reason_is_listed_if_it_cannot_be_built(packed, monkeypatch, tmp_path):
    folder = shutil.copytree(packed, tmp_path / "copy")
    other_processor(folder)
    use(monkeypatch, folder)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "empty"))
    with opforge.no_builds(), pytest.raises(KernelIncompatibleError) as error:
        opforge.get_kernel("acme/scale", 2)
    assert len(error.value.reasons) == 2
    assert "it cannot be built here: scale: no built entry can be used" in error.value.reasons[0]
    assert "it needs glibc 9.99" in error.value.reasons[1]


def test_a_builder_of_an_installed_package_needs_no_sources(monkeypatch, tmp_path):
    write(tmp_path / "mine", "scale.cpp", PLAIN.replace("@FACTOR@", "6"))
    write(tmp_path / "mine", "scale_by_builder_ops.py", PLAIN_BUILDER)
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    # As if the builder lay in an installed package: not in the project's folder.
    described = reading.read("scale_by_builder_ops:B", "acme/scale", "1")._replace(folder=str(tmp_path))
    pack(described, str(tmp_path / "out"), WITH_SOURCE)
    source = tmp_path / "out" / "build" / "source-cpu"
    assert digests.files_of(source) == ["__init__.py", "_ops.py"]
    use(monkeypatch, source)
    assert opforge.get_kernel("acme/scale").scale(2.0) == 12.0
    loading.reset()
    monkeypatch.syspath_prepend("/nowhere")
    sys.path.remove(str(tmp_path / "mine"))
    sys.modules.pop("scale_by_builder_ops")
    moved = shutil.copytree(source, tmp_path / "moved")
    use(monkeypatch, moved)
    with pytest.raises(KernelIncompatibleError, match="there is no module 'scale_by_builder_ops'"):
        opforge.get_kernel("acme/scale")


def test_a_builder_in_the_project_is_shipped_with_its_modules(monkeypatch, tmp_path, forked_children):
    folder = tmp_path / "project"
    write(folder, "csrc/scale.cpp", PLAIN.replace("@FACTOR@", "7"))
    builder = PLAIN_BUILDER.replace('["scale.cpp"]', "names.SOURCES")
    write(folder, "ops.py", f"from . import names\n{builder}    python_functions = 'calls:bind'\n")
    write(folder, "names.py", 'SOURCES = ["csrc/scale.cpp"]\n')
    write(folder, "calls.py", "def bind(op):\n    return {'twice': lambda x: op.scale(op.scale(x))}\n")
    write(folder, "setup.py", "raise SystemExit\n")
    text = 'name = "acme/scale"\nversion = 1\nlicense = "MIT"\nbuilder = "ops:B"\nwith-source = true\n'
    write(folder, "kernel.toml", text)
    packed = pack(reading.read(str(folder)), str(folder), Options())
    assert [variant.checks["import"] for variant in packed] == ["passed", "passed"]
    assert [variant.checks["schemas"] for variant in packed] == ["not run: its functions are not ops of torch"] * 2
    source = folder / "build" / "source-cpu"
    shipped = [f"_source/{path}" for path in ("csrc/scale.cpp", "names.py", "ops.py")]
    assert digests.files_of(source) == ["__init__.py", "_functions.py", "_ops.py", *shipped]
    use(monkeypatch, shutil.copytree(source, tmp_path / "elsewhere"))
    kernel = opforge.get_kernel("acme/scale")
    assert (kernel.scale(1.0), kernel.twice(1.0)) == (7.0, 49.0)


@pytest.mark.parametrize("kind", ["tvm-ffi", "Triton"])
def test_sources_of_functions_that_cannot_be_built_from_them_are_refused(tmp_path, kind):
    class Builder(TritonOpBuilder if kind == "Triton" else opforge.OpBuilder):
        name = "scale"

    project = reading.read(scale_project(tmp_path))._replace(tvm_ffi="0.1" if kind == "tvm-ffi" else "")
    project = project._replace(builder=lambda target, portable: Builder(target))
    with pytest.raises(
        PackError, match=f"one of {kind}, which no variant of sources can hold\nPack it without --with-"
    ):
        pack(project, str(tmp_path / "out"), WITH_SOURCE)
