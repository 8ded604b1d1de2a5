"""The one way in which a package is installed: checked in a staging folder, then published by one rename each."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import py_compile
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from opforge.cache import layer, schema
from opforge.cache.keys import canonical
from opforge.cache.layout import entry_name
from opforge.cache.records import schemas
from opforge.errors import CacheDirError, KernelInstallError
from opforge.fast_path.library import FULL_CHECK_BYTES, RECORD, Entry
from opforge.foundation.file_owners import trusted_ids
from opforge.foundation.files import is_temp_name, make_folder, temp_path, write_file
from opforge.packages.choose import candidate
from opforge.packages.form import digests, metadata
from opforge.packages.form.metadata import Metadata

from .folders import READABLE, held, make_readable, make_root, remove_folder
from .layout import Root
from .receipt import bytecode_of, digest_problem, stamps
from .releases import Installed, InstalledVariant, to_json
from .remove import sweep

log = logging.getLogger("opforge.kernels")
MAX_TREE_BYTES = 4 << 30


@contextmanager
def staging(root: Root) -> Iterator[str]:
    """Yields a new folder on the root's file system, for this installation alone; it is removed afterwards.

    Meanwhile no removal takes trees that no release names yet. Afterwards those are removed that none names: of a
    release that was replaced, or of an installation that failed. Raises OSError if the root cannot be written.
    """
    parent = root.join("staging")
    make_root(root)
    make_folder(parent)
    with held(root, alone=True) as is_alone:
        if is_alone:  # nobody is installing: what is there was left by those who were killed
            _sweep(parent)
    try:
        with held(root):
            folder = temp_path(os.path.join(parent, "install"))
            make_folder(folder)
            try:
                yield folder
            finally:
                remove_folder(folder)
    finally:
        with suppress(OSError):
            sweep(root)


def unwritable(root: Root, name: str, error: OSError) -> KernelInstallError:
    """Returns the error for a package whose root cannot be written, or is on a full disk."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return KernelInstallError(name, f"the disk of {root.path} is full", "Free some space")
    for_user = "" if root.scope == "user" else "for the user (--user) or "
    advice = f"Install {for_user}into a folder of your own (--into FOLDER)"
    folder = os.path.dirname(str(error.filename))  # one below the root may have other rights than it
    folder = folder if folder.startswith(root.path) else root.path
    return KernelInstallError(name, f"{folder} cannot be written ({error.strerror})", advice)


def _sweep(parent: str) -> None:
    for name in os.listdir(parent):
        if is_temp_name(name):
            remove_folder(os.path.join(parent, name))


def add_tree(root: Root, folder: str, label: str, expected: str = "") -> InstalledVariant:
    """Makes a folder in the staging folder an installed variant, and returns it.

    Every file is compared with the digests of its metadata, and the variant's with `expected`, which its release
    states. A variant that is there already and intact is used. Raises KernelFormatError, KernelInstallError for what no
    package holds or what differs from its digests, OSError.
    """
    _refuse(folder)
    choice, stated = candidate.read(folder, label)
    with open(os.path.join(folder, metadata.FILE), "rb") as file:
        text = file.read()
    if stated.files is None:
        stated = stated._replace(files=digests.of_folder(folder))
    files = dict(stated.files or {})
    if stated.algorithm != "sha256":
        differences = digests.problems(folder, files, stated.algorithm)
        files = digests.of_folder(folder)
    else:
        differences = digests.problems(folder, files)
    if differences:
        raise KernelInstallError(label, differences[0], "It was changed after it was packed: pack or download it again")
    digest = digests.tree_digest(files, text)
    if expected and digest != expected:
        problem = f"the files of {label} are not those of its release"
        raise KernelInstallError(label, problem, "The release is damaged: report it to its publisher")
    sha256 = hashlib.sha256(text).hexdigest()
    _compile(folder, files)
    bytecode = bytecode_of(folder, files)
    size = _seal(folder)
    target = root.tree(digest)
    _place(root, folder, target, files, sha256, bytecode)
    _offer(root, target, stated)
    own = stamps(target, bytecode)
    return InstalledVariant(choice, digest, target, stated.id, files, sha256, own, size, bytecode)


def _refuse(folder: str) -> None:
    """Raises KernelInstallError for links, bytecode and odd names: no digest covers them, or they lead elsewhere."""
    total = 0
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            relative = os.path.relpath(path, folder)
            status = os.lstat(path)
            total += status.st_size
            problem = digests.path_problem(relative)
            if not problem and not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                problem = f"{relative} is a link, or no file"
            if not problem and digests.is_bytecode(relative):
                problem = f"{relative} is bytecode, which no digest covers"
            if not problem and total > MAX_TREE_BYTES:
                problem = f"it has more than {MAX_TREE_BYTES} bytes"
            if problem:
                raise KernelInstallError(os.path.basename(folder), problem, "Install one that opforge pack has written")


def _compile(folder: str, files: Mapping[str, str]) -> None:
    """Writes the bytecode of this Python, which needs no look at the source later: nobody may change that."""
    if sys.pycache_prefix:
        return  # Python would look for it there, below the name of the tree and not of this folder
    for path in files:
        if path.endswith(".py"):
            try:
                py_compile.compile(
                    os.path.join(folder, path),
                    dfile=path,
                    doraise=True,
                    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                )
            except py_compile.PyCompileError:
                continue  # for another Python, perhaps; importing it says what is wrong


def _seal(folder: str) -> int:
    """Makes every file and folder read-only, whatever the umask; returns the bytes of all files."""
    total = 0
    for parent, _folders, names in os.walk(folder, topdown=False):
        for name in names:
            path = os.path.join(parent, name)
            total += os.lstat(path).st_size
            os.chmod(path, 0o555 if name.endswith(".so") else 0o444)
        os.chmod(parent, READABLE)
    return total


def _place(
    root: Root, folder: str, target: str, files: Mapping[str, str], sha256: str, bytecode: Mapping[str, str]
) -> None:
    """Moves a finished folder to its place. What is there already stays if it is intact, and is replaced if not."""
    make_readable(os.path.dirname(target))
    for _attempt in range(3):
        try:
            os.rename(folder, target)
            return
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
        if not digest_problem(target, files, sha256, bytecode):
            return
        damaged = temp_path(root.join("staging", "damaged"))
        os.rename(target, damaged)
        remove_folder(damaged)
    raise KernelInstallError(target, "another process keeps changing it", "Try again when nothing else installs")


def _offer(root: Root, tree: str, stated: Metadata) -> None:
    """Makes the library of a variant an entry of the root's layer, where `.load()` finds it by its description.

    What another opforge has built in a form that is not read here is not offered; get_kernel loads it nevertheless.
    """
    record, file = stated.opforge.get("record"), stated.opforge.get("library")
    if record is None or file is None or schema.problem(record, schemas.RECORD):
        return
    folder = temp_path(os.path.join(root.join("staging"), "entry"))
    make_folder(folder)
    try:
        # Not a second name: that would change a stamp of the tree, and not every file system has them.
        os.symlink(os.path.join(tree, file), os.path.join(folder, record["file"]))
        write_file(os.path.join(folder, RECORD), canonical(record))
        entry = Entry(entry_name(record["key"], record["sha256"]), folder, record, root.path)
        # What is hashed at each load need not be on the disk: if it is damaged, it is not loaded.
        synced = record["size"] > FULL_CHECK_BYTES
        layer.add(root.path, entry, record["description"], trusted_ids(), synced)
    except (CacheDirError, ValueError) as error:
        log.info("%s: .load() does not find its library: %s", tree, error)
    finally:
        remove_folder(folder)


def add_release(release: Installed) -> None:
    """Writes a release's file: from now on it is installed. Raises OSError."""
    path = release.root.release(release.name, release.version.canonical)
    organization = os.path.dirname(os.path.dirname(path))
    for folder in (release.root.join("names"), organization, os.path.dirname(path)):
        make_readable(folder)
    write_file(path, canonical(to_json(release)), 0o644)


def from_folders(
    root: Root, name: str, folders: Sequence[str], source: str = "", follow_links: bool = False
) -> Installed:
    """Installs the variants in these folders, which are one release; returns it. The folders stay as they are.

    `source` is where they come from, by default the first of them. A link is refused, unless `follow_links`.

    Raises KernelFormatError, KernelInstallError, OSError.
    """
    variants, versions, names = [], set(), set()
    try:
        with staging(root) as scratch:
            for number, folder in enumerate(folders):
                copy = os.path.join(scratch, str(number))
                shutil.copytree(
                    folder, copy, symlinks=not follow_links, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
                )
                stated = metadata.read(copy)
                versions.add(stated.release)
                names.add(str(stated.opforge.get("name", name)))
                variants.append(add_tree(root, copy, candidate.read(folder)[0].label))
            number_of = versions.pop() if len(versions) == 1 else None
            if number_of is None or names != {name}:
                problem = f"its variants are of {len(versions) or 'no'} versions and of the packages {sorted(names)}"
                raise KernelInstallError(name, problem, "Install the variants of one release")
            release = Installed(
                name, number_of, root, "", "", source or os.path.dirname(folders[0]), "", tuple(variants)
            )
            add_release(release)
    except OSError as error:
        raise unwritable(root, name, error) from error
    return release
