"""Lists of cores as text: what parses, and what is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opforge.accelerator.host.files import parse_list
from opforge.errors import SettingError
from opforge.launch.core_list import format_list, parse_core_list


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-3", "1-2-3", "0-99999999999"])
def test_a_list_that_does_not_parse_is_refused(text):
    with pytest.raises(SettingError, match="expected numbers of cores and ranges of them, such as 0-51,56-107"):
        parse_core_list(text)


def test_ranges_and_single_numbers_are_parsed():
    assert parse_core_list("0-2, 8,2") == (0, 1, 2, 8)


@given(st.sets(st.integers(0, 300)))
def test_a_written_list_parses_to_the_same_numbers(numbers):
    assert parse_list(format_list(numbers)) == tuple(sorted(numbers))
