"""A function that was compiled ahead is called only if all that it follows from is as it was. Nothing is compiled."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

from opforge.fast_path import library
from opforge.torch_internals import dynamo
from opforge.torch_internals.dynamo import Facts, Guard, Options, Registrations

torch = pytest.importorskip("torch")
SCALE = 2
LIST = [1, 2]


def scaled(x, n=1, *, m=1):
    return x * SCALE * n * m


class Model(torch.nn.Module):
    def forward(self, x, n=1):
        return x * n


class OfTorch:
    """torch's object: what it checks itself, and what it runs."""

    def __init__(self, function, imported=()):
        plain = getattr(function, "__func__", function)
        environment = SimpleNamespace(import_sources=dict(imported))
        self._artifacts = SimpleNamespace(signature=inspect.signature(plain), runtime_env=environment)
        self.checked, self.holds, self.is_disabled = [], True, False

    def disable_guard_check(self):
        self.is_disabled = True

    def guard_check(self, *arguments, **named):
        self.checked.append((arguments, named))
        return self.holds

    def __call__(self, *arguments, **named):
        return arguments, named


class Program:
    """The state of a program, which a test changes."""

    is_same = True

    def holds(self):
        return self.is_same


def registrations(program=None, **changes):
    """Returns how values are described: by their text."""
    given = {
        "describe": repr,
        "ops_of": lambda graph: [],
        "of_ops": lambda names: f"registered for {[*names]}",
        "program_of": lambda codes, classes: [],
        "program_problem": lambda facts: "",
        "pin": lambda facts: program or Program(),
    }
    return Registrations(**{**given, **changes})


def facts(guards=(), **changes):
    plain = Facts("", repr(((1,), (("m", 1),))), [], ["my::op"], "registered for ['my::op']", [*guards], False, [])
    return plain._replace(**changes)


def ahead(*guards, function=scaled, program=None, imported=()):
    of = OfTorch(function, imported)
    return of, dynamo.Ahead(of, function, facts(guards), registrations(program))


def guard(expression, value, kind="ID_MATCH"):
    return Guard(expression, kind, dynamo.description(kind, value, repr))


@pytest.fixture
def module_globals(monkeypatch):
    """Returns a function that sets a global of the function for the rest of the test."""
    return lambda name, value: monkeypatch.setitem(scaled.__globals__, name, value)


class TestFits:
    def test_a_call_without_guards_is_torchs_own_check(self):
        of, one = ahead()
        assert of.is_disabled  # torch would check again at each call, and raise
        assert one.fits((1,), {"m": 2})
        assert of.checked == [((1,), {"m": 2})]
        of.holds = False
        assert not one.fits((1,), {"m": 2})

    def test_a_global_is_compared_with_its_description_and_then_by_value(self, module_globals):
        of, one = ahead(guard("G['SCALE']", 2))
        assert one.fits((1,), {}) and one.fits((1,), {})
        module_globals("SCALE", 3)
        assert not one.fits((1,), {})
        module_globals("SCALE", 2.0)
        assert not one.fits((1,), {})  # it is equal, and of another type
        module_globals("SCALE", 2)
        assert one.fits((1,), {})
        assert len(of.checked) == 3

    def test_what_is_registered_for_its_ops_is_described_again_if_a_kernel_was_registered_since(self):
        described, now = [], [facts().registered]
        by = registrations(of_ops=lambda names: described.append(names) or now[0])
        one = dynamo.Ahead(OfTorch(scaled, ()), scaled, facts(), by)
        assert one.fits((1,), {}) and not described
        for now[0], fits in ((facts().registered, True), ("another backward", False), (facts().registered, True)):
            space = torch.library.Library("aten", "FRAGMENT")
            library.record_kernels()
            space.define(f"opforge_tested_{len(described)}() -> ()")
            space.impl(f"opforge_tested_{len(described)}", print, "CPU")
            assert [one.fits((1,), {}) for _ in range(2)] == [fits, fits]
            space._destroy()
        assert described == [["my::op"]] * 3

    def test_one_that_was_another_when_it_was_compiled_does_not_fit(self):
        assert not ahead(guard("G['SCALE']", 3))[1].fits((1,), {})
        assert not ahead(guard("G['SCALE']", 2), guard("G['LIST']", [1]))[1].fits((1,), {})
        assert ahead(guard("G['SCALE']", 2), guard("G['LIST']", LIST))[1].fits((1,), {})

    def test_what_torch_checks_itself_at_the_first_call_is_pinned(self, module_globals):
        _, one = ahead(Guard("G['LIST']", "EQUALS_MATCH", ""))
        assert one.fits((1,), {})
        module_globals("LIST", [1, 2])  # equal, and not the object that torch has checked
        assert not one.fits((1,), {})

    @pytest.mark.parametrize("expression", ["G['NONE']", "L['x'].none", "open('/dev/null')", "G['SCALE'] / 0"])
    def test_a_guard_that_cannot_be_read_does_not_hold(self, expression):
        of, one = ahead(Guard(expression, "ID_MATCH", ""))
        assert not one.fits((1,), {})
        assert of.checked == []

    def test_arguments_are_bound_with_their_defaults(self):
        _, one = ahead(guard("L['n']", 1), guard("L['m']", 5))
        assert one.fits((1,), {"m": 5})
        assert not one.fits((1, 2), {"m": 5})
        assert not one.fits((), {})  # it cannot be called so

    def test_a_method_has_its_object(self):
        model = Model()
        of, one = ahead(guard("type(L['self']).__name__", "Model"), function=model.forward)
        assert one.fits((1,), {})
        assert of.checked == [((model, 1), {})] and one(1, n=2) == ((model, 1), {"n": 2})

    def test_modules_that_torch_imported_have_names_of_their_own(self):
        _, one = ahead(guard("G['__import_math'].tau", 6.283185307179586), imported={"__import_math": "math"})
        assert one.fits((1,), {})
        builtins = Guard("G['__builtins_dict___0']['len']", "ID_MATCH", "")
        assert ahead(builtins)[1].fits((1,), {})

    def test_another_program_or_process_group_does_not_fit(self, monkeypatch):
        program = Program()
        of, one = ahead(program=program)
        program.is_same = False
        assert not one.fits((1,), {})
        program.is_same = True
        with monkeypatch.context() as patch:
            patch.setattr(dynamo, "_group", lambda: "another")
            assert not one.fits((1,), {})
        assert of.checked == [] and one.fits((1,), {})


class TestProblem:
    """What is compared before anything is unpickled."""

    @pytest.fixture(autouse=True)
    def settings(self, monkeypatch):
        monkeypatch.setattr(dynamo, "settings_digest", lambda options: "" if options == Options() else "others")

    def test_nothing_is_another(self):
        assert dynamo.problem(facts(), scaled, Options(), registrations()) == ""

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"settings": "others"}, "torch's settings are others"),
            ({"defaults": repr(((2,), (("m", 1),)))}, "the defaults of its arguments are others"),
            ({"defaults": repr(((1,), ()))}, "the defaults of its arguments are others"),
            ({"registered": "other"}, "other kernels are registered for its ops"),
        ],
    )
    def test_each_fact_is_compared(self, changes, text):
        assert dynamo.problem(facts(**changes), scaled, Options(), registrations()) == text

    def test_the_options_the_program_and_what_cannot_be_described(self):
        assert (
            dynamo.problem(facts(), scaled, Options("max-autotune"), registrations()) == "torch's settings are others"
        )
        by = registrations(program_problem=lambda facts: "the class m.Net has changed")
        assert dynamo.problem(facts(), scaled, Options(), by) == "the class m.Net has changed"

        def fail(_names):
            raise ValueError("it has no description")

        assert dynamo.problem(facts(), scaled, Options(), registrations(of_ops=fail)) == "it has no description"


class TestDescription:
    def test_a_tensor_by_what_it_is_and_another_value_by_itself(self):
        texts = {
            dynamo.description("TENSOR_MATCH", tensor, repr)
            for tensor in (
                torch.ones(2),
                torch.ones(3),
                torch.ones(2).double(),
                torch.ones(2, requires_grad=True),
                torch.nn.Parameter(torch.ones(2)),
                torch.ones(2, device="meta"),
            )
        }
        assert len(texts) == 6
        assert dynamo.description("TENSOR_MATCH", torch.zeros(2), repr) in texts  # the values are an input
        assert dynamo.description("ID_MATCH", [1], repr) == "[1]"

    def test_a_type_alone_where_that_is_what_torch_compares(self):
        assert dynamo.description("TYPE_MATCH", LIST, repr) == "builtins.list"
        assert dynamo.description("TYPE_MATCH", 3, repr) == "3"

    def test_what_has_none(self):
        with pytest.raises(dynamo.AheadError, match=r"^a guard compares a Linear by its identity$"):
            dynamo.description("ID_MATCH", torch.nn.Linear(1, 1), repr)

        def fail(_value):
            raise ValueError("no description")

        with pytest.raises(dynamo.AheadError, match=r"^no description$"):
            dynamo.description("ID_MATCH", object(), fail)


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ("x.sum()", False),
        ("torch.distributed.get_rank()", True),
        ("mesh.get_coordinate()", True),
        ("mesh._is_current_rank_part_of_mesh()", True),
        ("getattr(x, name)", False),
    ],
)
def test_code_that_names_the_rank_is_of_a_rank(code, reads):
    assert dynamo._may_read_rank([compile(code, "code", "eval")], [1, "rank"]) is reads


def test_a_value_that_holds_the_rank_is_of_a_rank():
    group, mesh = (type(name, (), {})() for name in (dynamo.GROUP, dynamo.MESH))
    computing, plain = (compile(text, "code", "eval") for text in ("getattr(x, name)", "x.shape"))
    assert dynamo._may_read_rank([], [group])
    assert dynamo._may_read_rank([computing], [mesh])
    assert not dynamo._may_read_rank([plain], [mesh])

    def get_rank():
        """Has the name alone of a function that reads the rank."""

    def constant():
        """Does what torch takes as a constant."""

    constant._dynamo_marked_constant = True
    assert dynamo._may_read_rank([], [get_rank]) and dynamo._may_read_rank([], [constant])
    assert not dynamo._may_read_rank([], [scaled])
