"""How `opforge cache explain` describes one difference."""

from __future__ import annotations

import pytest

from opforge.cache.maintenance.explain import Difference
from opforge.cli.cache.explain import describe


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        (Difference("compile_flags", ["-O3"], ["-O2", "-g"]), "compile_flags: added -O2 -g, removed -O3"),
        (Difference("include", ["a", "b"], ["b", "a"]), "include: the order has changed"),
        (Difference("defines", [], [["N", "4"], ["M", ""]]), "defines: added N=4 M"),
        (Difference("toolchain.version", "g++ 12", "g++ 13"), "toolchain.version: was g++ 12, is g++ 13"),
        (Difference("environment.CPATH", None, "/a"), "environment.CPATH: is new: /a"),
        (Difference("environment.CPATH", "/a", None), "environment.CPATH: was /a"),
    ],
)
def test_a_difference_in_words(difference, text):
    assert describe(difference) == text
