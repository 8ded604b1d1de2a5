"""JITs that call ninja: their key is ninja's input, with sources by content and paths by their role.

A build's own files of headers are known after it alone. So an entry has the list of the user's headers, each with the
include folder that has it and its content, and an entry counts where these are the same, and where the user's folders
have the same of all files that an `#include` names: a new one could be taken in the place of another. Headers of the
JIT's package come with its version, those of CUDA with its release. Those in the compilers' own folders are not
compared; /usr/local is the user's. An entry that this machine has made counts as long as its compilers are the same: as
for ops, one that was fetched may be of other compilers, and no compiler is needed. What cannot be known on another
machine is not kept: a header that no include folder has, a library in a folder of the user's, and what was changed
meanwhile.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from glob import glob
from sys import executable
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.keys import bytes_digest, canonical
from opforge.cache.schema import SHA256, FormatError, items, record, row, text, whole
from opforge.errors import OpforgeError
from opforge.foundation import exit_status
from opforge.foundation.environment import COMPILER_VARIABLES, HEADER_VARIABLES
from opforge.foundation.files import write_file
from opforge.foundation.remembered_values import SECOND_NS

from . import compilers, notices
from .adapter import Adapter
from .page import Files

INPUTS, BUILD, STAMP = "inputs.json", "build.ninja", "opforge.stamp"
PROGRAM_SECONDS = 60.0
"""How long a program may take that is asked what was read."""
VARIABLES = (*COMPILER_VARIABLES, "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")
"""The variables that change the compilers' output."""
LOCAL, LOCAL_HEADERS = "/usr/local/", "/usr/local/include"
"""Folders that compilers treat as the system's, but that hold the user's files."""
LIBRARIES = ("/usr/lib/", "/usr/lib64/", "/lib/", "/lib64/", "/nix/store/")
"""Where systems have their libraries."""
MAX_HEADERS, MAX_NAMES = 10_000, 50_000
SCHEMA = record(
    {
        "headers": items(row(whole(), text(), SHA256), MAX_HEADERS),
        "folders": items(row(whole(), text()), MAX_HEADERS),
        "names": items(text(), MAX_NAMES),
        "present": items(row(whole(), whole()), MAX_NAMES),
        "compilers": SHA256,
    }
)
"""For each header of the user's: which include folder has it, its path there, its content. For all of the user's
folders: which of the names there is. And what the compilers were."""
TOOLS = re.compile(r"^(?:cxx|cc|nvcc|cuda_home|name|\w+_launcher) = .*$", re.MULTILINE)
COMPILER = re.compile(r"^(?:cxx|cc) = (.+)$|-ccbin(?:=|\s+)(\S+)", re.MULTILINE)
CUDA = re.compile(r"^(?P<name>cuda_home|nvcc) = (?P<path>.+)$", re.MULTILINE)
INCLUDE = re.compile(r"(?P<option>-I|-isystem|-iquote|-idirafter)(?P<space> *)(?P<path>[^\s$]+)")
SOURCE = re.compile(r"^build \S+: \w*compile\w* (?P<path>/\S+)$", re.MULTILINE)
ONLY_TEXT = re.compile(r"(?<=\s)-D\S+|-rpath[=,]\S+")
LIBRARY = re.compile(r"(?:-[LB] *|(?<![\w$./}-]))(?P<path>/[\w.][^\s,;:\"']*)")
UNCLEAR = re.compile(
    r"(?<=\s)@\S+|--options-file\S*|-optf\b|\S*\$ \S*|(?<=\s)-L *[\w.]\S*"
    r"|(?:-I|-isystem|-iquote|-idirafter) *\$(?!(?:cuda_home|include\d+|package\d+|folder)\b)\S*"
)
"""Arguments that do not show which files are read: files of options, paths with spaces, relative folders."""
RELEASES = {
    "cuda.h": r"#define CUDA_VERSION (\d+)",
    "hip/hip_version.h": r"#define HIP_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)",
}
"""Where CUDA and ROCm say which release they are."""
SPELLED = re.compile(rb"#\s*(?:include|include_next|import)\s*[<\"]([^>\"\n]+)[>\"]")
ASKS = re.compile(rb"__has_include|__has_embed|\.incbin|#\s*embed\b")
"""How a file asks for others that no compiler lists."""


class _Ordered(NamedTuple):
    """The input of ninja, equal on every machine."""

    key: str
    roots: Sequence[str]
    """The folders in which a header may be: those of the sources, and those of the include path, in their order."""
    sources: Mapping[str, str]
    """Each with its digest."""
    compilers: Collection[Sequence[str]]
    """The commands of those of the host."""
    nvcc: str
    """The path of the device's; empty if there is none."""
    cuda: Collection[str]
    """The folders of CUDA's headers."""
    problem: str
    """Why it is not kept."""


class NinjaAdapter(Adapter):
    """The base of adapters of JITs that run ninja in a private folder, and load a library from there."""

    holds, format = "host", 3
    carries = r"[\w.-]{1,200}\.so|inputs\.json"

    @abstractmethod
    def packages(self) -> Sequence[str]:
        """Returns the folders of the packages whose versions are in the fingerprint."""

    def settings(self) -> dict[str, str]:
        """Returns the variables that compilers obey."""
        return {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}

    def run(self, folder: str, build: Callable[[], Any]) -> None:
        """Runs ninja in a folder, or puts what it would make there. Raises what `build` raises."""
        if not self.active:
            build()
            return
        what = f"{self.name}'s library {os.path.basename(folder)}"
        ordered = self._ordered(folder)
        if ordered.problem:
            self.entries.check_allowed(what)
            notices.warn("%s is neither found nor kept: %s", what, ordered.problem)
            build()
            return

        with ExitStack() as claim:
            found = self.entries.get_or_claim(ordered.key, what, claim, lambda: self._found(ordered))
            if found is None:
                self._make(folder, ordered, what, build)
                return
        for path in found.keys() - {INPUTS}:
            write_file(os.path.join(folder, path), found[path], 0o700)  # in the place of an older one, which is loaded

    def _make(self, folder: str, ordered: _Ordered, what: str, build: Callable[[], Any]) -> None:
        began, identity, problem = 0, "", ""
        try:
            identity = compilers.identity(ordered.compilers, ordered.nvcc)
            _list_all_headers(folder)
            began = _clock(folder)
        except (OSError, OpforgeError) as error:
            problem = str(error)
        build()
        try:
            if problem:
                raise OSError(problem)
            files = self._built(folder, ordered, began, identity)
            self.entries.put(f"{ordered.key}.{bytes_digest(files[INPUTS])[:16]}", what, files)
        except (OSError, ValueError, subprocess.SubprocessError, OpforgeError) as error:
            notices.warn("%s is not kept: %s", what, error)

    # -- what is built -------------------------------------------------------------------------------------------------

    def _ordered(self, folder: str) -> _Ordered:
        try:
            with open(os.path.join(folder, BUILD), encoding="utf-8") as file:
                rules = file.read().replace("$:", ":").replace(" $\n", " ").replace(" -MMD ", " -MD ")
            sources = {match["path"]: _digest(match["path"]) for match in SOURCE.finditer(rules)}
            nvcc, home, cuda, release = _cuda(rules)
            started = _compilers(rules, bool(home))
            cubins = {name: _digest(os.path.join(folder, name)) for name in _ending(folder, ".cubin")}  # are embedded
        except (OSError, ValueError) as error:
            return _Ordered("", (), {}, (), "", (), str(error))
        paths = [match["path"] for match in INCLUDE.finditer(rules)]
        paths += [path for name in HEADER_VARIABLES for path in os.environ.get(name, "").split(":") if path]
        folders = [*map(os.path.dirname, sources), *(os.path.normpath(os.path.join(folder, path)) for path in paths)]
        roots = [*dict.fromkeys([*folders, LOCAL_HEADERS])]

        rules = SOURCE.sub(lambda match: match[0].removesuffix(match["path"]) + sources[match["path"]], rules)
        rules = _replaced(rules, folder, "$folder")
        for number, root in enumerate(self.packages()):
            rules = _replaced(rules, root, f"$package{number}")
        users = [*dict.fromkeys(match["path"] for match in INCLUDE.finditer(rules))]
        rules = INCLUDE.sub(lambda match: f"{match['option']} $include{users.index(match['path'])}", rules)
        rules = TOOLS.sub(_options, _replaced(rules, executable, "$python"))
        for part in ("lib64", "lib", "targets", "bin", "nvvm") if home else ():
            rules = _replaced(rules, f"{home}/{part}", f"$cuda_home/{part}")
        problem = _problem(rules)
        rules += f"\n{[*map(roots.index, folders)]}\n{cubins}\n{release}"
        return _Ordered(bytes_digest(rules.encode()), roots, sources, started, nvcc, cuda, problem)

    def _built(self, folder: str, ordered: _Ordered, began: int, identity: str) -> Files:
        """Returns what ninja has made. Raises ValueError for what could not be known again; OSError."""
        inputs = self._inputs(folder, ordered, began)
        inputs["present"], inputs["compilers"] = _present(inputs, ordered.roots), identity
        if compilers.identity(ordered.compilers, ordered.nvcc) != identity:
            raise ValueError("the compiler was changed while it ran")
        for place, name in inputs["present"]:
            number, below = inputs["folders"][place]
            _check_unchanged(os.path.join(ordered.roots[number], below, inputs["names"][name]), began)
        files = {INPUTS: canonical(schema.checked(inputs, SCHEMA))}
        for name in _ending(folder, ".so"):
            with open(os.path.join(folder, name), "rb") as file:
                files[name] = file.read()
        return files

    def _inputs(self, folder: str, ordered: _Ordered, began: int) -> dict[str, Any]:
        """Returns what SCHEMA has, but what is present and the compilers. Raises as `_built`."""
        listed, packages = _listed(folder), [*self.packages()]
        own = [*_own_folders(ordered.compilers), *ordered.cuda]
        rows, names, folders = list[list[Any]](), set[str](), set[tuple[int, str]]()
        if missing := [path for path in ordered.sources if os.path.normpath(path) not in listed]:
            raise ValueError(f"the compiler has not listed the files that it read for {missing[0]}")
        for path in sorted(listed):
            with open(path, "rb") as file:
                content = file.read()
            places = _places(path, ordered.roots)
            names.update(spelled.decode("utf-8", "replace") for spelled in SPELLED.findall(content))
            if _is_below(path, packages) or (not places and _is_below(path, own)):
                continue
            if not places:
                raise ValueError(f"no include folder has {path}")
            if asked := ASKS.search(content):
                raise ValueError(f"{path} has {asked[0].decode()}: it asks for files that no compiler lists")
            names.update(name for _number, name in places)
            folders.add((places[0][0], os.path.dirname(places[0][1])))
            if path not in ordered.sources:
                _check_unchanged(path, began)
                rows.append([*places[0], bytes_digest(content)])
        if changed := [path for path, digest in ordered.sources.items() if _digest(path) != digest]:
            raise ValueError(f"{changed[0]} was changed while it was compiled")
        folders |= {(number, "") for number, root in enumerate(ordered.roots) if not _is_below(root, packages)}
        return {"headers": rows, "folders": [[*one] for one in sorted(folders)], "names": sorted(names)}

    def _found(self, ordered: _Ordered) -> Files | None:
        """Returns an entry whose headers, and whose compilers if it was made here, are those of this machine."""
        for key in self.entries.all_keys():
            if key.startswith(f"{ordered.key}."):
                found = self.entries.find(key, counts=False)
                if found is None:
                    continue
                page, files = found
                try:
                    inputs = schema.parse(files[INPUTS], SCHEMA)
                    is_same = _is_same(inputs, ordered.roots) and (page.is_fetched or _is_compiled(inputs, ordered))
                except (KeyError, IndexError, FormatError) as error:
                    notices.warn("%s: the list of headers in %s cannot be used: %s", self.name, key, error)
                    continue
                if is_same:
                    self.entries.hits += 1
                    return files
        return None


def _is_same(inputs: Mapping[str, Any], roots: Sequence[str]) -> bool:
    """Returns whether the user's headers are the same, and no other could be taken in their place."""
    try:
        if any(_digest(os.path.join(roots[number], name)) != sha256 for number, name, sha256 in inputs["headers"]):
            return False
    except (OSError, ValueError):
        return False
    return _present(inputs, roots) == [[*one] for one in inputs["present"]]


def _is_compiled(inputs: Mapping[str, Any], ordered: _Ordered) -> bool:
    """Returns whether the compilers are the same; also where there are none: they could make no other."""
    try:
        return bool(compilers.identity(ordered.compilers, ordered.nvcc) == inputs["compilers"])
    except (OSError, OpforgeError):
        return True


def _present(inputs: Mapping[str, Any], roots: Sequence[str]) -> list[list[int]]:
    """Returns which of the names there are in which of the folders, by their places in both lists."""
    return [
        [place, number]
        for place, (root, below) in enumerate(inputs["folders"])
        for number, name in enumerate(inputs["names"])
        if os.path.exists(os.path.join(roots[root], below, name))
    ]


def _problem(rules: str) -> str:
    """Returns why the rules do not show all files that a build reads, with their content; empty if they do."""
    rules = ONLY_TEXT.sub("", rules)
    if unclear := UNCLEAR.search(rules):
        return f"{unclear[0].strip()} does not show which files are read"
    others = [match["path"] for match in LIBRARY.finditer(rules) if not match["path"].startswith(LIBRARIES)]
    return f"{others[0]} may change, and its content is not known" if others else ""


def _compilers(rules: str, is_for_device: bool) -> list[Sequence[str]]:
    """Returns the commands of the host's compilers that the rules name. Raises ValueError."""
    named = {one for found in COMPILER.findall(rules) for one in found if one}
    commands = [tuple(shlex.split(one)) for one in sorted(named)]
    if is_for_device:
        of_nvcc = os.environ.get("NVCC_CCBIN") or "g++"  # a path, with all its spaces, or a folder
        commands.append((os.path.join(of_nvcc, "g++") if os.path.isdir(of_nvcc) else of_nvcc,))
    return [*dict.fromkeys(filter(None, commands))]


def _cuda(rules: str) -> tuple[str, str, Sequence[str], str]:
    """Returns nvcc, the folder of CUDA or ROCm, those of its headers, and its release; empty if it is not used.

    Raises ValueError for a release that is not known.
    """
    named = {match["name"]: match["path"] for match in CUDA.finditer(rules)}
    if "nvcc" not in named:
        return "", "", (), ""
    command = named["nvcc"].replace("$cuda_home", named.get("cuda_home", ""))
    nvcc = shutil.which(command) or command  # it may be missing where all is found
    if nvcc == command and len(command.split()) > 1:
        raise ValueError(f"`{command}` does not show which compiler runs: expected the path of a program")
    home = named.get("cuda_home") or os.path.dirname(os.path.dirname(nvcc))
    targets = sorted(glob(f"{home}/targets/*/include"))
    for folder in (f"{home}/include", *targets):
        for name, pattern in RELEASES.items():
            try:
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    found = re.findall(pattern, file.read())
            except FileNotFoundError:
                continue
            if found:
                return nvcc, home, [folder, *targets], f"{name} {'.'.join(found)}"
    raise ValueError(f"the release of CUDA is not known: {home}/include has no cuda.h. Set CUDA_HOME to CUDA's folder")


def _listed(folder: str) -> set[str]:
    """Returns the files that compilers have read. Raises ValueError, OSError."""
    ran = exit_status.run(["ninja", "-t", "deps"], PROGRAM_SECONDS, cwd=folder, capture_output=True, text=True)
    if ran.returncode:
        raise ValueError(f"`ninja -t deps` ended with {ran.returncode}: {(ran.stderr or ran.stdout).strip()[-300:]}")
    found = set()
    for line in ran.stdout.splitlines():
        if line.startswith("    "):
            path = os.path.join(folder, line.strip())
            found.add(os.path.normpath(path))
            if ".." in path and not os.path.samefile(path, os.path.normpath(path)):
                raise ValueError(f"{path} goes through a link")
    return found


def _own_folders(compilers: Iterable[Sequence[str]]) -> set[str]:
    """Returns the folders in which compilers look for headers by themselves; none for one that cannot be asked."""
    env = {name: value for name, value in os.environ.items() if name not in HEADER_VARIABLES}
    found = set()
    for compiler in compilers:
        command = [*compiler, "-E", "-v", "-x", "c++", os.devnull]
        try:
            said = exit_status.run(
                command, PROGRAM_SECONDS, env={**env, "LC_ALL": "C"}, capture_output=True, text=True
            ).stderr
        except (OSError, subprocess.SubprocessError):
            continue
        listed = said.partition("search starts here:\n")[2].partition("End of search list")[0]
        found |= {os.path.normpath(line.strip()) for line in listed.splitlines() if line.startswith(" ")}
    return {path for path in found if not f"{path}/".startswith(LOCAL)}


def _list_all_headers(folder: str) -> None:
    """Makes compilers list headers of -isystem and of /usr/local too. Raises OSError."""
    path = os.path.join(folder, BUILD)
    with open(path, encoding="utf-8") as file:
        rules = file.read()
    if " -MMD " in rules:
        write_file(path, rules.replace(" -MMD ", " -MD ").encode(), 0o600)


def _clock(folder: str) -> int:
    """Returns a time of the file system: what is changed from now on has a later one. Raises OSError."""
    path = os.path.join(folder, STAMP)
    write_file(path, b"", 0o600)
    began = os.stat(path).st_ctime_ns
    for _again in range(3000):
        os.utime(path)
        if os.stat(path).st_ctime_ns > began:
            break
        time.sleep(0.001)
    return began


def _check_unchanged(path: str, began: int) -> None:
    """Raises ValueError if a file was changed after a time; OSError. Coarse file systems know whole seconds."""
    changed = os.stat(path).st_ctime_ns
    if changed + (0 if changed % SECOND_NS else 2 * SECOND_NS) > began:
        raise ValueError(f"{path} was changed while it was compiled")


def _places(path: str, roots: Sequence[str]) -> list[tuple[int, str]]:
    """Returns the include folders that have a file, each with its path there."""
    return [(number, os.path.relpath(path, root)) for number, root in enumerate(roots) if _is_below(path, [root])]


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(os.path.join(folder, "")) or path == folder for folder in folders)


def _replaced(rules: str, path: str, name: str) -> str:
    """Returns the rules with a name in the place of a path, and not of one that begins or ends like it."""
    return re.sub(rf"(?:(?<=-[IL])|(?<![\w.$/+-])){re.escape(path)}(?![\w.+-])", lambda _found: name, rules)


def _options(rules: re.Match[str]) -> str:
    """Returns the options of a compiler that has some, without its path."""
    return " ".join(word for word in rules[0].split() if word.startswith("-"))


def _ending(folder: str, suffix: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(suffix))


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return bytes_digest(file.read())
