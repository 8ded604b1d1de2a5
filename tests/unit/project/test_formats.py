"""Formats: the page and the published schemas are those of the code, so another program can read a store by them."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
from support import scripts

DOCS = Path(__file__).resolve().parents[3] / "docs"
published = scripts.load("docs/opforge_docs/schemas.py")
PAGE = (DOCS / "reference" / "formats.md").read_text()
WRITE = "run: python docs/opforge_docs/schemas.py"


def fields_of_table(name):
    """Returns the fields in the first table below the link to a schema's file."""
    assert PAGE.count(f"](schemas/{name}.schema.json)") == 1, f"formats.md must link schemas/{name}.schema.json once"
    _before, _link, after = PAGE.partition(f"](schemas/{name}.schema.json)")
    table = re.search(r"^\|.*?\n\n", after, re.MULTILINE | re.DOTALL)
    rows = table[0].strip().splitlines()[2:]
    return sorted(field for row in rows for field in re.findall(r"`([^`]+)`", row.split("|")[1]))


@pytest.mark.parametrize("name", published.PUBLISHED)
def test_a_published_schema_is_that_of_the_code(name):
    schema = published.PUBLISHED[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    path = Path(published.FOLDER) / f"{name}.schema.json"
    assert path.is_file() and path.read_text() == published.content(name), f"{path.name} is not up to date: {WRITE}"


@pytest.mark.parametrize("name", [name for name in published.PUBLISHED if name not in ("op", "lock", "page-index")])
def test_the_page_states_each_field_and_no_other(name):
    """An op's facts, a lock file and a list of entries have no table: the text names their few fields."""
    assert fields_of_table(name) == sorted(published.PUBLISHED[name]["properties"])


def test_no_other_file_is_published():
    files = {path.name for path in Path(published.FOLDER).iterdir()}
    assert files == {f"{name}.schema.json" for name in published.PUBLISHED}
