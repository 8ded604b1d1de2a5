"""torch.compile's caches on disk, and an op that changes between two processes."""

from __future__ import annotations

import importlib

import pytest
from support import child_processes, sample_ops, text_files

import opforge
from opforge.builders.registration import compile_tag
from opforge.fast_path import library as warm_library

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


def test_the_order_of_loading_does_not_matter():
    library = torch.library.Library(sample_ops.unique_name("order"), "DEF")
    try:
        names = [f"{library.ns}::{name}" for name in ("one", "two")]
        for name in ("one", "two"):
            library.define(f"{name}(Tensor(a!) x) -> ()")
        ops = {"b": [names[1]], "a": [names[0]]}
        assert compile_tag.behind("", ops, {}) == compile_tag.behind("", {"a": [names[0]], "b": [names[1]]}, {}) != ""
        assert compile_tag.behind("", {"a": [names[0]]}, {}) != compile_tag.behind("", ops, {})
    finally:
        library._destroy()


def test_a_tag_of_the_users_stays_in_front_and_is_patched_and_extended(two_ops):
    config = torch.compiler.config
    before = config.cache_key_tag
    try:
        first = two_ops(0)
        config.cache_key_tag = "mine"
        assert two_ops(1).startswith("mine|opforge:") and first not in two_ops(1)
        own = config.cache_key_tag.removeprefix("mine")
        with config.patch(cache_key_tag="theirs"):
            assert config.cache_key_tag == "theirs" + own
        config.cache_key_tag += "2"
        assert config.cache_key_tag == "mine2" + own
    finally:
        config.cache_key_tag = before.partition("|opforge:")[0]


def test_a_load_in_another_thread_is_in_the_tag(two_ops):
    import threading

    before = torch.compiler.config.cache_key_tag
    thread = threading.Thread(target=two_ops, args=(0,))
    thread.start()
    thread.join()
    assert torch.compiler.config.cache_key_tag != before


def digest_of(text):
    """Returns the digest of the function `fake` in a module's text."""
    module = {"__name__": "shapes"}
    exec(compile(text, "<shapes>", "exec"), module)
    return compile_tag._digest(module["fake"])


BASE = """
import functools, torch
SIZES = {"one": (1, 2)}
class Rule:
    def __init__(self, times): self.times = times
    @property
    def kind(self): return torch.float32
RULE = Rule(2)
def helper(x): return x.numel() * 2
def fake(x, dtype=torch.float32): return x.new_empty(helper(x), dtype=RULE.kind) if SIZES else x
"""


def test_the_digest_of_a_fake_ignores_where_it_stands_and_what_is_written_about_it():
    moved = "\n\n# a comment\n" + BASE.replace("class Rule:", "class Rule:\n    'A text.'")
    assert digest_of(moved) == digest_of(BASE) == digest_of(BASE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("numel() * 2", "numel() * 3"),
        ("x, dtype=torch.float32", "x, dtype=torch.float64"),
        ("return torch.float32", "return torch.float64"),
        ("Rule(2)", "Rule(3)"),
        ("(1, 2)", "(1, 3)"),
        ("new_empty", "new_zeros"),
        ("def fake", "@functools.lru_cache(2)\ndef fake"),
    ],
)
def test_the_digest_of_a_fake_covers_what_it_calls_and_reads(old, new):
    assert digest_of(BASE.replace(old, new)) != digest_of(BASE)


def test_the_digest_of_a_partial_a_method_and_a_function_of_torch():
    import functools

    digests = {compile_tag._digest(functools.partial(torch.zeros, dtype=dtype)) for dtype in (torch.half, torch.int)}
    digests |= {compile_tag._digest(torch.empty_like), compile_tag._digest(torch.zeros_like)}
    assert len(digests) == 4


def in_table(module, name):
    """Returns a function that registers one for an op in a table of torch, and returns one that removes it."""

    def register(op, function):
        table = getattr(importlib.import_module(module), name)
        table[op] = function
        return lambda: table.pop(op)

    return register


def for_fake_tensors(op, function):
    op.py_impl(torch._subclasses.FakeTensorMode)(function)
    return op.python_key_table.clear


def by_a_check(op, function):
    from torch._subclasses import fake_impls

    fake_impls.register_op_impl(lambda other: other is op)(function)
    return fake_impls.op_implementations_checks.pop


TABLES_OF_OPS = {
    "py_impl": for_fake_tensors,
    "fake_impls": in_table("torch._subclasses.fake_impls", "op_implementations_dict"),
    "fake_impls, by a check": by_a_check,
    "decompositions": in_table("torch._decomp", "decomposition_table"),
    "decompositions before autograd": in_table("torch._decomp", "pre_autograd_decomposition_table"),
    "decompositions of Inductor": in_table("torch._inductor.decomposition", "decompositions"),
    "lowerings": in_table("torch._inductor.lowering", "lowerings"),
    "lowerings of the user": in_table("torch._inductor.lowering", "user_lowerings"),
    "layout constraints": in_table("torch._inductor.lowering", "_maybe_layout_constraints"),
    "forms that change an argument": in_table("torch._inductor.fx_passes.reinplace", "inplaceable_ops"),
}
"""Ways to register a function for an op that torch.compile uses; each returns what removes it."""


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
class TestRegisteredByPython:
    """The tag of an op of opforge's, with what Python registers for it. Nothing is compiled."""

    @pytest.fixture
    def space(self):
        """A namespace with an op `own`, and the tag of a process that has loaded it."""
        library = torch.library.Library(sample_ops.unique_name("python"), "DEF")
        warm_library.record_kernels()
        library.define("own(Tensor x) -> Tensor")
        library.impl("own", lambda x: x.clone(), "CPU")
        library.tag = lambda: compile_tag.behind("", {"entry": [f"{library.ns}::own"]}, {})
        yield library
        library._destroy()

    def test_a_backward_is_in_it_and_the_library_is_not(self, space):
        tags = []
        for factor in (2, 2, 5):
            torch.library.register_autograd(f"{space.ns}::own", lambda ctx, grad, by=factor: grad * by, lib=space)
            tags.append(space.tag())
            assert tags[-1] == compile_tag.behind("", {"another build": [f"{space.ns}::own"]}, {})
        assert tags[0] == tags[1] != tags[2]

    def test_an_op_in_its_namespace_is_in_it(self, space):
        space.define("more(Tensor x) -> Tensor")
        tags = [space.tag()]
        for factor in (2, 2, 5):
            space.impl("more", lambda x, by=factor: x * by, "CompositeImplicitAutograd")
            tags.append(space.tag())
        assert tags[0] == "" != tags[1] == tags[2] != tags[3]

    def test_a_kernel_that_runs_is_not(self, space):
        before = space.tag()
        space.impl("own", lambda x: x + 1, "CPU")
        assert space.tag() == before == ""

    def test_what_cannot_be_described_is_one_line_and_a_tag_that_no_other_process_has(self, space, caplog):
        lines = iter(["a line"])
        torch.library.register_fake(f"{space.ns}::own", lambda x: x.new_empty(len(next(lines))), lib=space)
        counter = (number for number in range(3))
        torch.library.register_autograd(f"{space.ns}::own", lambda ctx, grad: grad * next(counter), lib=space)
        first = space.tag()
        assert first == space.tag() and compile_tag._random in first
        (record,) = (record for record in caplog.records if record.name == "opforge")
        expected = (
            f"no compiled graph that depends on {space.ns}::own is found or kept: a value of generator has no"
            " description (cannot pickle 'generator' object), in counter of"
        )
        assert record.getMessage().startswith(expected)
        with pytest.raises(compile_tag.UndescribedError):
            compile_tag.of_graph(torch.fx.GraphModule({}, torch.fx.Graph()))
        torch.library.register_autograd(f"{space.ns}::own", lambda ctx, grad: grad, lib=space)
        assert compile_tag._random not in space.tag()

    def test_what_was_registered_before_anybody_looked_is_said(self, space, monkeypatch):
        torch.library.register_autograd(f"{space.ns}::own", lambda ctx, grad: grad, lib=space)
        monkeypatch.setattr(warm_library, "python_kernels", {})
        with pytest.raises(
            compile_tag.UndescribedError, match="its kernel for Autograd was registered by Python before"
        ):
            list(compile_tag._Registry({}).lines(f"{space.ns}::own"))

    @pytest.mark.parametrize("table", TABLES_OF_OPS)
    def test_what_a_table_of_torch_has_for_an_op_is_in_it(self, space, table):
        op = getattr(torch.ops, space.ns).own.default
        tags = [space.tag()]
        for factor in (2, 2, 5):
            remove = TABLES_OF_OPS[table](op, lambda *args, by=factor: by)
            try:
                tags.append(space.tag())
            finally:
                remove()
        assert tags[0] == "" != tags[1] == tags[2] != tags[3]
        assert space.tag() == ""

    def test_a_function_of_torchs_that_is_registered_for_an_op_is_in_it(self, space):
        op = getattr(torch.ops, space.ns).own.default
        tags = set()
        for function in (torch._refs.abs, torch._refs.neg):
            remove = in_table("torch._decomp", "decomposition_table")(op, function)
            tags.add(space.tag())
            remove()
        assert len(tags) == 2 and "" not in tags

    def test_a_rule_for_an_op_of_torchs_own_is_in_the_digest_of_a_graph(self):
        graph = torch.fx.Graph()
        graph.call_function(torch.ops.aten.sgn.default, (graph.placeholder("x"),))
        digests = [compile_tag.of_graph(torch.fx.GraphModule({}, graph))]
        for factor in (2, 5):
            remove = TABLES_OF_OPS["fake_impls, by a check"](torch.ops.aten.sgn.default, lambda *args, by=factor: by)
            digests.append(compile_tag.of_graph(torch.fx.GraphModule({}, graph)))
            remove()
        assert len({*digests}) == 3

    def test_an_op_of_torchs_own_has_overloads_that_the_dispatcher_does_not_know(self):
        assert "left_t" in torch.ops.aten.mul.overloads()
        assert not any("mul.left_t(" in line for line in compile_tag._Registry({}).lines("aten::mul"))
