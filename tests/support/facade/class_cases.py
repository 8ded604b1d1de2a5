"""Uses of the classes of classes_source.cpp. What torch's own headers gave is recorded in class_outcomes.json.

`python tests/support/facade/class_cases.py LIBRARY` prints what a library gives. To record it anew, compile the source
with torch's headers, as the extension facade_classes. With FACADE_CLASSES_FAIL set, the module's body throws at a first
import, and the uses are those of a second one.
"""

import copy
import gc
import json
import operator
import os
import pickle
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

NAME = "facade_classes"
TOO_EARLY = (
    "arg(): could not convert default argument 'given: Unknown' in function 'too_early' into a Python object (type not "
    "registered yet?)"
)
"""What pybind11 says of a default of a class that is not registered."""


def _facts(thing: Any) -> object:
    bases = [base.__name__ for base in thing.__mro__ if base.__name__ != "pybind11_object"]
    return thing.__name__, thing.__qualname__, thing.__module__, bases


def _set(thing: Any, name: str, value: object) -> object:
    setattr(thing, name, value)
    return getattr(thing, name)


def _lives(m: ModuleType, use: Callable[[], object]) -> object:
    """Returns how many C++ objects are left after a use."""
    gc.collect()
    before = m.alive()
    use()
    gc.collect()
    return m.alive() - before


class Uses:
    """Longer uses of a module's classes, each with what it shows."""

    def __init__(self, module: ModuleType) -> None:
        self.m = module

    def identity(self) -> object:
        held = self.m.Held()
        held.next = held
        found = held.self() is held, held.next is held, [one is held for one in self.m.pair_of(held)]
        held.next = None
        return found, held.next

    def internal(self) -> object:
        layer = self.m.Layer(torch.ones(2))
        layer.where().x = 5
        layer.copied().x = 6
        layer.origin.y = 7
        kept = layer.where()
        del layer
        gc.collect()
        return kept.x, kept.y

    def owner(self) -> object:
        raw = self.m.Owner().raw()
        gc.collect()
        return raw.next is None

    def subclass(self) -> object:
        class Sub(self.m.Point):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                super().__init__(3.0, 4.0)
                self.more = 1

        made = Sub()
        return made.norm(), self.m.norm_of(made), made.more, isinstance(made, self.m.Point)

    def no_init(self) -> object:
        class Sub(self.m.Point):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                pass

        return self.m.norm_of(Sub())

    def no_init_and_no_use(self) -> object:
        """Makes an object without its C++ one: of subclasses of a class, and of one that has a base."""

        def without(base: Any) -> object:
            made = type("Sub", (base,), {"__init__": lambda self, *_: None})
            return str(_refusal(lambda: made(1))), str(_refusal(lambda: type("Below", (made,), {})()))

        other = type("Other", (self.m.Point,), {"__new__": lambda cls: 5})
        refused = [without(base) for base in (self.m.Point, self.m.Color, self.m.Layer, self.m.Derived)]
        return refused, other(), type(self.m.Point).__name__

    def changed(self) -> object:
        point = self.m.Point(1.0, 2.0)
        self.m.shift(point)
        return point.x, point.norm()

    def again(self) -> object:
        point = self.m.Point(1.0, 2.0)
        point.__init__(5.0, 6.0)
        return point.x

    def weak(self) -> object:
        point = self.m.Point(1.0)
        weak = weakref.ref(point)
        alive = weak() is point
        del point
        return alive, weak() is None

    def dying(self) -> object:
        """Asks for a C++ object in a callback of a weak reference to its Python object."""
        held = self.m.Held()
        self.m.store(held)
        seen: list[Any] = []
        weak = weakref.ref(held, lambda _: seen.append(self.m.stored()))
        del held
        gc.collect()
        others = [self.m.Spot() for _ in range(50)]
        self.m.store(None)
        return weak() is None, len(others), type(seen.pop()).__name__

    def owned_by_nobody(self) -> object:
        owner = self.m.Owner()
        refused = [str(_refusal(lambda thing=thing: self.m.store(thing))) for thing in (owner.raw(), owner.held)]
        return refused, self.m.stored()

    def owned_by_cpp(self) -> object:
        """Takes a plain pointer to an object that C++ owns."""
        self.m.store(self.m.Held())
        gc.collect()
        raw = self.m.stored_raw()
        counts = [self.m.stored_count()]
        del raw
        gc.collect()
        counts.append(self.m.stored_count())
        self.m.store(None)
        return counts

    def same_address(self) -> object:
        """Makes a C++ object at the address of one that ended before its Python object."""
        old = self.m.spot()
        self.m.end_spot()
        new = self.m.Spot()
        new.n = 42
        del old
        gc.collect()
        same = new.self() is new
        gc.collect()
        return same, new.n

    def own_attributes(self) -> object:
        class Answering(self.m.Spot):  # type: ignore[name-defined,misc]
            def __getattr__(self, name: str) -> object:
                return None

        class Frozen(self.m.Spot):  # type: ignore[name-defined,misc]
            def __setattr__(self, name: str, value: object) -> None:
                raise AttributeError("frozen")

        return Answering().n, Answering().more, Frozen().n

    def own_state(self) -> object:
        class Sub(self.m.Spot):  # type: ignore[name-defined,misc]
            def __reduce__(self) -> object:
                return type(self), ()

        return copy.copy(Sub()).n

    def loose(self) -> object:
        made = self.m.Looser()
        made.more = 3
        return made.more

    def members(self) -> object:
        self.m.Color.__members__.update(x=1)
        return {name: int(value) for name, value in self.m.Color.__members__.items()}

    def enumerations(self) -> object:
        sys.modules[NAME] = self.m
        red, second = self.m.Color.Red, self.m.Mask.Second
        pickled = [pickle.loads(pickle.dumps(second, version)) == second for version in (2, 3, 4, 5)]
        function = pickle.loads(pickle.dumps(self.m.norm_of))
        assert function(self.m.Point(3.0, 4.0)) == 25
        return pickled, copy.copy(red) == red, copy.deepcopy([second]) == [second]

    def tensors(self) -> object:
        layer = self.m.Layer(torch.full((2,), 3.0), n=2)
        layer.extra = "more"
        layer.weight = layer.weight + 1
        return layer(torch.ones(2)), layer.forward(torch.ones(2)), layer.extra, layer.scaled(3), layer.scaled(1.5)


def cases(m: ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    uses = Uses(m)
    for name in ("identity", "internal", "owner", "subclass", "no_init", "no_init_and_no_use", "changed", "again",
                 "weak", "tensors", "dying", "owned_by_nobody", "owned_by_cpp", "same_address", "own_attributes",
                 "own_state", "loose", "members", "enumerations"):  # fmt: skip
        yield name, getattr(uses, name)
        if name != "no_init":
            yield f"{name} leaves", lambda name=name: _lives(m, getattr(uses, name))
    for name in ("Color", "Mask", "Point", "Base", "Derived", "Layer", "Held", "Bare"):
        yield f"facts of {name}", lambda name=name: _facts(getattr(m, name))
        yield f"doc of {name}", lambda name=name: getattr(m, name).__doc__
    for name in ("__init__", "norm", "move", "origin", "__eq__", "twice", "x", "y", "sum"):
        yield f"doc of Point.{name}", lambda name=name: getattr(m.Point, name).__doc__
    for name in ("__init__", "scaled", "forward", "where"):
        yield f"doc of Layer.{name}", lambda name=name: getattr(m.Layer, name).__doc__
    for name in ("norm_of", "norm_or", "moved", "make_derived", "pair_of", "of_color", "color", "new_held", "points"):
        yield f"doc of {name}", lambda name=name: getattr(m, name).__doc__
    x = torch.ones(2)
    texts = (
        "m.Point()", "m.Point(1.5).y", "m.Point(1).y", "m.Point(x=2.0, y=3.0).norm()", "m.Point('a')",
        "m.Point(1.0, 2.0, 3.0)", "m.Point(y=1.0)", "m.Point(None)", "m.Bare()", "m.Layer(1)", "m.Layer(x, n=0)",
        "m.Layer(x, 1)", "m.Layer(x, m.Color.Blue).color", "repr(m.Point(4.0))", "m.Point(1.0) == m.Point(1.0)",
        "m.Point(1.0) == 3", "m.Point(1.0) != m.Point(2.0)", "hash(m.Point(1.0))", "len(m.Point(1.0))",
        "m.Point(1.0).kind", "m.Point(1.0).twice.x", "m.Point.origin().x", "m.Point(1.0).sum", "m.Point(1.0).move()",
        "m.Point(1.0).move(dx=1)", "m.Point.norm(3)", "m.Point.norm()", "m.Point(1.0).missing",
        "_set(m.Point(1.0), 'x', 2)", "_set(m.Point(1.0), 'x', 'a')", "_set(m.Point(1.0), 'kind', 2)",
        "_set(m.Point(1.0), 'sum', 8.0)", "_set(m.Point(1.0), 'sum', -8.0)", "_set(m.Point(1.0), 'new', 8.0)",
        "_set(m.Layer(x), 'color', m.Color.Green)", "_set(m.Layer(x), 'color', 2)", "_set(m.Layer(x), 'weight', 2)",
        "m.Layer(x).version", "m.Layer(x).scaled('a')", "m.norm_of(m.Point(3.0, 4.0))", "m.norm_of(None)",
        "m.norm_of(3)", "m.norm_of(m.Base())", "m.norm_or(None)", "m.norm_or(m.Point(1.0))",
        "m.moved(m.Point(1.0), 2.0).x", "m.shift(m.Point(1.0))", "m.Base().name()", "m.Derived().name()",
        "m.Derived().number()", "m.Derived().other()", "m.name_of(m.Derived())", "type(m.make_derived()).__name__",
        "m.make_derived().other()", "isinstance(m.make_derived(), m.Base)", "m.Base().other()", "m.nothing()",
        "type(m.new_held()).__name__", "m.unknown(3)", "m.make_unknown()", "m.points([m.Held(), m.Held()])",
        "m.Chain(1).add(2).add(3).parts", "(lambda c: c.add(2) is c)(m.Chain(1))", "m.owned_chain(4).parts",
        "m.owned_chain(0)", "m.length_of([m.Chain(1)], m.Chain(2).add(3), {'a': m.Chain(4)})",
        "m.length_of((), None, {})", "m.length_of([3], None, {})", "m.length_of([], 3, {})",
        "m.length_of([], None, {'a': 3})", "m.extended(m.Chain(1), 5)", "m.extended(None, 5)",
        "pickle.loads(pickle.dumps(m.Chain(7).add(8))).parts", "copy.deepcopy(m.Chain(7)).parts",
        "m.Chain.__new__(m.Chain).__setstate__(3)", "m.Chain.__setstate__.__doc__",
        "m.points([3])", "m.points([None])", "m.pair_of(None)", "m.Color.Red", "repr(m.Color.Red)", "str(m.Color.Red)",
        "m.Color.Red.name", "m.Color.Blue.value", "int(m.Color.Blue)", "m.Color(2)", "m.Color(9)", "m.Color('a')",
        "m.Color()", "m.Color.Red == m.Color.Red", "m.Color.Red == 1", "m.Color.Red != 1", "m.Color.Red == None",
        "m.Color.Red < m.Color.Green", "hash(m.Color.Green)", "m.of_color(m.Color.Green)",
        "m.of_color(2)", "m.color(2)",
        "m.Green is m.Color.Green", "list(m.Color.__members__)", "m.Mask.First == 1", "m.Mask.First < m.Mask.Second",
        "m.Mask.First | m.Mask.Second", "m.Mask.First & 3", "2 | m.Mask.First", "~m.Mask.First", "m.Mask.First < 'a'",
        "m.Mask.First ^ m.Mask.First", "m.Mask.First == m.Color.Red", "{m.Color.Red: 1}[m.Color.Red]",
        "[0, 1, 2][m.Color.Red]", "_set(m.Color.Red, 'value', 3)", "m.Mask(2)",
        "m.Mask(-1)", "m.Color.Red.__getstate__()",
        "copy.copy(m.Point(1.0))", "copy.deepcopy(m.Layer(x))", "m.Point(1.0).__reduce_ex__(4)", "m.Quiet()",
        "m.Quiet.third()", "m.length('four')", "m.length(None)", "m.length(3)", "m.text(False)", "m.text(True)",
        "m.is_none(None)", "m.is_none(3)", "m.placed(3)", "m.placed(3, b=2)", "m.placed(a=3)", "m.all_placed(a=3)",
        "m.norm_of(m.Mute())", "m.norm_of(p=m.Mute())", "m.length.__doc__", "m.text.__doc__", "m.is_none.__doc__",
        "m.placed.__doc__", "m.all_placed.__doc__", "m.Point.sum.fget.__doc__", "m.Point.sum.fset.__doc__",
        "m.Point.x.fset.__doc__", "m.Point.twice.fget.__doc__", "_set(m.Point(1.0), 'sum', 'a')",
    )  # fmt: skip
    for text in texts:
        yield text, lambda text=text: _plain(eval(text, {"m": m, "x": x, "_set": _set, "copy": copy, "pickle": pickle}))
    for text in ("m.Point(1.0)", "m.Derived()", "m.Held().self()", "m.pair_of(m.Held())", "m.Layer(x).where()",
                 "m.make_derived()", "m.new_held()", "m.moved(m.Point(1.0), 1.0)", "m.Color(2)"):  # fmt: skip
        yield f"{text} leaves", lambda text=text: _lives(m, lambda: eval(text, {"m": m, "x": x}))
    a, b = m.Sum(3), m.Sum(4)
    for text in (
        "a + b", "a - 1", "10 - a", "a * 2.5", "a * 'text'", "-a", "bool(a)", "bool(m.Sum(0))", "a == b",
        "a == m.Sum(3)", "a != b", "a < b", "a > b", "a < 1", "int(a)", "hash(a)", "a + 1", "1 + a", "2 * a", "a.get()",
        "a.put(3)", "a.n", "m.Sum.__add__.__doc__", "m.Sum.__rsub__.__doc__", "m.Sum.__iadd__.__doc__",
    ):  # fmt: skip
        yield f"sum: {text}", lambda text=text: repr(eval(text, {"a": a, "b": b, "m": m}))
    yield "sum: in place", lambda: repr(operator.iadd(m.Sum(3), 4))
    yield "sum: in place of a text", lambda: repr(operator.iadd(m.Sum(3), "text"))
    yield "pickle of a class", lambda: type(_refusal(lambda: pickle.dumps(m.Point(1.0)))).__name__
    yield from _settings(m)
    yield from _overridden(m)


def _animals(m: ModuleType) -> dict[str, Any]:
    """Returns classes that override methods of C++."""

    class Loud(m.Animal):  # type: ignore[name-defined,misc]
        def go(self, times: int) -> str:
            return "loud" * times

        def its_name(self) -> str:
            return "loud " + super().its_name()

        def label(self) -> str:
            return "its label"

        def map(self, x: torch.Tensor) -> torch.Tensor:
            return super().map(x) * 2

        def seen(self, at: Any, other: Any) -> None:
            at.x += 40
            if other is not None:
                other.y = at.x
            super().seen(at, other)

    class Puppy(m.Dog):  # type: ignore[name-defined,misc]
        def go(self, times: int) -> str:
            return "puppy " + super().go(times)

    class Odd(m.Dog):  # type: ignore[name-defined,misc]
        def map(self, x: torch.Tensor) -> torch.Tensor:
            raise LookupError("ours")

    class Own(m.Animal):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__("own")
            self.go = lambda times: f"own {times}"

    class Kitten(m.Cat):  # type: ignore[name-defined,misc]
        def go(self, times: int) -> str:
            return "kitten"

    return {kind.__name__: kind for kind in (Loud, Puppy, Odd, Own, Kitten)}


def _overridden(m: ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields uses of classes whose methods Python overrides."""
    names = {"m": m, "x": torch.arange(3.0), **_animals(m)}
    made = (
        "Loud()", "Puppy(3)", "Puppy('four')", "Puppy(2.0)", "Odd(1)", "Own()", "m.Animal('text')", "m.Cat()",
        "m.Cat(1)", "Kitten()", "Kitten(1)", "Kitten('a')",
    )  # fmt: skip
    uses = (
        "m.go({}, 2)", "m.name({})", "m.label({})", "m.map({}, x)", "m.seen({}, True)", "m.seen({}, False)",
        "{}.go(3)", "{}.its_name()", "m.is_alias({})",
    )  # fmt: skip
    for one in made:
        for use in uses:
            text = use.format(one)
            yield f"overridden: {text}", lambda text=text: _plain(eval(text, names))
        yield f"overridden: {one} leaves", lambda one=one: _lives(m, lambda: _refusal(lambda: eval(one, names)))
    for one in ("Loud()", "Puppy(3)", "Own()", "m.Dog(3)", "Kitten()"):
        yield f"overridden: another thread's {one}", lambda one=one: m.goes_elsewhere(eval(one, names))
    yield "pointed at", lambda: m.pointed(lambda at: setattr(at, "x", 5))
    for text in ("m.pointed(len)", "m.owning().x", "m.given().y"):
        yield text, lambda text=text: eval(text, names)
        yield f"{text} leaves", lambda text=text: _lives(m, lambda: _refusal(lambda: eval(text, names)))


def _set_totals(m: ModuleType) -> object:
    kind, one = m.Setting, m.Setting(1)
    derived = type("Derived", (kind,), {})
    found = [kind.total, one.total, kind.fixed, kind.twice, kind.kind, derived.kind, derived.total]
    for owner, name, value in ((kind, "total", 8), (one, "total", 9), (derived, "twice", 20), (kind, "plain", 1)):
        setattr(owner, name, value)
        found.append(kind.total)
    kind.total = 5
    return found


def _settings(m: ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields cases of a class's own properties, and of what becomes an object of a class."""
    yield "settings: totals", lambda: _set_totals(m)
    for name, value in (("fixed", 1), ("kind", 1), ("total", "x"), ("twice", 1.5)):
        yield f"settings: {name} = {value!r}", lambda name=name, value=value: setattr(m.Setting, name, value)
    for name in ("set", "set_pointer", "set_shared", "set_fixed", "set_first", "set_list"):
        for value in (m.Setting(3), 7, "text", True, 2.5, None, b"x"):
            if name == "set_list" and value is None:
                continue  # a null pointer, which the function does not look at
            given = [value] if name == "set_list" else value
            yield (
                f"settings: {name}({value if isinstance(value, int) else type(value).__name__})",
                (lambda name=name, given=given: getattr(m, name)(given)),
            )
        yield f"settings: {name}.__doc__", lambda name=name: getattr(m, name).__doc__


def _refusal(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def _plain(value: Any) -> object:
    """Returns a value, or the text of one that has no other form."""
    return value if isinstance(value, bool | int | float | str | list | type(None) | torch.Tensor) else repr(value)


def main(library: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from facade.module_record import load
    from facade.outcomes import of_call

    warnings.simplefilter("ignore")
    if "FACADE_CLASSES_FAIL" in os.environ:  # pybind11 keeps the classes, and cannot load it again
        refusal = _refusal(lambda: load(Path(library), NAME))
        assert type(refusal) is ImportError and str(refusal) == TOO_EARLY, repr(refusal)
        del os.environ["FACADE_CLASSES_FAIL"]
    found = {name: of_call(call) for name, call in cases(load(Path(library), NAME))}
    lines = (f" {json.dumps(name)}: {json.dumps(outcome)}" for name, outcome in found.items())
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main(*sys.argv[1:])
