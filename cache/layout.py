"""Where things lie in a store, and how the user's own store is opened.

CACHEDIR.TAG              so that backups leave it out
v1/plans/PLAN/RESULT-PLACE.json    tickets: what a hit reads
v1/entries/RESULT/        the library and its manifest
v1/descriptions/KEY/RESULT         which entries answer a description: how a prebuilt op is found
v1/objects/UNIT/          object files, by what they were compiled from
v1/peaks/                 how much memory each op's compilers took
v1/pins/                  which entries no limit evicts
v1/sources/               the sources of load_inline
v1/answers/               what each look-up came to, so that the next one makes no plan
v1/toolchains/            what each compiler said of itself
v1/triton/KEY/            Triton's own cache, for kernels that are given to Triton itself
v1/locks/ staging/ failures/ logs/ quarantine/
v1/bytes summaries swept           the running sum of sizes, what listings say, when ages were last looked at
index/                    entry points of other packages
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection
from typing import Any, NamedTuple

from opforge.errors import CacheDirError

from .filesystem.trust import objection

VERSION = "v1"
TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This folder holds compiled ops that opforge can build again. It may be deleted at any time.\n"
)
log = logging.getLogger("opforge.cache")
json.loads(b"{}")  # the first one sets the parser up, in the time of twenty more: not when an op is loaded


class Layout(NamedTuple):
    """The paths of one store."""

    root: str

    def __str__(self) -> str:
        return self.root

    def path(self, *parts: str) -> str:
        """A path inside the current version of the store."""
        return os.path.join(self.root, VERSION, *parts)

    def plan(self, plan_key: str) -> str:
        """The folder of a plan's tickets."""
        return self.path("plans", plan_key)

    def entry(self, result: str) -> str:
        """The folder of an entry."""
        return self.path("entries", result)

    def description(self, key: str) -> str:
        """The folder that lists the entries for a description."""
        return self.path("descriptions", key)


def make_folder(path: str) -> None:
    """Make a folder and its parents for this user alone, whatever the umask."""
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):  # makedirs gives its mode to the last folder only
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise


def write_file(path: str, data: bytes) -> None:
    """Put a whole file in place at once, readable by this user alone. Nobody ever sees half of it."""
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError)
"""What reading a file that others may have written to, and taking it for what it should be, can raise."""


def read_json(path: str) -> Any:
    """What a file of this store says. Raises OSError, ValueError or RecursionError; a pipe in its place keeps nobody.

    Four calls to the system: a file object makes nine, which a hit would notice.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = os.read(handle, os.fstat(handle).st_size)
    finally:
        os.close(handle)
    return json.loads(data)


def find_problem(root: str, owners: Collection[int]) -> CacheDirError | None:
    """Why this folder cannot be the user's own store, or None. Creates nothing."""
    if not os.path.isabs(root):
        return CacheDirError(
            root, "no home folder leads to it", "Set HOME or OPFORGE_CACHE_DIR to a folder of your own"
        )
    found = objection(root, owners)
    return CacheDirError(root, *found) if found else None


def prepare(root: str, owners: Collection[int]) -> None:
    """Make the store's folders, so that it can be written. Raises CacheDirError where that fails."""
    problem = find_problem(root, owners)
    if problem:
        raise problem
    try:
        make_folder(root)
        for name in ("plans", "entries", "descriptions", "toolchains", "locks", "staging", "failures", "logs"):
            make_folder(os.path.join(root, VERSION, name))
        tag = os.path.join(root, "CACHEDIR.TAG")
        if not os.path.exists(tag):
            write_file(tag, TAG.encode())
        from .staging import begin  # which names it so that a sweep finds it if this process is killed here

        os.rmdir(begin(Layout(root), "probe"))
    except OSError as error:
        advice = "Set OPFORGE_CACHE_DIR to a folder that you can write"
        raise CacheDirError(root, f"it cannot be written ({error.strerror})", advice) from error


def private_fallback(refused: CacheDirError) -> str:
    """A fresh private folder for this process, after the default one was refused. Says so once, as a warning.

    It is removed when the process that made it ends; what is loaded from it stays usable until then. Raises
    CacheDirError where no temporary folder can be made either.
    """
    import atexit
    import shutil
    import tempfile

    try:
        path, owner = tempfile.mkdtemp(prefix=f"opforge-{os.geteuid()}-"), os.getpid()
    except OSError as error:
        advice = "Set OPFORGE_CACHE_DIR to a folder that you can write"
        raise CacheDirError(refused.path, f"{refused.problem}; nor is there a temporary folder", advice) from error

    def remove() -> None:
        if os.getpid() == owner:  # a forked child is not to take it from its parent
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    log.warning(
        "%s. Using %s instead; what is built goes with it. Set OPFORGE_CACHE_DIR to a folder of your own to keep it.",
        refused,
        path,
    )
    return path
