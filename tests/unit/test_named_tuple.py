"""Our NamedTuple gives the classes that typing's gives."""

from __future__ import annotations

import copy
import pickle
import typing

import pytest

from opforge.named_tuple import NamedTuple


class Ours(NamedTuple):
    """A pair."""

    name: str
    size: int = 1
    """Bytes."""

    @property
    def twice(self) -> int:
        """Returns twice the size."""
        return 2 * self.size

    def __str__(self) -> str:
        return f"{self.name}!"


class Theirs(typing.NamedTuple):
    """A pair."""

    name: str
    size: int = 1

    @property
    def twice(self) -> int:
        """Returns twice the size."""
        return 2 * self.size

    def __str__(self) -> str:
        return f"{self.name}!"


@pytest.mark.parametrize(
    "name", ["__doc__", "__module__", "_fields", "_field_defaults", "__bases__", "__slots__", "__match_args__"]
)
def test_the_class_is_the_same(name):
    assert getattr(Ours, name) == getattr(Theirs, name)


def test_its_annotations_are_those_of_the_class():
    assert typing.get_type_hints(Ours) == typing.get_type_hints(Theirs) == {"name": str, "size": int}
    assert Ours.__qualname__ == "Ours"


def test_its_values_behave_the_same():
    ours, theirs = Ours("a"), Theirs("a")
    assert ours == theirs == ("a", 1) and hash(ours) == hash(theirs)
    assert str(ours) == "a!" and repr(ours) == "Ours(name='a', size=1)" and ours.twice == 2
    assert ours._replace(size=3) == Ours("a", 3) and ours._asdict() == {"name": "a", "size": 1}
    assert pickle.loads(pickle.dumps(ours)) == copy.deepcopy(ours) == ours
    with pytest.raises(TypeError, match="name"):
        Ours()
