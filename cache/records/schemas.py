"""The schemas of an entry's files: `record.json`, `build.json`, and the offer beside a fetched entry."""

from __future__ import annotations

from opforge.cache.schema import (
    FLAG,
    KEY,
    NUMBER,
    SHA256,
    TEXT,
    TEXTS,
    Schema,
    choice,
    items,
    record,
    row,
    table,
    text,
    version,
    whole,
)
from opforge.foundation import formats

from .entry import BY_VARIABLES

NAMED = table(TEXT)
PEAKS = table(whole(1), most=100_000)
"""The bytes of memory that the compiler of each source needed, by root and path."""
PATHS = items(row(TEXT, TEXT))
INPUTS = record(
    {
        "files": items(row(TEXT, TEXT, TEXT, TEXT)),
        "names": TEXTS,
        "searched": PATHS,
        "present": PATHS,
        "folders": PATHS,
        "trusted_trees": items(row(TEXT, TEXT, TEXT)),
        "compiler_folders": PATHS,
        "answers": items(row(TEXT, PATHS)),
    }
)
"""The inputs of a build: `Inputs.to_json`."""
RECORD_FIELDS: dict[str, Schema] = {
    "format": version(formats.RECORD),
    "op": text(r"[^\W\d]\w*", "a name"),
    "abi": choice("torch-stable", "torch", "torch-facade", "c"),
    "target": text(r"[a-z0-9_]+(:.+)?", "a device, or a device and its architectures"),
    "file": text(r"[^/\0]+\.so", "the name of a library"),
    "size": whole(1),
    "sha256": SHA256,
    "key": KEY,
    "plan": KEY,
    "description": KEY,
    "inputs_key": KEY,
    "record_key": KEY,
    "torch_target": TEXT,
    "built_with_torch": TEXT,
    "requires": NAMED,
    "interface": whole(),
    "portable": FLAG,
    "user_flags": NAMED,
    "python_module": FLAG,
    "machine": TEXT,
    "exports": TEXTS,
    "needs": TEXTS,
    "shims": TEXTS,
    "floors": table(text(r"[0-9.]+", "a version such as 2.28")),
    "seconds": NUMBER,
    "inputs": INPUTS,
}
FOUND_BY_VARIABLES = record({"variables": NAMED, "inputs": INPUTS})
RECORD = record(RECORD_FIELDS, optional={"peaks": PEAKS, BY_VARIABLES: FOUND_BY_VARIABLES})
"""The properties and requirements of a library. All fields are required but `peaks`, the sources whose compilers need
much memory, and `by_variables`, the libraries that were found by CPATH or another variable."""
BUILD = record({"inputs": INPUTS}, is_open=True)
"""How an entry was built. The other fields are shown, and decide nothing."""
STAMP = items(whole(-(1 << 63), (1 << 63) - 1), 16)
FETCHED = record(
    {
        "format": version(formats.FETCHED),
        "remote": TEXT,
        "offer": text(r"[\s\S]+", "the signed bytes"),
        "signatures": TEXTS,
        "signer": TEXT,
        "trust": STAMP,
    }
)
"""The record of a fetched entry's offer."""
OBJECT_FILE = record({"key": KEY, "inputs": INPUTS})
"""The inputs of an object file."""
FAILURE = record(
    {
        "kind": TEXT,
        "attributes": record({"message": TEXT}, is_open=True),
        "state": TEXT,
        "id": TEXT,
        "read": items(TEXT),
        "stamps": items(whole(-(1 << 63), (1 << 64) - 1)),
    }
)
"""A build's error, for the processes that wait for it."""
