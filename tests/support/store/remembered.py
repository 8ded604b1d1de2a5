"""What is remembered, as a test changes it: read, and written as somebody would who knows the format."""

from __future__ import annotations

import json
from contextlib import suppress

from opforge.foundation import remembered_values

FIELDS = ("paths", "links", "value")


def read(path):
    """Returns the fields of a remembered value's file, by name."""
    return dict(zip(FIELDS, json.loads(path.read_text())[1], strict=True))


def write(path, fields, is_sealed=True):
    """Writes fields to a remembered value's file; unless `is_sealed` is false, with the digest that they have now."""
    text = json.dumps([fields.get(name) for name in FIELDS] if isinstance(fields, dict) else fields).encode() + b"]"
    digest = path.read_bytes()[2 : remembered_values.HEAD - 2]
    if is_sealed:
        with suppress(*remembered_values.UNREADABLE):
            digest = remembered_values.digest_of(
                path.stem, text, remembered_values.stamps_of(fields["paths"], fields["links"])
            )
    path.write_bytes(b'["%s",%s' % (digest, text))
