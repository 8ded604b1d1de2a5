"""A registry with TUF metadata (The Update Framework): its targets are the index files of the packages.

    v1/tuf/N.root.json, N.targets.json, N.bin-XX.json, N.snapshot.json, timestamp.json
    v1/tuf/targets/ORG/DIGEST.NAME.json      the index of a name, as it was when this state was signed

The names are spread over bins, so that publishing writes as much in a registry of any size. The one file that is
replaced is timestamp.json: a publisher who is killed before leaves the state as it was.
"""

FOLDER = "v1/tuf"
TARGETS = f"{FOLDER}/targets"
TIMESTAMP = f"{FOLDER}/timestamp.json"
MAX_BYTES = 16 << 20


def target_path(name: str) -> str:
    """Returns the path of a package's index among the targets."""
    return f"{name}.json"


def file_of(name: str, sha256: str) -> str:
    """Returns the object that holds the index of a package with this digest."""
    organization, _, last = name.partition("/")
    return f"{TARGETS}/{organization}/{sha256}.{last}.json"
