"""torch.compile's caches on disk, and an op that changes between two processes."""

from __future__ import annotations

import threading

import pytest
from support import child_processes, sample_ops, text_files

import opforge

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.compile
long = pytest.mark.long("torch compiles for half a minute")

HEAD = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
using Type = torch::headeronly::ScalarType;
"""
TWICE = """
Tensor twice(const Tensor& input) {
  const Tensor x = torch::stable::contiguous(input);
  Tensor y = torch::stable::new_empty(x, {x.numel() * @TIMES@}, Type::@TYPE@);
  const float* from = static_cast<const float*>(x.const_data_ptr());
  @C@* to = static_cast<@C@*>(y.mutable_data_ptr());
  for (int64_t i = 0; i < y.numel(); ++i) to[i] = 2 * from[i % x.numel()];
  return y;
}
STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("twice(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CPU, m) { m.impl("twice", TORCH_BOX(&twice)); }
@MORE@
"""
META = """
Tensor twice_meta(const Tensor& x) { return torch::stable::new_empty(x, {x.numel() * @TIMES@}, Type::@TYPE@); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, Meta, m) { m.impl("twice", TORCH_BOX(&twice_meta)); }
"""
CHANGES = """
void change(Tensor x) {
  float* values = static_cast<float*>(x.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) values[i] += @ADDED@;
}
STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("change(@ARGUMENT@ x) -> ()"); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CPU, m) { m.impl("change", TORCH_BOX(&change)); }
"""
COMPILED = """
import json, os, sys, warnings
import torch
import opforge
sys.path.insert(0, os.environ["FOLDER"])
name = os.environ["NAME"]
@BEFORE@
op = opforge.load(name, os.environ["FOLDER"] + "/op.cpp", fakes=@FAKES@)
@AFTER@
@FUNCTION@
from torch._dynamo.utils import counters
compiled = torch.compile(function, fullgraph=True)
want = function(torch.full((3,), 2.0))
got = compiled(torch.full((3,), 2.0))
print(json.dumps({
    "same": bool(want.shape == got.shape and want.dtype == got.dtype and torch.allclose(want, got)),
    "text": str(got),
    "hits": counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"],
    "tag": torch.compiler.config.cache_key_tag,
}))
"""
SUM = "def function(x): return op.twice(x) + 1"
VIEW = "def function(x): return op.twice(x).view(1, -1)"
"""A graph for which inductor compiles no C++: for what a result would not show."""
VERSIONS = {"TYPE": "Float", "C": "float", "TIMES": "1"}


class Op:
    """An op in a folder, whose source and fake are written anew, and a process that compiles a function with it."""

    def __init__(self, folder, caches):
        self.folder, self.caches, self.name = folder, caches, sample_ops.unique_name("tagged")

    def write(self, source, fake="", **words):
        for word, text in {**words, "NAME": self.name}.items():
            source = source.replace(f"@{word}@", text)
        text_files.write(self.folder, "op.cpp", HEAD + source)
        text_files.write(self.folder, "shapes.py", fake)

    def run(self, function=SUM, fakes="{}", before="", after=""):
        import json

        code = COMPILED
        for word, text in {"FUNCTION": function, "FAKES": fakes, "BEFORE": before, "AFTER": after}.items():
            code = code.replace(f"@{word}@", text)
        env = {
            "FOLDER": str(self.folder),
            "NAME": self.name,
            "TORCHINDUCTOR_CACHE_DIR": str(self.caches),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return json.loads(child_processes.run_python(code, timeout=240, env=env))


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """One folder for all tests, whose ops have names of their own."""
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture
def op(tmp_path, caches):
    return Op(tmp_path, caches)


def fake(dtype="float32", times=1):
    return f"""
import torch
DTYPE = torch.{dtype}
def size(x):
    return x.numel() * {times}
def twice(x):
    return x.new_empty((size(x),), dtype=DTYPE)
"""


IMPORTED = "from shapes import twice"
FAKES = "{'twice': twice}"


@long
def test_a_new_dtype_is_compiled_anew_in_the_next_process(op):
    op.write(TWICE.replace("@MORE@", ""), fake(), **VERSIONS)
    first = op.run(fakes=FAKES, before=IMPORTED)
    op.write(TWICE.replace("@MORE@", ""), fake("float64"), **{**VERSIONS, "TYPE": "Double", "C": "double"})
    changed = op.run(fakes=FAKES, before=IMPORTED)
    assert first["same"] and changed["same"], changed["text"]
    assert (first["hits"], changed["hits"]) == (0, 0)


@long
def test_a_new_shape_of_a_fake_inside_the_library(op):
    op.write(TWICE.replace("@MORE@", META), **VERSIONS)
    assert op.run(VIEW)["same"]
    op.write(TWICE.replace("@MORE@", META), **{**VERSIONS, "TIMES": "2"})
    changed = op.run(VIEW)
    assert changed["same"] and changed["hits"] == 0, changed["text"]


@long
def test_an_argument_that_is_mutated_from_now_on(op):
    function = """
def function(x):
    y = x * 2
    op.change(y)
    z = x * 2
    return y + z
"""
    fakes = "{'change': lambda x: None}"
    op.write(CHANGES, ARGUMENT="Tensor", ADDED="0")
    assert op.run(function, fakes)["same"]
    op.write(CHANGES, ARGUMENT="Tensor(a!)", ADDED="1")
    changed = op.run(function, fakes)
    assert changed["same"] and changed["hits"] == 0, changed["text"]


@long
def test_a_kernel_that_changes_without_its_schema_and_fake_is_taken_from_the_caches(op):
    op.write(TWICE.replace("@MORE@", ""), fake(), **VERSIONS)
    op.run(VIEW, fakes=FAKES, before=IMPORTED)
    op.write(TWICE.replace("@MORE@", "").replace("2 * from", "3 * from"), fake(), **VERSIONS)
    changed = op.run(VIEW, fakes=FAKES, before=IMPORTED)
    assert changed["same"] and changed["hits"] > 0


@long
def test_an_op_that_is_loaded_after_the_first_compile_and_a_tag_of_the_users_that_is_set_after_the_load(op):
    earlier = "torch.compile(lambda x: x.view(1, -1))(torch.ones(2))\n" + IMPORTED
    later = "torch.compiler.config.cache_key_tag = 'mine'"
    op.write(TWICE.replace("@MORE@", ""), fake(), **VERSIONS)
    first = op.run(VIEW, fakes=FAKES, before=earlier, after=later)
    op.write(TWICE.replace("@MORE@", ""), fake("float64"), **{**VERSIONS, "TYPE": "Double", "C": "double"})
    changed = op.run(VIEW, fakes=FAKES, before=earlier, after=later)
    assert first["same"] and changed["same"], changed["text"]
    assert first["tag"].startswith("mine|opforge:") and first["tag"] != changed["tag"]


@long
def test_an_unrelated_op_with_a_fake_compiles_each_graph_once_more_and_one_without_none(op):
    """What docs/inside-torch.md states as the cost."""
    plain = f"def function(x): return x.view(-1).view({', '.join('1' * 9)}, -1)"  # which compiles no C++
    op.write(TWICE.replace("@MORE@", ""), fake(), **VERSIONS)
    runs = [op.run(plain, **fakes) for fakes in ({}, {}, *[{"fakes": FAKES, "before": IMPORTED}] * 2)]
    assert [bool(run["hits"]) for run in runs] == [False, True, False, True]
    assert [bool(run["tag"]) for run in runs] == [False, False, True, True]


@pytest.fixture
def two_ops(tmp_path):
    """Loads one of two ops by its number, and returns the tag then."""
    names = [sample_ops.unique_name("tagged") for _ in range(2)]

    def load(number):
        source = HEAD + TWICE.replace("@MORE@", "").replace("@NAME@", names[number])
        for word, text in VERSIONS.items():
            source = source.replace(f"@{word}@", text)
        path = text_files.write(tmp_path, f"{names[number]}.cpp", source)
        opforge.load(names[number], path, fakes={"twice": torch.empty_like})
        return torch.compiler.config.cache_key_tag

    return load


@pytest.mark.usefixtures("precompiled")
def test_a_load_in_another_thread_is_in_the_tag_and_one_of_the_users_stays_in_front_and_is_patched(two_ops):
    config = torch.compiler.config
    before = config.cache_key_tag
    try:
        thread = threading.Thread(target=two_ops, args=(0,))
        thread.start()
        thread.join()
        first = config.cache_key_tag
        assert first != before
        config.cache_key_tag = "mine"
        assert two_ops(1).startswith("mine|opforge:") and first not in two_ops(1)
        own = config.cache_key_tag.removeprefix("mine")
        with config.patch(cache_key_tag="theirs"):
            assert config.cache_key_tag == "theirs" + own
        config.cache_key_tag += "2"
        assert config.cache_key_tag == "mine2" + own
    finally:
        config.cache_key_tag = before.partition("|opforge:")[0]
