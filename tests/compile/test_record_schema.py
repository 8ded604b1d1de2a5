"""The records of libraries that were just built fit the schema that the documentation has of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import sample_ops

from opforge.cache.records.entry import is_record

pytestmark = pytest.mark.compile
SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "reference" / "record.schema.json"
Validator = pytest.importorskip("jsonschema").Draft202012Validator


@pytest.fixture(scope="module")
def validator():
    schema = json.loads(SCHEMA.read_text())
    Validator.check_schema(schema)
    return Validator(schema)
