"""The tunable values of an op: names, each with the values that `opforge tune` tries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from opforge.errors import BuilderError

EXPECTED = 'Expected names with numbers to try, such as {"block": (256, 512), "threads": (1, 2)}'
MOST_NAMES, MOST_CANDIDATES = 8, 256
LARGEST = (1 << 62) - 1


def checked(builder: str, declared: Any) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Returns an op's attribute `tunable`. Raises BuilderError if its value is invalid."""
    if not isinstance(declared, Mapping):
        raise BuilderError(builder, f"tunable={declared!r}", EXPECTED)
    for name, values in declared.items():
        is_list = isinstance(values, (tuple, list)) and len(values) > 0
        if not isinstance(name, str) or not name.isidentifier() or not is_list or not all(map(_is_number, values)):
            raise BuilderError(builder, f"tunable[{name!r}]={values!r}", EXPECTED)
    count = sum(1 for _ in itertools.islice(candidates(declared), MOST_CANDIDATES + 1))
    if len(declared) > MOST_NAMES or count > MOST_CANDIDATES:
        shown = f"{len(declared)} names" if len(declared) > MOST_NAMES else f"more than {MOST_CANDIDATES} combinations"
        advice = f"Name at most {MOST_NAMES}, with {MOST_CANDIDATES} combinations: each is timed"
        raise BuilderError(builder, f"tunable has {shown}", advice)
    return tuple((name, tuple(values)) for name, values in declared.items())


def _is_number(value: Any) -> bool:
    return type(value) is int and -LARGEST <= value <= LARGEST


def candidates(declared: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """Yields every combination of the values that are tried."""
    for values in itertools.product(*declared.values()) if declared else ():
        yield dict(zip(declared, values, strict=True))
