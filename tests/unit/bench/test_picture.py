"""The picture of a run in the documents."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from support import scripts

pytest.importorskip("matplotlib", reason="pip install 'opforge[bench]'")
PICTURES = Path(__file__).resolve().parents[3] / "docs" / "pictures"


def texts(svg):
    """Returns the words of an SVG, which are text in it."""
    return [element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("}text")]


def test_the_picture_in_the_documents_shows_the_run_beside_it():
    script = scripts.load("docs/pictures/bench.py")
    drawn, stored = (texts(text) for text in (script.picture(PICTURES / "bench.json"), read(PICTURES / "bench.svg")))
    assert drawn == stored and {"opforge", "copy (baseline)", "64 Ki", "16 Mi"} <= set(drawn)
    assert script.shortened(PICTURES / "bench.json") == read(PICTURES / "bench.json")


def read(path):
    return path.read_text(encoding="utf-8")
