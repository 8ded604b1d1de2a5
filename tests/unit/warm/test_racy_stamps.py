"""Which stamps may hide a change: those of files that changed in the last seconds, by the clock of the system."""

from __future__ import annotations

import pytest

from opforge.memory import RACY_NS, FlatStamps

NOW = 10**18


@pytest.mark.parametrize(
    ("modified", "changed", "is_racy"),
    [
        (NOW - 10 * RACY_NS, NOW - 10 * RACY_NS, False),
        (NOW - 10 * RACY_NS, NOW - 1, True),
        (NOW - 1, NOW - 10 * RACY_NS, True),
        (NOW + 10**15, NOW - 10 * RACY_NS, False),  # a program has set it: the time of change is the system's
        (NOW + 10**15, NOW - 1, True),
        (NOW + 10**15, NOW + 10**15, True),
    ],
)
def test_a_time_of_modification_in_the_future_hides_no_change(modified, changed, is_racy):
    assert FlatStamps(["/a"], [1, modified, changed, 7]).is_racy(NOW) is is_racy
