"""Files of a store with one bit changed, for each kind: a client gets what was published or nothing, with a reason.

A short run changes some bytes; in the third tier, as `make torture` runs it, each byte of the small files and
2,000 of the blobs.
"""

from __future__ import annotations

import random
import resource

import pytest
from support import tiers

LONG = tiers.is_long()
SMALL, BLOB = (10**9, 2000) if LONG else (12, 8)
"""How many bytes of each file are changed."""
MAX_KILOBYTES = 256 << 10
pytestmark = [pytest.mark.compile, pytest.mark.timeout(3600 if LONG else 300)]


def flips(chance, size, count):
    """Yields the places that are changed, and a mask of one bit for each."""
    places = range(size) if size <= count else sorted(chance.sample(range(size), count))
    for at in places:
        yield at, 1 << chance.randrange(8)


def test_a_bit_that_changed_is_never_accepted(shop):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seed = tiers.seed()
    chance, refused = random.Random(seed), 0
    assert shop.take() in shop.genuine
    files = shop.files()
    assert any("blobs" in path.parts for path in files)
    for path in files:
        content = path.read_bytes()
        path.chmod(0o644)
        for at, mask in flips(chance, len(content), BLOB if "blobs" in path.parts else SMALL):
            changed = bytearray(content)
            changed[at] ^= mask
            path.write_bytes(changed)
            taken = shop.take()
            assert taken is None or taken in shop.genuine, f"seed {seed}: {path}, bit {mask} of byte {at}"
            refused += taken is None
        path.write_bytes(content)
    assert refused and shop.take() in shop.genuine
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_KILOBYTES
