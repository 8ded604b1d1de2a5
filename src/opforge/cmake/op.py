"""Builds one op for CMake: `opforge_add_op` runs it each time that the project is built.

STAGE/files/      the package as it will be installed, from which the op is built
STAGE/install/    what is installed besides the package: the built op, its builder, sources that CMake has made
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence

from opforge.builders.project_ops import build_layer, default_targets
from opforge.cache.layout import PACKAGE_LAYER

MODULE = '''\
"""The op {name}: written by opforge_add_op."""

from opforge import OpBuilder


class {title}Builder(OpBuilder):
    """Builds the op, or finds what was built into this package."""

    name, sources, abi, devices = {name!r}, {sources!r}, {abi!r}, {devices!r}
    include_dirs = {include_dirs!r}


def load():
    """Returns the loaded op."""
    return {title}Builder().load()
'''


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds the op that the arguments describe. Returns the exit code."""
    options = _options(arguments)
    try:
        problem = _build(options)
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem:
        sys.stderr.write(f"opforge_add_op({options.name}): {problem}\n")
    return 1 if problem else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m opforge.cmake.op")
    for name in ("name", "package", "directory", "stage"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--builder", default="")
    parser.add_argument("--abi", default="torch-stable")
    parser.add_argument("--editable", action="store_true")
    for name in ("source", "device", "target"):
        parser.add_argument(f"--{name}", action="append", default=[])
    return parser.parse_args(arguments)


def _build(options: argparse.Namespace) -> str:
    """Returns what failed; empty if nothing did."""
    files, install = os.path.join(options.stage, "files"), os.path.join(options.stage, "install")
    package, added = (os.path.join(folder, *options.package.split(".")) for folder in (files, install))
    for folder in (files, install):
        shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(added)
    shutil.copytree(options.directory, package, ignore=shutil.ignore_patterns("__pycache__", PACKAGE_LAYER))
    builder = options.builder or _write_builder(options, package, added)
    if options.editable:
        return ""  # it is built when it is loaded
    targets = options.target or default_targets()
    layer = os.path.join(install, options.package.partition(".")[0], PACKAGE_LAYER)
    return build_layer([builder], layer, files, targets, False)


def _write_builder(options: argparse.Namespace, package: str, added: str) -> str:
    """Writes the module of the op's builder into the package. Returns the builder's name.

    Raises ValueError if the op's name cannot be that of a module.
    """
    if not options.name.isidentifier():
        raise ValueError(f"{options.name!r}: expected the name of an op, of letters, digits and '_'")
    sources = [_placed(source, options.directory, package, added) for source in options.source]
    include_dirs = []
    if options.editable:  # the package's own files stay where they are, and the builder's module is not beside them
        own = [os.path.join(options.directory, source) for source in sources]
        sources = [path if os.path.exists(path) else source for path, source in zip(own, sources, strict=True)]
        include_dirs = [options.directory]
    title = "".join(part.title() for part in options.name.split("_"))
    text = MODULE.format(
        name=options.name,
        title=title,
        sources=sources,
        abi=options.abi,
        devices=options.device or ["cpu"],
        include_dirs=include_dirs,
    )
    module = f"_opforge_{options.name}"
    for folder in (package, added):
        with open(os.path.join(folder, f"{module}.py"), "w", encoding="utf-8") as file:
            file.write(text)
    return f"{options.package}.{module}:{title}Builder"


def _placed(source: str, directory: str, package: str, added: str) -> str:
    """Returns a source's path below the package. One from elsewhere, such as CMake has made, is put into it."""
    below = os.path.relpath(source, directory)
    if below.partition(os.sep)[0] != os.pardir:
        return below
    name = os.path.basename(source)
    for folder in (package, added):
        if os.path.exists(os.path.join(folder, name)):
            raise ValueError(f"{source} and {os.path.join(directory, name)} have one name: rename one of them")
        shutil.copyfile(source, os.path.join(folder, name))
    return name


if __name__ == "__main__":
    sys.exit(main())
