"""Uses of additions_source.cpp. What torch's own headers gave is recorded in addition_outcomes.json.

`python tests/support/facade/addition_cases.py LIBRARY` prints what a library gives. To record it anew, compile the
source with torch's headers, as the extension facade_additions, without NDEBUG: texts of errors would lack types.
"""

import gc
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

NAME = "facade_additions"


def _chain(call: Callable[[], object]) -> object:
    """Returns an exception with its cause."""
    try:
        return call()
    except Exception as error:
        cause = error.__cause__
        return repr(error), repr(cause), error.__context__ is cause, bool(cause and cause.__traceback__)


def _shown(error: Any) -> object:
    bases = [base.__name__ for base in error.__mro__]
    return error.__module__, error.__qualname__, bases


def _changed(thing: Any, use: Callable[[Any], object], read: Callable[[Any], object]) -> object:
    use(thing)
    return read(thing)


def _leaves(m: ModuleType, use: Callable[[], object]) -> object:
    """Returns how many C++ objects are left after a use."""
    gc.collect()
    before = m.alive()
    use()
    gc.collect()
    return m.alive() - before


def _of_several(m: ModuleType) -> dict[str, Any]:
    """Returns classes in Python with several bases of C++."""

    class Part(m.First, m.Second):  # type: ignore[name-defined,misc]
        def __init__(self, a: int, b: int) -> None:
            m.First.__init__(self, a)
            m.Second.__init__(self, b)

    class OnlyFirst(m.First, m.Second):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            m.First.__init__(self, 4)

    class OnlySecond(m.First, m.Second):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            m.Second.__init__(self, 4)

    class Below(Part):
        pass

    class More(m.Both, m.Third):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            m.Both.__init__(self, 1, 2)
            m.Third.__init__(self)

    return {"Part": Part, "OnlyFirst": OnlyFirst, "OnlySecond": OnlySecond, "Below": Below, "More": More}


def cases(m: ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields the name of each case, and the case."""
    thrown = (
        "refused",
        "worse",
        "coded",
        "not of the standard",
        "again",
        "domain",
        "length",
        "value",
        "check",
        "other",
    )
    for what in thrown:
        for n in (0, 2):
            yield f"throws {what} {n}", lambda what=what, n=n: m.throws(what, n)
        yield f"{what} is a LookupError", lambda what=what: m.caught(lambda: m.throws(what, 2))
        yield f"{what} through Python", lambda what=what: m.called(lambda: m.throws(what, 2))
    for name in ("RefusedError", "WorseError", "CodedError"):
        yield f"the class {name}", lambda name=name: _shown(getattr(m, name))
    yield "of a domain", lambda: _chain(lambda: m.throws("domain", 1))
    yield "a cause", lambda: _chain(lambda: m.throws("from", 1))
    yield "stored once", lambda: m.stored() is m.stored()

    box = SimpleNamespace
    texts = (
        "m.swapped((1, 2.5))", "m.swapped([1])", "m.swapped('ab')", "m.swapped(3)", "m.swapped(None)",
        "m.pair_by_value([3, 4])", "m.pair_by_pointer([3, 4])", "m.pair_by_pointer(None)", "m.changed((1, 2))",
        "m.pairs([(1, 2), [3, 4]])", "m.pairs([(1, 2), 3])", "m.pairs([])", "m.maybe(None)", "m.maybe((1, 2))",
        "m.maybe(3)", "m.either(3)", "m.either((3, 4))", "m.either('a')", "m.pointed(True)", "m.pointed(False)",
        "m.made()", "m.called_with(lambda pair: (pair[1], 5))", "m.called_with(lambda pair: 5)", "m.cast((5, 6))",
        "m.cast(5)", "m.by_default()", "m.by_default((1, 2))", "m.is_a((1, 2))",
        "m.boxed(box(value=torch.ones(2))).value",
        "m.boxed(box(value=[1, 2])).value", "m.boxed(box(value='text'))", "m.boxed(3)", "m.named('a')", "m.named(b'a')",
        "m.named(3)", "m.strictly_named('a')", "m.strict(1, 1)", "m.strict(3, 1)", "m.strict(1, -1)", "m.strict(1, -5)",
        "m.strict(None, 1)", "m.strict('a', 1)", "m.side('left')", "m.side('up')", "m.side(3)", "m.counts([1, 2])",
        "m.counts(['a'])", "m.counts(3)", "m.total(m.Lengths(3, 2))", "m.total([1, 2])", "m.total(None)",
        "len(m.lengths(4))", "m.total(m.lengths(4))", "m.grow([1])", "m.plain([1, 2])",
        "m.total_of_table({})", "m.total_of_table(m.Table())", "len(m.Lengths())",
        "_changed(m.Lengths(), m.grow, m.total)", "_changed(m.Lengths(), m.grow_pointed, m.total)",
        "_changed(m.Lengths(), lambda l: l.append(3), m.total)", "m.Lengths([1])",
        "_changed(m.Table(), lambda t: t.put('a', 1), m.total_of_table)",
        "m.Both(3, 4).a", "m.Both(3, 4).b", "m.Both(3, 4).who()", "m.Both(3, 4).twice()", "m.Both()",
        "m.first_of(m.Both(3, 4))", "m.second_of(m.Both(3, 4))", "m.second_at(m.Both(3, 4))", "m.second_at(None)",
        "m.third_of(m.Both(3, 4))", "m.both_of(m.Both(3, 4))", "m.both_of(m.First())", "m.second_of(m.First())",
        "m.first_of(m.Deeper())", "m.second_of(m.Deeper())", "m.third_of(m.Deeper())", "m.both_of(m.Deeper())",
        "_changed(m.Both(3, 4), lambda both: setattr(both, 'b', 9), m.second_of)",
        "_changed(m.Deeper(), lambda deeper: setattr(deeper, 'c', 9), m.third_of)",
        "_changed(m.Deeper(), lambda deeper: setattr(deeper, 'new', 9), lambda deeper: deeper.new)",
        "type(m.as_first()).__name__", "m.as_first().twice()", "m.second_of(m.as_first())",
        "[base.__name__ for base in m.Deeper.__mro__]", "m.Both.__mro__[-2].__module__",
        "Part(3, 4).twice()", "Part(3, 4).who()", "m.first_of(Part(3, 4))", "m.second_of(Part(3, 4))",
        "m.both_of(Part(3, 4))", "OnlyFirst()", "OnlySecond()", "m.second_of(Below(3, 4))", "m.first_of(More())",
        "m.second_of(More())", "m.third_of(More())", "m.both_of(More())", "m.Deeper().__init__()",
        "[item.n for item in m.Shelf()]", "[item.n for item in m.Shelf().whole()]",
        "_changed(m.Shelf(), lambda shelf: setattr(next(iter(shelf)), 'n', 9), lambda shelf: [i.n for i in shelf])",
        "_changed(m.Shelf(), lambda shelf: setattr(next(shelf.copies()), 'n', 9), lambda shelf: [i.n for i in shelf])",
        "_changed(iter(m.Shelf()), list, lambda rest: [list(rest), next(rest, 'none'), iter(rest) is rest])",
        "(lambda shelf: [list(shelf.prices()), list(shelf.names()), list(shelf.values())])(m.Shelf())",
        "list(m.countdown(3))", "list(m.countdown(0))", "next(m.countdown(0))", "type(m.countdown(1)).__name__",
        "m.countdown(1) == m.countdown(1)", "type(m.countdown(1)).__module__", "m.countdown(1).__iter__.__doc__",
        "m.countdown(1).__next__.__doc__",
        "type(m.countdown(1)) is type(m.countdown(2))", "type(iter(m.Shelf())) is type(m.Shelf().whole())",
        "m.Shelf.__iter__.__doc__", "m.Shelf.prices.__doc__",
        "m.storage(torch.ones(3))", "m.storage(torch.zeros(0))", "m.storage(torch.ones(4, dtype=torch.int16)[3:])",
    )  # fmt: skip
    names = {"m": m, "box": box, "torch": torch, "_changed": _changed, **_of_several(m)}
    for text in texts:
        yield text, lambda text=text: eval(text, names)
    for text in ("m.Both(3, 4)", "m.Deeper()", "Part(3, 4)", "m.as_first()", "More()"):
        yield f"{text} leaves", lambda text=text: _leaves(m, lambda: eval(text, names))
    for name in (
        "swapped", "pair_by_pointer", "pairs", "maybe", "either", "pointed", "called_with", "by_default", "boxed",
        "named", "strict", "side", "counts", "total", "lengths", "plain", "total_of_table", "second_at", "as_first",
        "countdown",
    ):  # fmt: skip
        yield f"documentation of {name}", lambda name=name: getattr(m, name).__doc__


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from facade.module_record import load
    from facade.outcomes import of_call

    found = {name: of_call(case) for name, case in cases(load(Path(sys.argv[1]), NAME))}
    print(re.sub(r"0x[0-9a-f]+", "0x", json.dumps(found)))
