"""Paths in flags: below a kernel root or the builder's own folder, a key holds the root's name instead of its path.

In a plan such a flag is `-I{own}/include`, with every other brace doubled. Commands get the path again. A relative path
in a flag counts from the builder's own folder. From the spec on it is absolute: compilers run in a folder of their own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import pairwise

from .kernel_roots import KernelRoot, holding

SEPARATE = frozenset({"-I", "-isystem", "-iquote", "-idirafter", "-include", "-imacros", "-L", "-T", "-Xlinker"})
"""The flags that have a path in the next word."""
JOINED = re.compile(
    r"(?:^|(?<=,)|(?<==))"
    r"(?:-I|-isystem|-iquote|-idirafter|-include|-imacros|-L,?|-T,?|@|"
    r"--?(?:version-script|dynamic-list|script|just-symbols|Map)[=,])"
    r"(?P<joined>/[^,]*)"
    r"|(?<=,)(?<!rpath,)(?<!soname,)(?<!rpath-link,)(?<!-h,)(?<!-o,)(?P<linked>/[^,]*\.[ao])(?=,|$)"
)
"""A path in the same word as its flag, also behind -Wl, and -Xcompiler=.

All of these are read, and none becomes a part of the library. A path in another flag may (-D, -rpath, the name of a
shared library): it stays in the key.
"""
FOLDERS = ("-I", "-isystem", "-iquote", "-idirafter", "-L", "--library-path", "--include-directory")
"""The flags of folders that are searched. One that does not exist yet is searched once it does."""
FILES = (
    *("-include", "-imacros", "-T", "-B", "-fplugin", "-specs", "--specs", "--sysroot", "-isysroot", "--embed-dir"),
    *("-fprofile-use", "-fprofile-instr-use", "-fprofile-sample-use", "-fauto-profile"),
    *("-fsanitize-ignorelist", "-fsanitize-blacklist"),
    *(f"{dash}{name}" for name in ("version-script", "dynamic-list", "script", "just-symbols") for dash in ("-", "--")),
)
"""Further flags that name what is read, in the same word or in the next one."""
WRITTEN = ("-Map", "--Map")
"""The flags of a file that the linker writes."""
LINKED = re.compile(r"[^-@].*\.(?:a|o|lo|lds?|so(?:\.\d+)*)")
"""A word that may be a file to be linked."""
NAMING = frozenset({"-D", "-U", "-u", "-x", "-o", "-h", "-z", "-e", "-soname", "-rpath", "-rpath-link", "-Xlinker"})
NAMING_LONG = frozenset(
    {f"-{word}" for word in ("-soname", "-rpath", "-rpath-link", "-undefined", "-entry", "-defsym")}
)
"""What comes before a word that is a name, whatever lies beside it."""
FOR_OTHERS = ("-Wl,", "-Wp,", "-Wa,")
TEXT = ("-D", "-U")
OBJECTS = (".a", ".o")
NAME = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


def absolute(flags: Iterable[str], folder: str) -> tuple[str, ...]:
    """Returns the flags with absolute paths in place of those relative ones that are files or folders below `folder`.

    A path that becomes a part of the library, such as that of -rpath, stays.
    """
    result, before = list[str](), ""
    for flag in flags:
        start = next(filter(flag.startswith, FOR_OTHERS), "")
        if start:
            result.append(start + ",".join(absolute(flag[len(start) :].split(","), folder)))
        elif flag.startswith("-Xcompiler="):
            result.append("-Xcompiler=" + ",".join(absolute(flag[len("-Xcompiler=") :].split(","), folder)))
        else:
            result.append(_absolute_word(before, flag, folder))
        before = flag
    return tuple(result)


def _absolute_word(before: str, word: str, folder: str) -> str:
    """Returns a word with an absolute path, if it has a relative one. `before` is the word before it."""
    if before in (*FOLDERS, *FILES, *WRITTEN):
        flag, path = before, word
    elif LINKED.fullmatch(word) and before not in NAMING | NAMING_LONG:
        flag, path = "", word
    else:
        flag = max((name for name in ("@", *FOLDERS, *FILES, *WRITTEN) if word.startswith(name)), key=len, default="")
        path = word[len(flag) :]
        if path.startswith("="):  # not the = of -I=/x, which stands for the sysroot
            path = path[1:] if flag in (*FILES, *WRITTEN) or flag.startswith("--") else ""
        if not flag:
            return word
    if not path or path.startswith(("/", "-", "$", "=")):
        return word
    whole = os.path.join(folder, path)
    if flag in (*FOLDERS, *WRITTEN) or os.path.exists(whole):
        return word[: len(word) - len(path)] + os.path.normpath(whole)
    return word


def named(flags: Iterable[str], roots: Iterable[KernelRoot]) -> tuple[str, ...]:
    """Returns the flags with the names of roots instead of their paths."""
    roots = [root for root in roots if root.path != os.sep and not {"{", "}"} & set(root.name)]
    result = []
    for before, flag in pairwise(("", *flags)):
        is_path = before in SEPARATE or (flag.endswith(OBJECTS) and before not in TEXT)
        if flag.startswith("/") and is_path:
            flag_here = _named_path(flag, roots)
        elif "/" in flag and not flag.startswith(TEXT) and before not in TEXT:
            pieces, at = [], 0
            for match in JOINED.finditer(flag):
                kind = match.lastgroup or ""
                pieces += [_escaped(flag[at : match.start(kind)]), _named_path(match[kind], roots)]
                at = match.end()
            flag_here = "".join([*pieces, _escaped(flag[at:])])
        else:
            flag_here = _escaped(flag)
        result.append(flag_here)
    return tuple(result)


def located(flags: Iterable[str], root_paths: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the flags with the paths of roots: the reverse of `named`."""

    def text(match: re.Match[str]) -> str:
        return match[0][0] if match[1] is None else root_paths[match[1]]

    return tuple(NAME.sub(text, flag) if "{" in flag or "}" in flag else flag for flag in flags)


def with_files(flags: Iterable[str], within: tuple[str, ...] = ()) -> list[str]:
    """Returns flags with those of the files that they name (@FILE) in their place, as a compiler reads them.

    `within` are the files that are being read.
    """
    words: list[str] = []
    for flag in flags:
        if flag.startswith("@/") and flag not in within and os.path.isfile(flag[1:]):
            words += with_files(words_in(flag[1:]), (*within, flag))
        else:
            words.append(flag)
    return words


def words_in(path: str) -> list[str]:
    """Returns the arguments in a file; none if it cannot be read."""
    with suppress(OSError), open(path, "rb") as file:
        return split(os.fsdecode(file.read()))
    return []


def split(text: str) -> list[str]:
    """Returns the arguments in the text of a response file, as gcc, clang and the linkers read it.

    A backslash takes the next character as it is, also between quotes of either kind, and a quote that is not closed
    ends with the text. (libiberty's buildargv; a shell has other rules, and refuses the latter.)
    """
    return [UNQUOTED.sub(_unquoted, word) for word in WORD.findall(text)]


WORD = re.compile(
    r"(?:[^\s\\'\"]|\\.|\\\Z|'(?:[^'\\]|\\.|\\\Z)*(?:'|\Z)|\"(?:[^\"\\]|\\.|\\\Z)*(?:\"|\Z))+", re.DOTALL | re.ASCII
)
UNQUOTED = re.compile(r"\\(.?)|'((?:[^'\\]|\\.|\\\Z)*)(?:'|\Z)|\"((?:[^\"\\]|\\.|\\\Z)*)(?:\"|\Z)", re.DOTALL)
ESCAPED = re.compile(r"\\(.?)", re.DOTALL)


def _unquoted(match: re.Match[str]) -> str:
    if match[1] is not None:
        return match[1]
    return ESCAPED.sub(r"\1", match[3] if match[2] is None else match[2])


def _named_path(path: str, roots: list[KernelRoot]) -> str:
    """Returns `{root}/path` for the nearest root that a path lies in; the path itself if it lies in none."""
    for candidate in (os.path.normpath(path), os.path.realpath(path)):
        above = [root._replace(path=os.path.normpath(root.path)) for root in roots]
        nearest = max(holding(candidate, above), key=lambda root: len(root.path), default=None)
        if nearest is not None:
            below = os.path.relpath(candidate, nearest.path)
            return f"{{{nearest.name}}}" + ("" if below == "." else "/" + _escaped(below))
    return _escaped(path)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
