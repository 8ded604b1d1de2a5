"""Uses of objects_source.cpp. What torch's own headers gave is recorded in object_outcomes.json.

`python tests/support/facade/object_cases.py LIBRARY` prints what a library gives. To record it anew, compile the source
with torch's headers, as the extension facade_objects, without NDEBUG: texts of errors would lack the names of types.
"""

import collections
import json
import operator
import re
import sys
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch

NAME = "facade_objects"


class Frozen:
    """An object without attributes of its own."""

    __slots__ = ()


def _raises(error: BaseException) -> Callable[[], object]:
    def raising() -> object:
        raise error

    return raising


def _set(container: object, key: object, module: ModuleType) -> object:
    module.set_item(container, key, 2.5)
    return container


def cases(m: ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields the name of each case, and the case."""
    x = torch.arange(6.0)
    things = {
        "none": None, "bool": True, "int": 3, "float": 2.5, "str": "text", "bytes": b"b", "list": [1, "b"],
        "tuple": (1, 2), "dict": {"a": 1}, "set": {4}, "tensor": x, "function": len, "type": int,
        "generator": iter([1, 2]), "ordered": collections.OrderedDict(b=2), "frozen": Frozen(),
    }  # fmt: skip
    for name in ("defaults", "parts", "pi"):
        yield name, lambda name=name: getattr(m, name)
    yield "described", lambda: m.described(x, {"scale": 2, "k": "v"})
    yield "described without options", lambda: m.described(x)
    yield "a wrong scale", lambda: m.described(x, {"scale": "much"})
    yield "the default stays", lambda: (m.described(x), m.described(x))
    yield "split", lambda: m.split(x, [2, 4])
    yield "split by no number", lambda: m.split(x, [2, "a"])
    yield "split too far", lambda: m.split(x, [7])
    yield "applied", lambda: m.applied(lambda t, k, s=1: t * k * s, x, 2, s=3)
    yield "applied without a tensor", lambda: m.applied(lambda t: "text", x)
    yield "applied and raised", lambda: m.applied(_raises(LookupError("ours")), x)
    yield "raised", lambda: m.applied(lambda t: operator.getitem({}, "k"), x)
    yield "caught a KeyError", lambda: m.caught(_raises(KeyError("k")))
    yield "caught a ValueError", lambda: m.caught(_raises(ValueError("v")))
    yield "caught nothing", lambda: m.caught(lambda: None)
    yield "no callable", lambda: m.caught(3)
    for name, thing in things.items():
        for function in ("swapped", "tuple_of", "list_of", "dict_of", "set_of", "function_of", "numbers_of", "kind"):
            if (function, name) in (
                ("function_of", "ordered"),
                ("set_of", "tensor"),
                ("set_of", "str"),
                ("set_of", "list"),
            ):
                continue  # the name of its type has no module here; a set has an order of its own in each process
            given = iter([1, 2]) if name == "generator" else thing
            yield f"{function} of {name}", lambda f=function, given=given: getattr(m, f)(given)
        numbers = iter([1, 2]) if name == "generator" else thing
        yield f"sum of {name}", lambda given=numbers: m.sum_of(given)
        if name not in ("generator", "frozen", "function"):
            yield f"joined {name}", lambda given=thing: m.joined(given)
        if name not in ("tensor", "generator", "list", "dict", "set", "ordered"):  # pybind11 loses the exception
            yield f"grown by {name}", lambda given=thing: m.grown(given)
        yield f"type of {name}", lambda given=thing: m.type_of(given)
        yield f"optional {name}", lambda given=thing: m.optional(given) is given or m.optional(given)
        yield f"attributes of {name}", lambda given=thing: m.attributes(given)
    yield "callback", lambda: m.callback(lambda v: v + 1, 2)
    yield "callback of None", lambda: m.callback(None, 2)
    yield "callback of no function", lambda: m.callback(3, 2)
    yield "callback gives text", lambda: m.callback(lambda v: "text", 2)
    yield "callback raises", lambda: m.callback(_raises(LookupError("ours")), 2)
    yield "in order", lambda: m.in_order(lambda t: bool(t.sum() > 1), [x, x * 0])
    yield "root", lambda: (m.root(9), m.root(2.25))
    yield "root of a text", lambda: m.root("text")
    yield "root below zero", lambda: m.root(-1)
    yield "missing module", lambda: m.missing_module()
    yield "many", lambda: (m.many(1), m.many(1, 2, "c"), m.many(1, 2, b=3), m.many(a=1, b=2))
    yield "many without a", lambda: m.many()
    yield "many with a twice", lambda: m.many(1, a=2)
    yield "many with a text", lambda: m.many("a", 2)
    yield "only named", lambda: (m.only_named(), m.only_named(a=1, self=2))
    yield "only named by place", lambda: m.only_named(1)
    yield "only rest", lambda: (m.only_rest(), m.only_rest(1, None))
    yield "only rest by name", lambda: m.only_rest(a=1)
    yield "behind", lambda: (m.behind(1), m.behind(1, 2, 3), m.behind(1, 2, b=3), m.behind(a=1, b=2))
    yield "behind with a text", lambda: m.behind(1, b="text")
    yield "is a", lambda: (m.is_a(True, int), m.is_a("s", int), m.is_a(x, torch.Tensor))
    yield "is a no type", lambda: m.is_a(1, 2)
    yield "attributes of a namespace", lambda: m.attributes(SimpleNamespace(z=1))
    yield "attribute", lambda: m.attribute("text", "upper")()
    yield "missing attribute", lambda: m.attribute("text", "nothing")
    yield "item", lambda: (m.item([5, 6], 1), m.item({"k": 3}, "k"), m.item("text", 0), m.item(x, 2))
    yield "missing key", lambda: m.item({}, "k")
    yield "missing place", lambda: m.item([], 0)
    yield "item of a number", lambda: m.item(3, 0)
    yield "set item", lambda: (_set({}, "k", m), _set([0], 0, m))
    yield "set item of a tuple", lambda: _set((0,), 0, m)
    yield "filled", lambda: m.filled(3)
    yield "past the end", lambda: m.past_the_end([1])
    yield "number at", lambda: m.number_at([1, 2.5], 1)
    yield "number behind", lambda: m.number_at([1, 2.5], 2)
    yield "number of a text", lambda: m.number_at(["a"], 0)
    yield "compared", lambda: (m.compared(1, 1.0), m.compared([1], [1]), m.compared(None, None))
    yield "compared tensors", lambda: m.compared(x, x)
    yield "formatted", lambda: m.formatted(1.234)
    yield "kept", lambda: sys.getrefcount(m.kept(object()))
    yield "nested", lambda: m.nested([{}, {"a": 1}], {"a": None, "b": x})
    yield "nested in a tuple", lambda: m.nested(({},), {})
    yield "nested with a list", lambda: m.nested([[]], {})
    for name in ("described", "split", "applied", "many", "only_named", "only_rest", "behind", "callback", "optional",
                 "nested", "is_a", "sum_of", "joined", "type_of", "tuple_of", "set_of", "function_of"):  # fmt: skip
        yield f"documentation of {name}", lambda name=name: getattr(m, name).__doc__
    yield from _further_cases(m)


def _weak(m: ModuleType) -> object:
    things: list[object] = [SimpleNamespace()]
    found = [m.weak(things[0], lambda: found.append("gone"))]
    things.clear()
    return found


def _freed(m: ModuleType) -> object:
    before = m.freed()
    m.adder(1)
    return m.freed() - before


def _counted(m: ModuleType) -> object:
    c = m.Counter()
    c.w = 5
    return c.n, c.w, c.bumped(), c.bumped(by=3), c.fixed


def _further_cases(m: ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    letters = ["a", "", "ab", "\xe9", "\u0100", "\0", b"a", 3, None, "\u65e5"]
    for i, letter in enumerate(letters):
        yield f"letter {i}", lambda letter=letter: m.letter(letter)
    yield "of letters", lambda: [m.of_letter(n) for n in (65, 0, 200)]
    yield "letters", lambda: (m.letters(["a", "b", "c"]), m.letters(list("abc"), "d"))
    yield "two letters", lambda: m.letters(["a", "b"])
    for name in ("as_bool", "as_int", "as_float", "as_str", "as_bytes"):
        for i, value in enumerate([None, True, 0, 2.75, "12", b"q", [1], torch.tensor(3.0)]):
            yield f"{name} of {i}", lambda name=name, value=value: getattr(m, name)(value)
    yield "of items", lambda: m.of_items({"a": "7", "b": 3, "c": b"x"})
    yield "of other items", lambda: m.of_items({"a": "q", "b": 3, "c": b"x"})
    yield "of text for bytes", lambda: m.of_items({"a": 1, "b": 3, "c": "x"})
    yield "adder", lambda: (m.adder(100)(1), m.adder(100)(1, 2), m.adder(100)(b=3, a=4))
    yield "adder of a text", lambda: m.adder(100)("x")
    yield "names of adder", lambda: (m.adder(1).__name__, m.adder(1).__doc__, callable(m.adder(1)))
    yield "freed", lambda: _freed(m)
    yield "twice", lambda: (m.twice(lambda x: x * 3)(2), m.twice(m.twice(lambda x: x + 1))(2), m.twice(None))
    yield "twice raises", lambda: m.twice(_raises(LookupError("ours")))(2)
    yield "counted", lambda: _counted(m)
    yield "counted by a text", lambda: m.Counter().bumped("x")
    yield "set n", lambda: setattr(m.Counter(), "n", 1)
    yield "set fixed", lambda: setattr(m.Counter(), "fixed", 1)
    yield "names of bumped", lambda: m.Counter.bumped.__doc__
    bounds = [(None,), (1, 3), (None, None, -1), (10,), (-2, None)]
    for i, bound in enumerate(bounds):
        yield f"sliced {i}", lambda bound=bound: m.sliced([0, 1, 2, 3, 4], slice(*bound))
    yield "sliced by zero", lambda: m.sliced([1], slice(None, None, 0))
    yield "sliced by a text", lambda: m.sliced([1], slice("a"))
    yield "sliced by no slice", lambda: m.sliced([1], 0)
    yield "byte array", lambda: m.byte_array(bytearray(b"xyz"))
    yield "byte array of bytes", lambda: m.byte_array(b"xyz")
    yield "view", lambda: m.view(b"hello")
    yield "weak", lambda: _weak(m)
    yield "weak number", lambda: m.weak(3, None)
    yield "dots", lambda: m.dots(torch.arange(3))
    yield "without the lock", lambda: m.without_lock(4)
    yield "of an accessor", lambda: m.of_accessor({"a": 5})
    yield "frozen", lambda: m.frozen(frozenset([1, 2]))
    yield "frozen of a set", lambda: m.frozen({1})
    yield "evaluated", lambda: (m.evaluated("a + 1", {"a": 2}), m.executed())
    yield "evaluated half", lambda: m.evaluated("a +", {})
    yield "evaluated without a name", lambda: m.evaluated("a", {})
    spans = [timedelta(seconds=1.5), timedelta(days=-1, microseconds=5), 1.25, 3, None, timedelta(microseconds=999)]
    for i, span in enumerate(spans):
        yield f"milliseconds of {i}", lambda span=span: m.milliseconds(span)
        yield f"since {i}", lambda span=span: m.since(span)
    yield "seconds", lambda: [str(m.seconds(d)) for d in (1.5, -1.25, 0.0, 1e5)]
    yield "nanoseconds", lambda: [str(m.nanoseconds(n)) for n in (0, -1, 1999, -1999, 1234567890123)]
    yield "moments", lambda: [m.of_moment(m.moment(n)) for n in (0, 1, 1700000000123456, -5000001)]
    moments = [datetime(2020, 2, 29, 13, 5, 6, 789), date(2021, 3, 4), time(5, 6, 7, 8), 3, None]
    for i, moment in enumerate(moments):
        yield f"of moment {i}", lambda moment=moment: str(m.moment(m.of_moment(moment)))
    for name in ("letter", "twice", "sliced", "byte_array", "milliseconds", "seconds", "of_moment", "moment"):
        yield f"documentation of {name}", lambda name=name: getattr(m, name).__doc__


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from facade.module_record import load
    from facade.outcomes import of_call

    found = {name: of_call(case) for name, case in cases(load(Path(sys.argv[1]), NAME))}
    print(re.sub(r"0x[0-9a-f]+", "0x", json.dumps(found)))
