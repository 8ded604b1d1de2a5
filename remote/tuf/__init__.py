"""A store with TUF metadata (The Update Framework): its targets are the topics whose newest statement matters.

    v1/tuf/N.root.json, N.targets.json, N.bin-XX.json, N.snapshot.json, timestamp.json
    v1/tuf/targets/package/ORG/DIGEST.NAME.json      the file of a topic, as it was when this state was signed

The topics are spread over bins, so that publishing writes as much in a registry of any size. The one file that is
replaced is timestamp.json: a publisher who is killed before leaves the state as it was.
"""

from opforge.cache.schema import record, whole

FOLDER = "v1/tuf"
TARGETS = f"{FOLDER}/targets"
TIMESTAMP = f"{FOLDER}/timestamp.json"
MAX_BYTES = 16 << 20
VERSIONED = record({"version": whole(1)}, is_open=True)
SIGNED_VERSION = record({"signed": VERSIONED}, is_open=True)
"""What is read of any metadata; the rest of it is python-tuf's."""


def target_path(kind: str, topic: str) -> str:
    """Returns the path of a topic among the targets."""
    return f"{kind}/{topic}.json"


def file_of(path: str, sha256: str) -> str:
    """Returns the object that holds the target of this path with this digest."""
    folder, _, last = path.rpartition("/")
    return f"{TARGETS}/{folder}/{sha256}.{last}"
