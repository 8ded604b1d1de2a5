"""What needs a newer torch than a builder's `torch_target`, and targets that are newer than the installed torch."""

from __future__ import annotations

import shutil
import sys
import types

import pytest
from support import sample_ops, text_files
from support.sample_ops import STABLE_HEADERS

import opforge
from opforge.errors import BuilderError, CompileError, OpIncompatibleError

torch = pytest.importorskip("torch", reason="pip install torch")


@pytest.fixture(autouse=True)
def compiled_quickly(monkeypatch):
    """These sources share no precompiled header: they have different targets."""
    monkeypatch.setenv("CXXFLAGS", "-O0")


def write(folder, text):
    """Writes a source. Returns an unused name and the source's path."""
    name = sample_ops.unique_name("targeted")
    return name, text_files.write(folder, f"{name}.cpp", STABLE_HEADERS + text.replace("@NAME@", name))


TAGGED = """\
static int64_t same(int64_t x) { return x; }
STABLE_TORCH_LIBRARY(@NAME@, m) {
  @MODULE@
  m.def("same(int x) -> int"@TAGS@);
}
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CompositeExplicitAutograd, m) { m.impl("same", TORCH_BOX(&same)); }
"""


def tagged(tags="", module=""):
    return TAGGED.replace("@TAGS@", tags).replace("@MODULE@", module)


def test_tags_are_registered_from_their_target_on(tmp_path):
    also = 'm.def("in_braces(int x) -> int", {at::Tag::core});'
    name, path = write(tmp_path, tagged(", std::vector<at::Tag>{at::Tag::core, at::Tag::pointwise}", also))
    op = opforge.load(name, path, torch_target="2.12")
    assert {torch.Tag.core, torch.Tag.pointwise} <= {*op.same.tags} and op.same(3) == 3
    assert torch.Tag.core in op.in_braces.tags


@pytest.mark.parametrize(
    "compiler", ["g++", pytest.param("clang++", marks=pytest.mark.long("compiles torch's headers by one more"))]
)
@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (tagged(", {at::Tag::core}"), "2.11", 'tags need torch_target="2.12" or newer'),
        (tagged("", 'm.set_python_module("a.b");'), "2.12", 'set_python_module needs torch_target="2.13" or newer'),
    ],
    ids=["tags", "module"],
)
def test_what_a_target_lacks_is_an_error_in_the_line_that_names_the_target(
    tmp_path, monkeypatch, own_store, compiler, source, target, message
):
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler} (apt install {compiler.removesuffix('++')})")
    monkeypatch.setenv("CXX", compiler)
    name, path = write(tmp_path, source)
    with pytest.raises(CompileError) as caught:
        opforge.load(name, path, torch_target=target)
    first, *rest = str(caught.value).splitlines()
    assert f"{path}:" in first and first.endswith(message)
    assert "hint: set torch_target in the builder, or pass it to opforge.load" in rest
    with open(path) as file:
        lines = file.read().splitlines()
    error = next(entry for entry in caught.value.diagnostics if entry["severity"] == "error")
    assert "m.def(" in lines[error["line"] - 1] or "set_python_module" in lines[error["line"] - 1]


def test_set_python_module_names_where_torch_finds_the_fake_kernels(tmp_path, monkeypatch):
    module = sample_ops.unique_name("fakes_of")
    text = tagged("", f'm.set_python_module("{module}");').replace("int", "Tensor").replace("int64_t", "Tensor")
    text = text.replace("Tensor64_t", "torch::stable::Tensor").replace("CompositeExplicitAutograd", "CPU")
    name, path = write(tmp_path, text)
    op = opforge.load(name, path, torch_target="2.13")
    assert op.same(torch.ones(2)).tolist() == [1, 1]
    with pytest.raises(NotImplementedError, match=module):
        op.same(torch.ones(2, device="meta"))
    fakes = types.ModuleType(module)
    monkeypatch.setitem(sys.modules, module, fakes)
    code = f"import torch\ntorch.library.register_fake('{name}::same')(lambda x: torch.empty_like(x))\n"
    exec(compile(code, f"{module}.py", "exec"), fakes.__dict__)
    assert op.same(torch.ones(2, device="meta")).shape == (2,)


def test_a_target_newer_than_torch_is_refused_before_anything_is_built(tmp_path, own_store):
    name, path = write(tmp_path, "this would not compile\n")
    with pytest.raises(OpIncompatibleError) as caught:
        opforge.load(name, path, torch_target="2.99")
    assert caught.value.reasons == (
        f"torch_target='2.99' is newer than the installed torch {torch.__version__}: install it, or lower it",
    )
    verdict = sample_ops.builder_class(tmp_path, name, torch_target="2.99")().is_compatible()
    assert not verdict and "torch_target='2.99' is newer" in str(verdict)
    with pytest.raises(BuilderError, match=r"torch_target='2.9'. opforge registers ops from torch 2.10 on"):
        opforge.load(name, path, torch_target="2.9")
