"""The schemas of what is kept and what travels, for other programs: docs/reference/schemas.

`python docs/opforge_docs/schemas.py` writes them from the declarations in the code. A test fails if they differ.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from opforge.builders.lookup import tuning_results as tuned
from opforge.cache.records import schemas
from opforge.cache.schema import Schema
from opforge.jits import page
from opforge.packages.choose import candidate
from opforge.packages.form import metadata, properties
from opforge.packages.installed import releases
from opforge.packages.project import lock_file
from opforge.packages.registry import release
from opforge.programs import form
from opforge.remote import claims, op_statements, removals, statements, topics, withdrawal_lists
from opforge.remote.signatures import seen

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "reference", "schemas")
PUBLISHED: Mapping[str, Schema] = {
    "record": schemas.RECORD,
    "inputs": schemas.INPUTS,
    "fetched": schemas.FETCHED,
    "statement": statements.SCHEMA,
    "op": op_statements.FACTS,
    "page": page.SCHEMA,
    "jit": page.FACTS,
    "page-index": page.INDEXED,
    "program": form.FACTS,
    "package": release.FACTS,
    "tuned": tuned.SCHEMA,
    "tuned-row": tuned.ROW,
    "candidate": candidate.SCHEMA,
    "properties": properties.SCHEMA,
    "topic": topics.SCHEMA,
    "claim": claims.CLAIM,
    "removal": removals.NOTE,
    "x-opforge": metadata.OURS_SCHEMA,
    "lock": lock_file.SCHEMA,
    "locked": lock_file.KERNEL,
    "installed": releases.SCHEMA,
    "installed-variant": releases.VARIANT,
    "seen": seen.SCHEMA,
    "withdrawals": withdrawal_lists.SCHEMA,
}
"""By the name of the file, which formats.md links above the table of its fields."""


def content(name: str) -> str:
    """Returns the content of a schema's file."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name}
    return json.dumps({**head, **PUBLISHED[name]}, indent=1, sort_keys=True) + "\n"


def main() -> None:
    """Writes all files."""
    os.makedirs(FOLDER, exist_ok=True)
    for name in PUBLISHED:
        with open(os.path.join(FOLDER, f"{name}.schema.json"), "w", encoding="utf-8") as file:
            file.write(content(name))


if __name__ == "__main__":
    main()
