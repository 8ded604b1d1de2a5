"""Names of packages: what is refused, with its text."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, strategies

from opforge.errors import KernelFormatError
from opforge.packages.form import names


@pytest.mark.parametrize(
    "name", ["acme/relu", "a/b2", "kernels-community/activation", "0x/f-1", f"{'a' * 64}/{'b' * 64}"]
)
def test_a_name_is_accepted(name):
    assert names.check(name) == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("relu", "'relu' is not two parts with one '/'"),
        ("a/b/c", "is not two parts with one '/'"),
        ("../x", "'../x' is not a name that can be used"),
        ("acme/..", "is not a name that can be used"),
        ("acme/", "is not a name that can be used"),
        ("/relu", "is not a name that can be used"),
        ("acme/relu\n", "is not a name that can be used"),
        ("Acme/relu", "is not a name that can be used"),
        ("acme/1relu", "is not a name that can be used"),
        ("acme/re_lu", "is not a name that can be used"),
        ("acme/relu-", "is not a name that can be used"),
        ("con/relu", "holds 'con', which names a device on Windows"),
        ("acme/lpt1", "holds 'lpt1', which names a device on Windows"),
        ("\u0430cme/relu", "holds '\\u0430', which is no ASCII letter although it may look like one"),
        ("acme/rel\uff55", "holds '\\uff55', which is no ASCII letter"),
        (f"acme/{'r' * 65}", "is not a name that can be used"),
        (7, "7 is not a text"),
        (None, "None is not a text"),
    ],
)
def test_a_name_is_refused_with_its_reason(name, text):
    with pytest.raises(KernelFormatError) as error:
        names.check(name)
    assert text in str(error.value)
    assert "Expected ORG/NAME in lower-case ASCII letters, digits and '-', such as acme/fast-relu" in str(error.value)


def test_a_long_name_is_shortened_in_the_message():
    with pytest.raises(KernelFormatError) as error:
        names.check("x" * 10_000)
    assert len(str(error.value)) < 400


@given(strategies.text(alphabet=string.printable + "\u0430\u2024/..-", max_size=12))
def test_what_is_accepted_is_safe_as_a_path(name):
    try:
        names.check(name)
    except KernelFormatError:
        return
    organization, last = name.split("/")
    assert all(
        part.isascii() and part.replace("-", "a").isalnum() and part == part.lower() for part in (organization, last)
    )


def test_the_python_name_is_an_identifier():
    assert names.python_name("acme/fast-relu") == "fast_relu" and names.python_name("acme/fast-relu").isidentifier()
