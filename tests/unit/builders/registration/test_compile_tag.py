"""What torch.compile's keys get to know of ops: all that Python registers for them, and what that depends on."""

from __future__ import annotations

import functools
import importlib

import pytest
from support import sample_ops

from opforge.builders.registration import compile_tag
from opforge.fast_path import library as warm_library

torch = pytest.importorskip("torch")


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
OF_INDUCTOR = dict.fromkeys([*TABLES_OF_OPS][5:], pytest.mark.test_all("imports inductor"))


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
            compile_tag._Registry({}, {}).all_lines([f"{space.ns}::own"])

    @pytest.mark.parametrize("table", [pytest.param(name, marks=OF_INDUCTOR.get(name, ())) for name in TABLES_OF_OPS])
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

    def test_a_library_with_kernels_that_a_graph_contains_is_in_the_digest_of_a_graph(self, monkeypatch):
        digests = set()
        for names in (["aten::t"], ["aten::"], ["::"]):  # the latter two stand for any op of a namespace, or at all
            for entry in ("first", "second", "second"):
                monkeypatch.setattr(warm_library, "defined", {entry: names})
                digests.add(compile_tag.of_ops(["aten::t"]))
        assert len(digests) == 6 - 2  # the first two have the same lines

    def test_a_decomposition_that_torch_makes_for_an_op_of_cpp_is_not_in_it(self, space):
        op = getattr(torch.ops, space.ns).own.default
        remove = TABLES_OF_OPS["decompositions"](op, functools.partial(lambda *args, kernel: kernel, kernel=op))
        assert space.tag() == ""
        remove()

    def test_an_op_of_torchs_own_has_overloads_that_the_dispatcher_does_not_know(self):
        assert "left_t" in torch.ops.aten.mul.overloads()
        assert not any("mul.left_t(" in line for line in compile_tag._Registry({}, {}).all_lines(["aten::mul"]))
