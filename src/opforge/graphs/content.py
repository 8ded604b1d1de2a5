"""The entries of torch.compile in pages: torch's artifacts and inductor's C++ libraries.

    KIND/KEY            `artifact`: one of torch's artifacts, as its own serializer writes it
    KIND/KEY/CONTENT    the same, of a kind of which several may have one key
    library/KEY         `KEY.so`

KEY is a digest of torch's key, or opforge's key of a library; CONTENT is a digest. Artifacts hold pickles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from opforge.cache.keys import bytes_digest
from opforge.jits.page import Files
from opforge.torch_internals import inductor

ADAPTER, HOLDS = "inductor", "pickle"
ARTIFACT, LIBRARY = "artifact", "library/"
CARRIES = rf"{ARTIFACT}|\w{{1,100}}\.so"
DIGITS = 32
BY_CONTENT = ("inductor", "aot_autograd", inductor.FUNCTION)
"""The kinds of artifacts of which several may have one key: graphs that differ in what they hold for."""
Artifact = tuple[str, str, bytes]
"""Its kind, its key, and its content."""


def key_of(kind: str, key: str, content: bytes) -> str:
    """Returns the key of the entry of an artifact."""
    named = f"{kind}/{bytes_digest(key.encode())[:DIGITS]}"
    return f"{named}/{bytes_digest(content)[:DIGITS]}" if kind in BY_CONTENT else named


def name_of(key: str) -> str:
    """Returns the part of an entry's key that two processes have alike: of one graph they do not get the same bytes."""
    return "/".join(key.split("/")[:2])


def is_function(key: str) -> bool:
    """Returns whether an entry is a function that was compiled ahead."""
    return key.startswith(f"{inductor.FUNCTION}/")


def libraries_of(artifacts: Iterable[Artifact]) -> list[str]:
    """Returns the keys of the entries of the libraries that functions need. Raises ValueError."""
    try:
        return [
            f"{LIBRARY}{key}" for _, _, data in artifacts for key in json.loads(data.partition(b"\n")[0])["libraries"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"it does not say which libraries it needs ({error})") from error


def digest_of(kind: str, key: str, content: bytes) -> str:
    """Returns the key that distinguishes an artifact from all others."""
    return bytes_digest(f"{kind}\0{key}\0".encode() + content)


def of_artifact(artifact: Artifact) -> Files:
    """Returns the files of the entry of an artifact."""
    return {ARTIFACT: inductor.packed([artifact])}


def artifacts_in(entries: Mapping[str, Files]) -> Iterator[Artifact]:
    """Yields the artifacts of some entries. Nothing of them is unpickled. Raises ValueError."""
    for key, files in entries.items():
        if not key.startswith(LIBRARY):
            if files.keys() != {ARTIFACT}:
                raise ValueError(f"its entry {key} has {', '.join(files) or 'no file'}, expected {ARTIFACT}")
            yield from inductor.unpacked(files[ARTIFACT])
