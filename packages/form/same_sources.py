"""Whether two variants were packed from the same files: only then can they be variants of one release."""

from __future__ import annotations

from collections.abc import Mapping

from opforge.builders.declaration.kernel_roots import OWN
from opforge.cache import schema
from opforge.cache.records import schemas

from .metadata import Metadata

GENERATED = "_ops.py"


def difference(one: Metadata, other: Metadata) -> str:
    """Returns a file that two variants were packed from, with different contents; "" if there is none.

    It is a file of the package's Python, or of the op's own sources and headers. A file that only one of them has is no
    difference: each device has sources of its own.
    """
    own, others = _packed_from(one), _packed_from(other)
    return next(
        (path for (kind, path), digest in sorted(own.items()) if others.get((kind, path), digest) != digest), ""
    )


def _packed_from(stated: Metadata) -> Mapping[tuple[str, str], str]:
    """Returns the digest of each file by its kind and path: the package's own, and what the library was built from."""
    written = (GENERATED, stated.opforge.get("library"))
    files = {("", path): digest for path, digest in (stated.files or {}).items() if path not in written}
    record = stated.opforge.get("record")
    if record is not None and not schema.problem(record, schemas.RECORD):  # another opforge's are not read
        files |= {("op", path): digest for root, path, digest, *_rest in record["inputs"]["files"] if root == OWN}
    return files
