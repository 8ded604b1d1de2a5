"""Which store the settings name: opens it on first use, checks it each time, makes its folders before a build."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection

from opforge import settings, trust
from opforge.errors import CacheDirError, LayerError
from opforge.machine_folder import make_folder, write_file
from opforge.warm import lookup

from .layout import MACHINE, SWEPT, TAG, TAG_NAME, VERSION, Layout
from .ownership import has_tag, is_own
from .staging import new_folder
from .store import Store

PLACEHOLDER_ROOT = os.path.join(os.devnull, "no-cache-folder")
"""A root that can never exist. A store there is only read from, until the first build needs a real folder."""
FOLDERS = ("plans", "entries", "descriptions", "toolchains", "locks", "staging", "failures", "logs")
"""The folders that `prepare` makes; the others are made when they are first written to."""
log = logging.getLogger("opforge.cache")
_stores: dict[tuple[object, ...], Store] = {}


def reset() -> None:
    """Forgets the stores that this process has opened, and which folders are trusted."""
    _stores.clear()
    lookup.reset()


def current_store() -> Store:
    """Returns the store that the settings name at the time of the call. Creates no folder.

    If the default folder cannot be trusted, the store has no folder; `writable_store` then makes a private one.

    Raises:
        CacheDirError: The folder that OPFORGE_CACHE_DIR names cannot be trusted.
        LayerError: A folder that OPFORGE_CACHE_LAYERS names cannot be trusted.
    """
    root, names, layers = settings.cache_dir(), settings.trusted_owners(), settings.cache_layers()
    key = (root, settings.cache_dir.is_set(), names, layers)
    store = _stores.get(key)
    if store is None:
        user = trust.trusted_ids()
        owners = trust.trusted_ids(names) if names else user
        problem = find_problem(root, user)
        if problem and settings.cache_dir.is_set():
            raise problem
        store = Store(PLACEHOLDER_ROOT if problem else root, owners, _trusted_layers(layers, owners))
        if not problem:
            _stores[key] = store
    return store


def open_store(folder: str) -> Store:
    """Returns the store in a given folder, without layers. Raises CacheDirError if the folder cannot be trusted."""
    store = Store(os.path.abspath(folder), trust.trusted_ids(settings.trusted_owners()))
    problem = _change_problem(store.layout.root, trust.trusted_ids())
    if problem:
        raise problem
    return store


def store_behind_layers(folder: str) -> Store:
    """Returns the store in a given folder, with the layers that the settings name. Raises CacheDirError, LayerError."""
    store = open_store(folder)
    return Store(store.layout.root, store.owners, _trusted_layers(settings.cache_layers(), frozenset(store.owners)))


def own_store() -> Store:
    """Returns the user's own store, without layers. Raises CacheDirError if it cannot be trusted, even the default."""
    root = settings.cache_dir()
    # Check the path as it is: without a home folder it is "~/.cache/opforge", which open_store would make absolute.
    problem = _change_problem(root, trust.trusted_ids())
    if problem:
        raise problem
    return open_store(root)


def writable_store(store: Store | None = None) -> Store:
    """Makes the folders of a store, by default the current one, and returns it.

    If the default folder cannot be used, the store is in a private folder that is removed when this process ends; one
    warning says so. Raises CacheDirError if a folder that was named cannot be used.
    """
    if store is not None:
        prepare(store.layout.root, trust.trusted_ids())
        return store
    store = current_store()
    root = settings.cache_dir()
    owners = trust.trusted_ids()
    try:
        prepare(root if store.layout.root == PLACEHOLDER_ROOT else store.layout.root, owners)
        return current_store()
    except CacheDirError as problem:
        if settings.cache_dir.is_set():
            raise
        fallback = Store(private_fallback(problem), store.owners, tuple(str(source.layout) for source in store.layers))
        prepare(fallback.layout.root, owners)
        _stores[root, False, settings.trusted_owners(), settings.cache_layers()] = fallback
        return fallback


def find_problem(root: str, owners: Collection[int]) -> CacheDirError | None:
    """Returns why this folder cannot be the user's own store, or None. Creates nothing."""
    problem = trust.folder_problem(root, owners)
    return CacheDirError(root, *problem) if problem else None


def _change_problem(root: str, owners: Collection[int]) -> CacheDirError | None:
    """Returns why nothing in this store may be written or removed, or None."""
    problem = find_problem(root, owners)
    links = None if problem else trust.link_problem(os.path.join(root, VERSION))
    return CacheDirError(root, *links) if links else problem


def prepare(root: str, owners: Collection[int]) -> None:
    """Makes the folders of a store and checks that it can be written. Raises CacheDirError if it cannot be used."""
    problem = _change_problem(root, owners)
    if problem:
        raise problem
    if "\n" in root or "\r" in root:  # the lists of files that compilers write cannot hold it
        raise CacheDirError(root, "its path has a line break", "Set OPFORGE_CACHE_DIR to a folder without one")
    umask = _umask()
    if umask & 0o700:  # compilers and locks would make files that no later build can read
        advice = "Set one that leaves you access, such as `umask 077`"
        raise CacheDirError(root, f"the umask {umask:04o} denies you what you create", advice)
    others = _other_names(root)
    if others:
        advice = f"Set OPFORGE_CACHE_DIR to an empty folder or a new one, such as {os.path.join(root, 'opforge')}"
        if VERSION in others:
            advice += f". If it was a store once, remove its {VERSION}"
        raise CacheDirError(root, f"it holds other files, such as {others[0]}, and no store of opforge", advice)
    try:
        if not os.path.isdir(root):  # it may be a link to a folder on another disk
            make_folder(root)
        is_new = not has_tag(root)
        if is_new:  # before all else: what is killed in between must leave a store, and no folder of unknown origin
            write_file(os.path.join(root, TAG_NAME), TAG.encode())
        for name in FOLDERS:
            make_folder(os.path.join(root, VERSION, name))
        if is_new:
            write_file(os.path.join(root, VERSION, SWEPT), b"")  # a new store holds nothing that is old
        os.rmdir(
            new_folder(Layout(root), "probe")
        )  # if this process is killed here, a sweep finds the folder by its name
    except OSError as error:
        advice = "Set OPFORGE_CACHE_DIR to a folder that you can write"
        raise CacheDirError(root, f"it cannot be written ({error.strerror})", advice) from error


def _umask() -> int:
    """Returns this process's umask, without setting it if possible: other threads may create files meanwhile."""
    try:
        with open("/proc/self/status", "rb") as file:
            return next(int(line.split()[1], 8) for line in file if line.startswith(b"Umask:"))
    except (OSError, StopIteration):
        os.umask(umask := os.umask(0o077))
        return umask


def _other_names(root: str) -> list[str]:
    """Returns the names in a folder that is no store yet: a store there would mix its files with the user's."""
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return []  # missing, which is well, or unreadable, which the next step reports
    if has_tag(root):
        return []
    ours: tuple[str, ...] = (MACHINE, "lost+found")  # the latter is in every new ext4 volume
    layout = Layout(root)
    if VERSION in names and not any(files for _folder, _folders, files in os.walk(layout.path())):
        ours = (*ours, VERSION)  # a clean-up has removed all files
    return [name for name in names if name not in ours and not is_own(layout, os.path.join(root, name))]


def private_fallback(refused: CacheDirError) -> str:
    """Makes a private folder for this process, because of `refused`; logs a warning and returns the path.

    The folder is removed when the process ends. What was loaded from it stays usable until then. Raises CacheDirError
    if no temporary folder can be made either.
    """
    import atexit
    import shutil
    import tempfile

    try:
        path, owner = tempfile.mkdtemp(prefix=f"opforge-{os.geteuid()}-"), os.getpid()
    except OSError as error:
        advice = "Set OPFORGE_CACHE_DIR to a folder that you can write"
        raise CacheDirError(refused.path, f"{refused.problem}; no temporary folder can be made", advice) from error

    def remove() -> None:
        if os.getpid() == owner:  # otherwise a forked child would remove its parent's folder
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    log.warning(
        "%s. Using %s instead, which is removed when this process ends."
        " Set OPFORGE_CACHE_DIR to a folder of your own to keep what is built.",
        refused,
        path,
    )
    return path


def _trusted_layers(paths: tuple[str, ...], owners: frozenset[int]) -> tuple[str, ...]:
    """Returns the layers that were named. Raises LayerError for one that cannot be trusted, rather than skip it."""
    for path in paths:
        problem = trust.folder_problem(path, owners)
        if problem:
            reason, advice = problem
            name_owner = "Name its owner in OPFORGE_TRUSTED_OWNERS"
            raise LayerError(path, reason, name_owner if advice == trust.OWN_FOLDER else advice)
    return paths
