"""Versions and ranges of packages."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies

from opforge.errors import KernelFormatError
from opforge.packages.form import version
from opforge.packages.form.version import Version

VERSIONS = strategies.builds(Version, strategies.integers(0, 10**9 - 1), strategies.integers(0, 10**9 - 1))


@pytest.mark.parametrize(("text", "expected"), [("2", (2, 0)), ("2.3", (2, 3)), (7, (7, 0)), ("0", (0, 0))])
def test_a_version_is_parsed(text, expected):
    assert version.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", "v2", "2.", "02", "2.03", "2.3.4", "-1", -1, True, None, 2.5, "2\n", "\u0662", "1" * 10]
)
def test_another_text_is_refused(text):
    with pytest.raises(KernelFormatError, match=r"cannot be used. Expected a version such as 2 or 2\.3"):
        version.parse(text, "kernel.toml")


@pytest.mark.parametrize("parse", [version.parse, version.parse_range])
def test_a_number_without_quotes_is_told_from_a_version(parse):
    with pytest.raises(KernelFormatError, match=r"2\.3 cannot be used\. Expected a version .*, in quotes\."):
        parse(2.3, "kernel.toml: version")


@given(VERSIONS)
def test_a_version_is_read_as_it_is_written(number):
    assert version.parse(str(number)) == number
    exact = f"{number.interface}.{number.rebuild}"
    assert version.parse(exact) == number and str(version.parse(exact)) == exact
    assert version.parse(exact).canonical == number.canonical


@given(VERSIONS, VERSIONS)
def test_conditions_follow_the_order_of_versions(number, other):
    exact = f"{other.interface}.{other.rebuild}"
    assert (number in version.parse_range(f">={exact}")) == (number >= other)
    assert (number in version.parse_range(f"<{exact}")) == (number < other)
    assert (number in version.parse_range(f">{exact}")) == (number > other)
    assert (number in version.parse_range(f"<={exact}")) == (number <= other)
    assert (number in version.parse_range(f"!={exact}")) == (number != other)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("2", ["2", "2.7"], ["1.9", "3"]),
        (2, ["2", "2.7"], ["1.9", "3"]),
        ("2.3", ["2.3"], ["2", "2.4"]),
        (">=2.1,<3", ["2.1", "2.99"], ["2", "3"]),
        (">2", ["3"], ["2", "2.9"]),
        ("<=2", ["2.9", "0"], ["3"]),
        (">= 1 , !=1.4", ["1", "1.5", "9"], ["0.9", "1.4"]),
        (None, ["0", "99"], []),
    ],
)
def test_a_range_holds_these_versions(text, inside, outside):
    numbers = version.parse_range(text)
    assert [number for number in inside if version.parse(number) not in numbers] == []
    assert [number for number in outside if version.parse(number) in numbers] == []


@pytest.mark.parametrize("text", ["", ",", ">=", "~=2", "2,", ">=2.x", "=2", True, ",".join(["2"] * 17)])
def test_another_range_is_refused(text):
    with pytest.raises(KernelFormatError, match=r"Expected a version or a range, such as 2, 2\.3 or >=2\.1,<3"):
        version.parse_range(text)
