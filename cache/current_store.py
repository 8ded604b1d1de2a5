"""Which store the settings name: opens it on first use, checks it each time, makes its folders before a build."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from opforge.errors import CacheDirError, LayerError
from opforge.fast_path import lookup
from opforge.foundation import file_owners, settings
from opforge.foundation.files import folder_names, make_folder, write_file

from .filesystem.disk import Disk
from .held import empty, hold, let_go
from .layout import MACHINE, SWEPT, TAG, TAG_NAME, VERSION, Layout
from .ownership import has_tag, is_own
from .staging import new_folder
from .store import Store

PLACEHOLDER_ROOT = os.path.join(os.devnull, "no-cache-folder")
"""A root that can never exist. A store there is only read from, until the first build needs a real folder."""
FOLDERS = ("plans", "entries", "descriptions", "toolchains", "locks", "staging", "failures", "logs")
"""The folders that `prepare` makes; the others are made when they are first written to."""
log = logging.getLogger("opforge.cache")
OWN_CACHE = "Set OPFORGE_CACHE_DIR to a folder of your own"
WRITABLE = "Set OPFORGE_CACHE_DIR to a folder that you can write"
_stores: dict[tuple[object, ...], Store] = {}
_refused: dict[str, tuple[CacheDirError, str]] = {}
"""By the root of a private store: why the default folder was refused, and the private folder's name."""
_warned: set[str] = set()
_is_to_be_kept: ContextVar[bool] = ContextVar("_is_to_be_kept", default=False)
"""Whether nothing is to be built that cannot be kept: see `only_if_kept`."""


HOLDS = 10
"""How many private folders are made if others rename each before it is held."""


class NotKept(Exception):
    """The default cache folder cannot be used; says why, and what to do.

    No error for a user: who enters `only_if_kept` has another way to build.
    """


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
    key = (root, settings.cache_dir.is_set(), names, layers, settings.trusted_folders())
    store = _stores.get(key)
    if store is None:
        user = file_owners.trusted_ids()
        owners = file_owners.trusted_ids(names) if names else user
        problem = find_problem(root, user)
        if problem and settings.cache_dir.is_set():
            raise problem
        store = Store(PLACEHOLDER_ROOT if problem else root, owners, _trusted_layers(layers, owners))
        if not problem:
            _stores[key] = store
    return store


def open_store(folder: str) -> Store:
    """Returns the store in a given folder, without layers. Raises CacheDirError if the folder cannot be trusted."""
    store = Store(os.path.abspath(folder), file_owners.trusted_ids(settings.trusted_owners()))
    if problem := _change_problem(store.layout.root, file_owners.trusted_ids()):
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
    if problem := _change_problem(root, file_owners.trusted_ids()):
        raise problem
    return open_store(root)


def writable_store(store: Store | None = None, is_for_sources: bool = False) -> Store:
    """Makes the folders of a store, by default the current one, and returns it.

    If the default folder cannot be used, the store is in a private folder that is removed when this process ends; one
    warning says so, unless only sources are written there. Raises CacheDirError if a folder that was named cannot be
    used, and NotKept.
    """
    store = _prepared(store)
    if store.layout.root in _refused and not is_for_sources:
        refused, path = _refused[store.layout.root]
        if _is_to_be_kept.get():
            raise NotKept(str(refused))
        if path not in _warned:
            _warned.add(path)
            log.warning(_not_kept(refused, path))
    return store


@contextmanager
def only_if_kept() -> Iterator[None]:
    """Makes builds in this block raise NotKept where the default cache folder cannot be used.

    With OPFORGE_PREBUILT=require there is none, and no other way is wanted.
    """
    token = _is_to_be_kept.set(settings.prebuilt() != "require")
    try:
        yield
    finally:
        _is_to_be_kept.reset(token)


def _prepared(store: Store | None) -> Store:
    """Returns the store, or a private one if the default folder cannot be used, with its folders made."""
    if store is not None:
        prepare(store.layout.root, file_owners.trusted_ids())
        return store
    store = current_store()
    root = settings.cache_dir()
    owners = file_owners.trusted_ids()
    try:
        prepare(root if store.layout.root == PLACEHOLDER_ROOT else store.layout.root, owners)
        return current_store()
    except CacheDirError as problem:
        if settings.cache_dir.is_set():
            raise
        layers = tuple(str(source.layout) for source in store.layers)
        fallback = Store(private_fallback(problem), {*store.owners, os.geteuid()}, layers)
        prepare(fallback.layout.root, owners)
        key = root, False, settings.trusted_owners(), settings.cache_layers(), settings.trusted_folders()
        _stores[key] = fallback
        return fallback


def find_problem(root: str, owners: Collection[int]) -> CacheDirError | None:
    """Returns why this folder cannot be the user's own store, or None. Creates nothing."""
    above = file_owners.trusted_ids(settings.trusted_owners())
    problem = file_owners.folder_problem(root, owners, above, settings.trusted_folders())
    if not problem and file_owners.own_id() < 0 and root not in file_owners.held:
        # It is missing, and would belong to the id that stands for all users who are not mapped.
        problem = file_owners.owner_problem(root, os.geteuid())
    return CacheDirError(root, *problem) if problem else None


def _change_problem(root: str, owners: Collection[int]) -> CacheDirError | None:
    """Returns why nothing in this store may be written or removed, or None."""
    problem = find_problem(root, owners)
    links = None if problem else file_owners.link_problem(os.path.join(root, VERSION))
    return CacheDirError(root, *links) if links else problem


def _inner_problem(root: str) -> CacheDirError | None:
    """Returns why nothing that is built in this store could be loaded from it, or None.

    Kubernetes gives a volume's group the right to write all files in it, unless a pod asks for something else.
    """
    for path in (os.path.join(root, VERSION), os.path.join(root, VERSION, "entries")):
        try:
            status = os.lstat(path)
        except OSError:
            continue  # it is missing, or the next step reports it
        if status.st_mode & 0o022 and file_owners.others_bits(status, path):
            reason = f"{path} can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
            return CacheDirError(
                root, reason, f"They may have changed its contents. Run: rm -rf {file_owners.quoted(path)}"
            )
    return None


def prepare(root: str, owners: Collection[int]) -> None:
    """Makes the folders of a store and checks that it can be written. Raises CacheDirError if it cannot be used."""
    is_there = os.path.isdir(root)  # it may be a link to a folder on another disk
    made = root if is_there else os.path.realpath(root)  # that folder may have been cleaned away
    problem = _change_problem(root, owners) or _inner_problem(root)
    if problem:
        raise problem
    if "\n" in root or "\r" in root:  # the lists of files that compilers write cannot hold it
        raise CacheDirError(root, "its path has a line break", "Set OPFORGE_CACHE_DIR to a folder without one")
    umask = _umask()
    if umask & 0o700:  # compilers and locks would make files that no later build can read
        advice = "Set one that leaves you access, such as `umask 077`"
        raise CacheDirError(root, f"the umask {umask:04o} denies you what you create", advice)
    if others := _other_names(root):
        advice = f"Set OPFORGE_CACHE_DIR to an empty folder or a new one, such as {os.path.join(root, 'opforge')}"
        if os.path.isdir(os.path.join(root, VERSION, "plans")):
            advice += f". If it was a store once, remove its {VERSION}"
        elif VERSION in others:
            advice += ". If it is a layer, name it in OPFORGE_CACHE_LAYERS"
        raise CacheDirError(root, f"it holds other files, such as {others[0]}, and no store of opforge", advice)
    try:
        if not is_there:
            make_folder(made)
            if problem := _change_problem(root, owners):  # another user may have made it since it was judged
                raise problem
        is_new = not has_tag(root)
        if is_new:  # before all else: what is killed in between must leave a store, and no folder of unknown origin
            write_file(os.path.join(root, TAG_NAME), TAG.encode())
        for name in FOLDERS:
            make_folder(os.path.join(root, VERSION, name))
        if is_new:
            write_file(os.path.join(root, VERSION, SWEPT), b"")  # a new store holds nothing that is old
        probe = new_folder(Layout(root), "probe")
        with suppress(OSError):  # network file systems may say that it is busy: a sweep finds it by its name
            os.rmdir(probe)
    except CacheDirError:
        raise
    except OSError as error:
        raise CacheDirError(root, f"it cannot be written ({error.strerror})", WRITABLE) from error


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
    names = folder_names(root)  # none if it is missing, which is well, or unreadable, which the next step reports
    if has_tag(root):
        return []
    ours: tuple[str, ...] = (MACHINE, "lost+found")  # the latter is in every new ext4 volume
    layout = Layout(root)
    if VERSION in names and not any(files for _folder, _folders, files in os.walk(layout.path())):
        ours = (*ours, VERSION)  # a clean-up has removed all files
    return [name for name in names if name not in ours and not is_own(layout, os.path.join(root, name))]


def private_fallback(refused: CacheDirError) -> str:
    """Makes a private folder for this process, because of `refused`, and returns its path.

    It is removed when the process ends. What was loaded from it stays usable until then. Where others may rename it, it
    is held by its descriptor. Raises CacheDirError if no temporary folder can be made either.
    """
    import atexit

    owner, prefix = os.getpid(), f"opforge-{os.geteuid()}-"
    try:
        try:
            root, path = temporary_folder(prefix)
        except FileNotFoundError:  # no folder for temporary files can be written; the default cache's may be
            root, path = temporary_folder(prefix, Disk().nearest(refused.path))
    except OSError as error:
        problem = f"{refused.problem}; no temporary folder can be made ({error.strerror})"
        made = CacheDirError(refused.path, problem, refused.advice)
        raise (NotKept(str(made)) if _is_to_be_kept.get() else made) from error

    def remove() -> None:
        if os.getpid() == owner:  # otherwise a forked child would remove its parent's folder
            remove_temporary(root, path)

    atexit.register(remove)
    _refused[root] = refused, path
    return root


def temporary_folder(prefix: str, parent: str | None = None) -> tuple[str, str]:
    """Makes a temporary folder for this user alone; returns a path by which it is used, and its name.

    The path is its name, unless others may rename it: then the folder is held, and they can put none in its place.
    Raises OSError.
    """
    import tempfile

    for left in reversed(range(HOLDS)):
        path = tempfile.mkdtemp(prefix=prefix, dir=parent)
        if not find_problem(path, file_owners.trusted_ids()):
            break
        try:
            return hold(path), path
        except OSError:  # others have renamed it before it was opened: another one is made
            if not left:
                raise
    return path, path


def remove_temporary(root: str, path: str) -> None:
    """Removes a folder that `temporary_folder` has made, by both that it has returned."""
    import shutil

    if root == path:
        shutil.rmtree(path, ignore_errors=True)
        return
    empty(root)
    with suppress(OSError):
        os.rmdir(path)


@contextmanager
def temporary(prefix: str) -> Iterator[str]:
    """Makes a temporary folder as `temporary_folder` does, and removes it at the end of the block."""
    root, path = temporary_folder(prefix)
    try:
        yield root
    finally:
        remove_temporary(root, path)
        if root != path:
            let_go(root)


def _not_kept(refused: CacheDirError, path: str) -> str:
    """Returns the warning that a private folder is used, with the setting that ends it."""
    advice = refused.advice
    if advice == WRITABLE:
        own = os.path.join(os.path.dirname(path), f"opforge-{os.geteuid()}")
        others = find_problem(own, file_owners.trusted_ids())
        advice = f"Set OPFORGE_CACHE_DIR={file_owners.quoted(own)}" + (f". {others.advice}" if others else "")
    elif advice.startswith(file_owners.OWN_FOLDER):
        advice = OWN_CACHE + advice.removeprefix(file_owners.OWN_FOLDER)
    elif "OPFORGE_CACHE_DIR" not in advice and file_owners.own_id() >= 0:
        advice += f"; or {OWN_CACHE[:1].lower()}{OWN_CACHE[1:]}"
    return (
        f"The cache folder {refused.path} cannot be used: {refused.problem}. Using {path} instead, which is removed"
        f" when this process ends: each process builds again. To keep built ops: {advice[:1].lower()}{advice[1:]}."
    )


def _trusted_layers(paths: tuple[str, ...], owners: frozenset[int]) -> tuple[str, ...]:
    """Returns the layers that were named. Raises LayerError for one that cannot be trusted, rather than skip it."""
    for path in paths:
        if problem := file_owners.folder_problem(path, owners, shared=settings.trusted_folders()):
            raise LayerError(path, *problem)
    return paths
