"""The records of libraries that were just built fit the schema that the documentation has of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import sample_ops

from opforge import OpBuilder

pytestmark = pytest.mark.compile
SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "reference" / "schemas" / "record.schema.json"
jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture(scope="module")
def validator():
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """The record of a library of plain C, as it is on disk."""
    entry = sample_ops.plain_op(tmp_path_factory.mktemp("plain"))().build()
    return json.loads((Path(entry.folder) / "record.json").read_text())


def problems(validator, record):
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(record)]


def test_the_record_of_a_plain_library_fits(validator, record):
    assert problems(validator, record) == []


def test_the_record_of_a_library_on_the_stable_abi_fits(validator, tmp_path, own_store, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-DSOMETHING")
    builder: OpBuilder = sample_ops.stable_op(tmp_path, requires_torch=">=2.10")()
    entry = builder.build()
    record = json.loads((Path(entry.folder) / "record.json").read_text())
    assert record["user_flags"] and record["shims"] and record["requires"]
    assert problems(validator, record) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("sha256", "0"), ("abi", "other"), ("file", "../lib.so"), ("size", "12"), ("inputs", {}), ("format", 2)],
)
def test_a_damaged_record_does_not_fit(validator, record, field, value):
    assert problems(validator, {**record, field: value})
    assert problems(validator, {name: other for name, other in record.items() if name != field})


def test_an_unknown_field_does_not_fit(validator, record):
    assert problems(validator, {**record, "new": 1})
