"""The sources of a package, for the variant that is built on machines that no other variant fits."""

from __future__ import annotations

import os

from opforge.errors import PackError
from opforge.packages.form import digests
from opforge.packages.sources import modules
from opforge.packages.sources.project import KERNEL_TOML, Project

from . import git

SUFFIXES = (
    *(".c", ".cc", ".cpp", ".cxx", ".cu", ".hip", ".sycl", ".cl"),
    *(".cuh", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".ipp", ".tpp"),
)


def read(project: Project) -> dict[str, bytes]:
    """Returns the files that a library is built from, by path in the project: another machine may need other headers.

    They are the project's sources and headers, and the module of its builder with those that it imports; none if the
    builder is in a package that is installed beside opforge. Raises PackError for a file that no package can hold,
    OSError.
    """
    imported: list[str] = []
    if reference := project.declared.get(KERNEL_TOML, {}).get("builder", ""):
        if not modules.file_of(reference.partition(":")[0], project.folder):
            return {}
        imported = modules.files_of(project.folder)
    files = {}
    for path in sorted({*imported, *(path for path in _paths(project) if path.endswith(SUFFIXES))}):
        full = os.path.join(project.folder, path)
        problem = digests.path_problem(path)
        if not problem and os.path.islink(full):
            problem = f"{path} is a link: put a file in its place"
        if not problem and not os.path.isfile(full):
            problem = f"{path} is not a file: remove it"
        if problem:
            raise PackError(project.name, [problem], "Correct the package's files.")
        with open(full, "rb") as file:
            files[path] = file.read()
    return files


def _paths(project: Project) -> list[str]:
    """Returns the paths of the project's files, without those of its Python, its tests and what was packed before."""
    paths = git.tracked(project.folder)
    if paths is None:
        paths = []
        for parent, folders, names in os.walk(project.folder):
            # Without git, what no author means to ship is known by its form: hidden, or a virtual environment.
            folders[:] = [name for name in folders if not _is_tools(parent, name)]
            paths += [os.path.relpath(os.path.join(parent, name), project.folder) for name in names]
    others = [os.path.relpath(path, project.folder) for path in (project.python, project.tests) if path]
    left_out = tuple(f"{path}/" for path in ("build", ".git", *others))
    return sorted(path for path in paths if not path.startswith(left_out))


def _is_tools(parent: str, name: str) -> bool:
    return name.startswith(".") or os.path.exists(os.path.join(parent, name, "pyvenv.cfg"))
