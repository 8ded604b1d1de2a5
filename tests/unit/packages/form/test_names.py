"""Names of packages: what is refused, with its text."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, strategies

from opforge.errors import KernelFormatError
from opforge.packages.form import names


@pytest.mark.parametrize(
    "name", ["acme/relu", "a/b2", "kernels-community/flash_attn.2", "0x/f-1", f"{'a' * 64}/{'b' * 64}"]
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
        ("acme/re_lu_", "is not a name that can be used"),
        ("acme/.relu", "is not a name that can be used"),
        ("acme/re..lu", "is not a name that can be used"),
        ("acme/con.v1", "holds 'con', which names a device on Windows"),
        ("acme/relu-", "is not a name that can be used"),
        ("con/relu", "holds 'con', which names a device on Windows"),
        ("acme/lpt1", "holds 'lpt1', which names a device on Windows"),
        ("\u0430cme/relu", "holds '\\u0430', which only looks like an ASCII letter"),
        ("acme/rel\uff55", "holds '\\uff55', which only looks like an ASCII letter"),
        (f"acme/{'r' * 65}", "is not a name that can be used"),
        (7, "7 is not a text"),
        (None, "None is not a text"),
    ],
)
def test_a_name_is_refused_with_its_reason(name, text):
    with pytest.raises(KernelFormatError) as error:
        names.check(name)
    assert text in str(error.value)
    assert "Expected ORG/NAME in lower-case ASCII letters, digits, '-', '_' and '.', such as acme/fast-relu" in str(
        error.value
    )


def test_a_long_name_is_shortened_in_the_message():
    with pytest.raises(KernelFormatError) as error:
        names.check("x" * 10_000)
    assert len(str(error.value)) < 400


@given(strategies.text(alphabet=string.printable + "\u0430\u2024/..-_", max_size=12))
def test_what_is_accepted_is_safe_as_a_path(name):
    try:
        names.check(name)
    except KernelFormatError:
        return
    organization, last = name.split("/")
    for part in (organization, last):
        letters = part.translate({ord(char): "a" for char in "-_."})
        assert part.isascii() and letters.isalnum() and part == part.lower()
        assert part[0] not in "-_." and part[-1] not in "-_." and ".." not in part


def test_a_repository_is_known_by_small_letters():
    assert names.of_repository("Kernels-Community/Flash_Attn", "x") == "kernels-community/flash_attn"
    with pytest.raises(KernelFormatError, match="which only looks like an ASCII letter"):
        names.of_repository("acme/rel\u212a", "x")  # the sign of Kelvin, whose small letter is an ASCII one


@pytest.mark.parametrize("name", ["re_lu", "re.lu", "1relu", "r"])
def test_the_name_of_a_module_has_no_other_sign_than_a_hyphen(name):
    with pytest.raises(KernelFormatError, match=r"Expected a name in lower-case ASCII letters, digits and '-'"):
        names.check_short(name, "x")


def test_the_python_name_is_an_identifier():
    assert names.python_name("acme/fast-relu") == "fast_relu" and names.python_name("acme/fast-relu").isidentifier()
