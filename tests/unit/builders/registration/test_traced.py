"""Parts of a program that torch.compile reads without a guard: each edit is noticed, between processes and in one."""

from __future__ import annotations

import importlib
import linecache
import sys
import types

import pytest
from support import text_files

from opforge.builders.registration import traced
from opforge.builders.registration.described import UndescribedError

MODEL = """
import builtins, functools, math
import traced_callee
from traced_callee import Shared
SCALE = 1
def through(function):
    @functools.wraps(function)
    def inner(*arguments): return function(*arguments)
    return inner
def made(count):
    def closed(x): return x * count
    return closed
closed = made(@closure@)
class Base:
    depth = @base@
    def part(self, x): return @part@
class Meta(type):
    def size(cls): return @meta@
class Net(Base, metaclass=Meta):
    rows = @rows@
    limit = staticmethod(functools.partial(max, @partial@))
    of = @class@
    @property
    def sign(self): return @sign@
    @sign.setter
    def sign(self, value): self.kept = @setter@
    @through
    def outer(self, x): return @outer@
    def plain(self, x, n=@default@, *, m=@named@): return x
    def forward(self, x):
        from traced_callee import inside
        from traced_callee import nested
        from .absent import nothing
        import traced_callee as renamed
        def within(y):
            return (lambda z: z + @lambda@)(y) + @within@
        x = traced_callee.named(within(inside(x))) + nested.deep(x)
        return x + Shared.a + renamed.Other.b + pick(x, 1) + closed(x)
class Box:
    class Inner:
        a = @inner@
pick = @pick@
hidden = [lambda x: @hidden@][0]
"""
CALLEE = """
import traced_nested as nested
def named(x): return @named_callee@
def inside(x): return @inside@
class Shared: a = @shared@
class Other: b = @other@
"""
NESTED = "def deep(x): return @deep@"
MODULES = {"traced_nested": NESTED, "traced_callee": CALLEE, "traced_model": MODEL}
SAME = {
    "inner": "1",
    "deep": "x",
    "closure": "1",
    "base": "1",
    "part": "x",
    "meta": "1",
    "rows": "2",
    "partial": "1",
    "class": "int",
    "sign": "1",
    "setter": "value",
    "outer": "x",
    "default": "1",
    "named": "1",
    "lambda": "1",
    "within": "1",
    "pick": "max",
    "hidden": "x",
    "named_callee": "x",
    "inside": "x",
    "shared": "1",
    "other": "1",
}
FORWARD, OF_CLASS = "the code of traced_model.Net.forward", "the class traced_model.Net"
EDITS = {
    "inner": ("2", "the class traced_model.Box.Inner"),
    "deep": ("-x", "traced_nested.deep is another"),
    "closure": ("2", "traced_model.closed is another"),
    "base": ("2", OF_CLASS),
    "part": ("x + 1", OF_CLASS),
    "meta": ("2", OF_CLASS),
    "rows": ("3", OF_CLASS),
    "partial": ("2", OF_CLASS),
    "class": ("float", OF_CLASS),
    "sign": ("-1", OF_CLASS),
    "setter": ("-value", OF_CLASS),
    "outer": ("-x", OF_CLASS),
    "default": ("2", OF_CLASS),
    "named": ("2", OF_CLASS),
    "lambda": ("2", OF_CLASS),
    "within": ("2", OF_CLASS),
    "pick": ("min", "traced_model.pick is another"),
    "hidden": ("-x", "the code of traced_model.<lambda>"),
    "named_callee": ("-x", "traced_callee.named is another"),
    "inside": ("-x", "traced_callee.inside is another"),
    "shared": ("2", "traced_model.Shared is another"),
    "other": ("2", "traced_callee.Other is another"),
}
"""What takes the place of each part of the program, and what is said of it."""


class Program:
    """Modules that tests edit."""

    def __init__(self, folder):
        self._folder = folder

    def load(self, **changes):
        """Returns the model's module as another process has it after these changes."""
        for name, text in MODULES.items():
            for part, value in {**SAME, **changes}.items():
                text = text.replace(f"@{part}@", value)
            text_files.write(self._folder, f"{name}.py", text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        linecache.clearcache()
        return importlib.import_module("traced_model")


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program that no other test has."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Program(tmp_path)
    for name in MODULES:
        sys.modules.pop(name, None)


def facts_of(module):
    """Returns what states the program as torch would read it."""
    forward = module.Net.forward.__code__
    within = next(each for each in forward.co_consts if isinstance(each, types.CodeType))
    inner = next(each for each in within.co_consts if isinstance(each, types.CodeType))
    codes = [
        forward,
        within,
        inner,
        module.Net.outer.__wrapped__.__code__,
        module.Net.sign.fget.__code__,
        module.closed.__code__,
        module.hidden.__code__,
    ]
    return traced.stated(codes, [module.Net, module.Box.Inner, int])


def test_each_edit_is_noticed_by_another_process_and_nothing_else_is(program):
    facts = facts_of(program.load())
    assert traced.problem(facts) == ""
    program.load()  # the same text is the same program
    assert traced.problem(facts) == ""
    for part, (value, said) in EDITS.items():
        program.load(**{part: value})
        text = traced.problem(facts)
        assert text, f"an edit of {part} is not noticed"
        assert any(said in traced.problem([fact]) for fact in facts), f"{part}: {text}"


def test_each_kind_of_fact_is_stated_with_its_place(program):
    facts = facts_of(program.load())
    assert facts == sorted(set(facts))
    places = {(fact.kind, fact.module, fact.place) for fact in facts}
    assert {
        (traced.CODE, "traced_model", "Net.forward"),
        (traced.CODE, "traced_model", "Net.forward.<locals>.within"),
        (traced.CODE, "traced_model", "Net.forward.<locals>.within.<locals>.<lambda>"),
        (traced.CODE, "traced_model", "Net.outer"),
        (traced.CODE, "traced_model", "<lambda>"),
        (traced.CLASS, "traced_model", "Net"),
        (traced.NAME, "traced_model", "traced_callee"),
        (traced.NAME, "traced_callee", "named"),
        (traced.NAME, "traced_callee", "inside"),
        (traced.NAME, "traced_callee", "Other"),
        (traced.NAME, "traced_model", "Shared"),
        (traced.NAME, "traced_model", "pick"),
    } <= places
    assert not any(fact.module == "builtins" for fact in facts)


class TestNotStated:
    def test_code_that_is_in_no_module(self):
        space = {}
        exec("def f(): pass", space)
        with pytest.raises(UndescribedError, match=r"^the source of f cannot be found: it is in no module$"):
            traced.stated([space["f"].__code__], [])

    def test_code_that_is_no_longer_at_its_place(self, program):
        module = program.load()
        code = module.Net.forward.__code__
        module.Net.forward = lambda self, x: x
        with pytest.raises(UndescribedError, match=r"^traced_model\.Net\.forward is not the function that was traced$"):
            traced.stated([code], [])

    def test_a_class_that_is_not_found_by_its_name(self, program):
        module = program.load()
        kind = module.Net
        module.Net = type("Net", (), {})
        with pytest.raises(UndescribedError, match=r"^the class traced_model\.Net is not found by its name$"):
            traced.stated([], [kind])

    def test_a_module_that_cannot_be_imported(self, program):
        facts = facts_of(program.load())
        sys.modules.pop("traced_model")
        text_files.write(program._folder, "traced_model.py", "1 / 0")
        importlib.invalidate_caches()
        with pytest.raises(
            UndescribedError, match=r"^the module traced_model cannot be imported \(division by zero\)$"
        ):
            traced.problem([fact for fact in facts if fact.module == "traced_model"])


CHANGES = {
    "an attribute": lambda module, patch: patch.setattr(module.Net, "rows", 3),
    "one of a base": lambda module, patch: patch.setattr(module.Base, "depth", 3),
    "one of the metaclass": lambda module, patch: patch.setattr(type(module.Net), "size", lambda cls: 3),
    "a method that hides another": lambda module, patch: patch.setattr(
        module.Net, "part", lambda self, x: -x, raising=False
    ),
    "an attribute less": lambda module, patch: patch.delattr(module.Net, "of"),
    "code": lambda module, patch: patch.setattr(module.Net.forward, "__code__", (lambda self, x: -x).__code__),
    "code below a decorator": lambda module, patch: patch.setattr(
        module.Net.outer.__wrapped__, "__code__", (lambda self, x: 1).__code__
    ),
    "a default": lambda module, patch: patch.setattr(module.Net.sign.fget, "__defaults__", (7,)),
    "a function of a module": lambda module, patch: patch.setattr(module.traced_callee, "named", lambda x: -x),
    "its code": lambda module, patch: patch.setattr(module.traced_callee.named, "__code__", (lambda x: -x).__code__),
    "a class of a module": lambda module, patch: patch.setattr(module.traced_callee.Other, "b", 3),
    "a class in a class": lambda module, patch: patch.setattr(module.Box.Inner, "a", 3),
    "a builtin under another name": lambda module, patch: patch.setattr(module, "pick", min),
}


class TestPinned:
    """The state of one process, compared before each call."""

    @pytest.fixture
    def module(self, program):
        return program.load()

    @pytest.fixture
    def pinned(self, module):
        return traced.Pinned(facts_of(module))

    def test_what_stays_holds(self, pinned, module):
        assert pinned.holds()
        module.SCALE = 3  # torch has a guard for that
        assert pinned.holds()

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_change_is_noticed_at_each_call_until_it_is_taken_back(self, pinned, module, change):
        with pytest.MonkeyPatch.context() as patch:
            CHANGES[change](module, patch)
            assert not pinned.holds()
            assert not pinned.holds()
        assert pinned.holds()

    def test_another_object_with_the_same_code_holds(self, pinned, module, monkeypatch):
        module.traced_callee.named = types.FunctionType(
            module.traced_callee.named.__code__, vars(module.traced_callee), "named"
        )
        described = []
        monkeypatch.setattr(traced, "problem", lambda facts: described.append(facts) or "")
        assert pinned.holds()
        assert pinned.holds()
        assert len(described) == 1  # once for each object, and not at each call

    def test_what_cannot_be_described_does_not_hold(self, pinned, module, monkeypatch):
        def fail(_facts):
            raise UndescribedError("none")

        monkeypatch.setattr(traced, "problem", fail)
        module.Net.rows = 3
        assert not pinned.holds()


def test_a_namespace_of_torch_ops_is_not_stated_as_it_exists_only_after_its_first_use(monkeypatch):
    module = types.ModuleType("traced_ops")
    module.torch = pytest.importorskip("torch")
    exec(compile("def called(x): return torch.ops.aten.relu(x)", "<traced_ops>", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "traced_ops", module)
    read = traced._read_of_modules(module.called.__code__, module)
    assert read == {("traced_ops", "torch"), ("torch", "ops")}
