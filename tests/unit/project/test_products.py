"""Which cases of stacked parameters `make test` and `make test-all` try: each value, and the last ones together."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

from support import tiers


class Item(SimpleNamespace):
    """The part of a test that is read."""

    __hash__ = object.__hash__


def cases_of(*axes, marks=()):
    """Returns the tests that pytest makes of stacked parameters, each axis as (names, values)."""
    items = []
    for number, values in enumerate(product(*(values for _names, values in axes))):
        params = {}
        for (names, _values), value in zip(axes, values, strict=True):
            params.update(zip(names.split(","), value if "," in names else [value], strict=True))
        # pytest numbers the combinations: each parameter has the same number.
        callspec = SimpleNamespace(params=params, indices=dict.fromkeys(params, number))
        items.append(
            Item(
                name=str(values),
                originalname="test",
                parent=None,
                callspec=callspec,
                iter_markers=lambda _name: [SimpleNamespace(args=(names, values)) for names, values in axes],
                get_closest_marker=lambda name: name in marks or None,
            )
        )
    return items


def left(items):
    return [item.name for item in tiers.without_products(items)]


def test_each_value_is_tried_and_the_last_ones_together():
    items = cases_of(("order", ["first", "last"]), ("name", ["a", "b", "c"]))
    kept = [("first", "a"), ("last", "b"), ("first", "c"), ("last", "c")]
    assert sorted(left(items)) == sorted(map(str, kept))


def test_values_of_several_names_are_one_parameter():
    rows = [("a", object()), ("b", object()), ("c", object())]
    items = cases_of(("x,y", rows), ("z", ["d", "e", "f"]))
    assert len(left(items)) == 3


def test_one_parameter_alone_and_a_test_with_its_mark_are_left_whole():
    assert len(left(cases_of(("name", ["a", "b", "c"])))) == 3
    items = cases_of(("order", ["first", "last"]), ("name", ["a", "b", "c"]), marks=["every_combination"])
    assert len(left(items)) == 6
