"""Packs a project twice, in two folders and two stores, and compares the bytes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable

from opforge.cache.current_store import open_store
from opforge.errors import PackError
from opforge.packages.form import digests
from opforge.packages.registry.publish import CHECKS
from opforge.packages.sources.project import BUILD_TOML, KERNEL_TOML, Project
from opforge.packages.sources.reading import read, renamed

from . import git
from .run import BUILD, Options, pack

PLACES = ("first", "second-folder-with-a-longer-name/inside")


def differences(project: Project, options: Options, report: Callable[[str], None] = lambda _text: None) -> list[str]:
    """Returns the files in which two packings of the project differ. Raises what `pack` raises.

    Each copies the project's files to another folder and builds in an empty store. Of a builder that lies in an
    installed package there is no copy: it is built twice in place.
    """
    with tempfile.TemporaryDirectory(prefix="opforge-twice-") as scratch:
        contents = []
        for place in PLACES:
            report(f"pack in {place}")
            contents.append(_packed(project, options, os.path.join(scratch, place)))
        first, second = contents
        if not first:
            raise PackError(project.name, ["it has no files"], "Name a builder, sources or Python.")
        return sorted(path for path in {*first, *second} if first.get(path) != second.get(path))


def _packed(project: Project, options: Options, folder: str) -> dict[str, bytes]:
    source = os.path.join(folder, "source")
    copied = project
    if any(os.path.exists(os.path.join(project.folder, name)) for name in (KERNEL_TOML, BUILD_TOML)):
        _copy(project.folder, source)
        copied = renamed(read(source), project.name, str(project.version))
    out = os.path.join(folder, "out")
    commit = git.provenance(project.folder)
    pack(copied, out, options._replace(tried=False), open_store(os.path.join(folder, "store")), commit)
    contents = {}
    build = os.path.join(out, BUILD)
    for label in filter(lambda name: name != CHECKS, os.listdir(build)):
        for path in (*digests.files_of(os.path.join(build, label)), "metadata.json"):
            with open(os.path.join(build, label, path), "rb") as file:
                contents[f"{label}/{path}"] = file.read()
    return contents


def _copy(folder: str, copy: str) -> None:
    """Copies the files that git tracks or would track; without git, all files but build output."""
    paths = git.tracked(folder)
    if paths is None:
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(BUILD, "__pycache__"), symlinks=True)
        return
    for path in paths:
        if path.split("/")[0] != BUILD:
            os.makedirs(os.path.dirname(os.path.join(copy, path)), exist_ok=True)
            shutil.copy2(os.path.join(folder, path), os.path.join(copy, path), follow_symlinks=False)
