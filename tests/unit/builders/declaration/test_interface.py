"""The number of the interface between libraries and the loader rises when the headers of `opforge_abi` change."""

from __future__ import annotations

import hashlib
import pathlib
import re

import pytest

from opforge.builders.declaration import abi
from opforge.builders.declaration.kernel_roots import OPFORGE_ABI

DIGESTS = {1: "e1f5ba3220a3ec42", 2: "d8ab8cf62bf296a0"}
"""Number -> the digest of the headers without comments and white space. Before a release, change the last one; after
it, add a number here and in builders/declaration/abi.py."""


def tokens_digest(folder):
    """Returns the digest of all headers below a folder, without their comments and white space."""
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(folder).rglob("*.h")):
        text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", path.read_text(), flags=re.DOTALL)
        digest.update(f"{path.relative_to(folder)}\n{' '.join(text.split())}\n".encode())
    return digest.hexdigest()[:16]


def test_the_headers_are_those_of_the_present_number():
    assert max(DIGESTS) == abi.INTERFACE
    assert tokens_digest(OPFORGE_ABI.path) == DIGESTS[abi.INTERFACE], (
        "the headers below ops/csrc/abi have changed: see DIGESTS in this file"
    )


def test_a_comment_changes_no_number_and_a_token_does(tmp_path):
    (tmp_path / "a.h").write_text("int a;  // one\n")
    first = tokens_digest(tmp_path)
    (tmp_path / "a.h").write_text("/* two */ int\na;\n")
    assert tokens_digest(tmp_path) == first
    (tmp_path / "a.h").write_text("int b;")
    assert tokens_digest(tmp_path) != first


@pytest.mark.parametrize("number", [abi.INTERFACE + 1, 0, None, "1"])
def test_a_library_of_another_interface_is_not_loaded(number):
    problem = abi.interface_problem({"interface": number}, abi.LOADED_INTERFACES)
    assert problem and f"(interface {number}; this one loads 1 to {abi.INTERFACE})" in problem
    assert abi.interface_problem({"interface": abi.INTERFACE}) is None
