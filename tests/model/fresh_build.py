"""What a build without opforge would give: compiles with the same flags, and reads the texts in the library.

A library is compiled once for each preprocessed text, compiler and set of archives.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import tempfile

from world import PLACES, World

MARKS = {
    "value": rb"\[src=[^\]]*\]",
    "linked": rb"\{linked=[^}]*\}",
    "part": rb"\(part=[^)]*\)",
    "embedded": rb"<blob=[^>]*>",
}
_libraries: dict[str, dict[str, str]] = {}
FOREIGN = ("cpath", "cpath2", "flags", "libs", "libs2", "bin", "alternatives", "profiles", "current")
"""What belongs to the machine and not to the op: a layer's entry keeps what its maker had."""


class BuildFails(Exception):
    """A compiler or the linker refuses the op."""


def expected(world: World, environment: dict[str, str], moved: str = "", kept: tuple[str, ...] = ()) -> dict[str, str]:
    """Returns what the op's functions must return.

    `moved` is the folder to which FOREIGN was copied, if it was; of these folders, `kept` are used where they were.
    """
    declared = world.declaration()
    link = [*(f"-l{name}" for name in declared["libraries"]), *declared["extra_link_args"]]
    if moved:
        pattern = re.compile(re.escape(world.root) + rf"/({'|'.join(name for name in FOREIGN if name not in kept)})\b")
        environment = {name: pattern.sub(rf"{moved}/\1", value) for name, value in environment.items()}
        link = [pattern.sub(rf"{moved}/\1", word) for word in link]
    compiler = shlex.split(environment.get("CXX", "g++"))
    user = [word for name in ("CPPFLAGS", "CXXFLAGS") for word in shlex.split(environment.get(name, ""))]
    macros = [f"-D{name}={value}" for name, value in declared["define_macros"].items()]
    roots = [path for _name, path in declared["kernel_roots"]]
    folders = [*declared["include_dirs"], *(f"{path}/include" for path in roots if os.path.isdir(f"{path}/include"))]
    flags = [*macros, *(f"-I{folder}" for folder in folders), *declared["extra_compile_args"], *user]
    sources = []
    for name in declared["sources"]:
        candidates = [os.path.join(folder, name) for folder in (world.path("op"), *roots)]
        sources.append(next((path for path in candidates if os.path.exists(path)), candidates[0]))
    command = [*compiler, "-std=c++17", "-fPIC", *flags]
    text = b"".join(_run([*command, "-E", "-P", source], world, environment) for source in sources)
    link += shlex.split(environment.get("LDFLAGS", ""))
    # The assembler looks for what .incbin names in the folders, in their order.
    parts = [text, _compiler(compiler[0], environment), repr((folders, link)).encode()]
    key = _key(world, environment, moved, parts)
    if key not in _libraries:
        with tempfile.TemporaryDirectory() as folder:
            library = os.path.join(folder, "op.so")
            _run([*command, "-shared", *sources, *link, "-Wl,-z,defs", "-o", library], world, environment)
            with open(library, "rb") as file:
                content = file.read()
        _libraries[key] = {
            name: match[0].decode() for name, mark in MARKS.items() if (match := re.search(mark, content))
        }
    return _libraries[key]


def _key(world: World, environment: dict[str, str], moved: str, parts: list[bytes]) -> str:
    """Returns the key of everything else that a library is made of, besides what the preprocessor returns."""
    digest = hashlib.sha256(b"\0".join(parts))
    digest.update(repr((environment.get("LIBRARY_PATH", ""), sorted(world.appeared))).encode())
    files = [world.path(f"{place}/blob.txt") for place in PLACES]
    files += [os.path.join(moved or world.root, name, "libmodel.a") for name in ("libs", "libs2")]
    for path in files:
        digest.update(path.encode() + b"\0")
        if os.path.isfile(path):
            with open(path, "rb") as file:
                digest.update(file.read())
    return digest.hexdigest()


def _compiler(name: str, environment: dict[str, str]) -> bytes:
    """Returns the real path of a compiler, with its text if it is a script."""
    folders = [""] if "/" in name else environment["PATH"].split(":")
    path = next(path for folder in folders if os.path.exists(path := os.path.join(folder, name)))
    with open(path, "rb") as file:
        head = file.read(500)
    return os.path.realpath(path).encode() + (head if head.startswith(b"#!") else b"")


def _run(command: list[str], world: World, environment: dict[str, str]) -> bytes:
    done = subprocess.run(command, cwd=world.path("temporary"), env=environment, capture_output=True, check=False)
    if done.returncode:
        raise BuildFails(done.stderr.decode(errors="replace"))
    return done.stdout
