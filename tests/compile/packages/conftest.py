"""Two releases of a package with a library, packed once."""

from __future__ import annotations

import sys

import pytest
from support.kernels.projects import scale_project
from support.processes import forked_python

from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading


@pytest.fixture(scope="session")
def scale_releases(tmp_path_factory):
    """The folders of acme/scale 2.3, which doubles, and 3, which triples; each has a variant for this processor."""
    folder = tmp_path_factory.mktemp("scale")
    for number, factor in (("2.3", 2), ("3", 3)):
        scale_project(folder / number, version=number, factor=factor)
        pack(reading.read(str(folder / number)), str(folder / number), Options(tried=False))
    return {number: str(folder / number) for number in ("2.3", "3")}


@pytest.fixture
def forked_children(monkeypatch):
    """The processes in which a package is tried have imported torch already."""
    monkeypatch.setattr(sys, "executable", forked_python.python())
