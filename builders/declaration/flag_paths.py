"""Paths in flags: below a kernel root or the builder's own folder, a key holds the root's name instead of its path.

In a plan such a flag is `-I{own}/include`, with every other brace doubled. Commands get the path again. A relative path
in a flag counts from the builder's own folder. From the spec on it is absolute: compilers run in a folder of their own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from .kernel_roots import KernelRoot, holding

FOLDERS = ("-I", "-isystem", "-iquote", "-idirafter", "-L", "--library-path", "--include-directory")
"""The flags of folders that are searched. One that does not exist yet is searched once it does."""
READ = (
    *("@", "-include", "-imacros", "-T"),
    *(
        f"{dash}{name}"
        for name in (
            *("version-script", "dynamic-list", "script", "default-script", "just-symbols", "retain-symbols-file"),
            *("export-dynamic-symbol-list", "symbol-ordering-file", "section-ordering-file"),
        )
        for dash in ("-", "--")
    ),
)
"""The flags of files that are read. Their paths become no part of the library, so a key has them by their roots."""
KEPT = (
    *("-B", "-fplugin", "-specs", "--specs", "--sysroot", "-isysroot", "--embed-dir"),
    *("-fprofile-use", "-fprofile-instr-use", "-fprofile-sample-use", "-fauto-profile"),
    *("-fsanitize-ignorelist", "-fsanitize-blacklist"),
)
"""Further flags that name what is read. Their paths stay in the key."""
WRITTEN = ("-Map", "--Map")
"""The flags of a file that the linker writes."""
FLAGS = (*FOLDERS, *READ, *KEPT, *WRITTEN)
"""The flags with a path in the same word or in the next one. A path in another flag (-D, -rpath) may become a part of
the library, and stays as it is."""
LINKED = re.compile(r"[^-@].*\.(?:a|o|lo|lds?|so(?:\.\d+)*)")
"""A word that may be a file to be linked."""
NAMING = frozenset(
    {
        *("-D", "-U", "-u", "-o", "-h", "-z", "-e"),
        *(
            f"{dash}{name}"
            for name in (
                *("soname", "rpath", "rpath-link", "undefined", "entry", "defsym"),
                *("exclude-libs", "filter", "auxiliary"),
            )
            for dash in ("-", "--")
        ),
    }
)
"""Options whose argument is a name, even if a file of that name exists."""
FOR_ANOTHER = re.compile(r"-W[lpa],|-X[\w-]+=|--(?:compiler|linker)-options=")
"""Prefixes of a list of words for another program."""
NEXT_FOR_ANOTHER = re.compile(r"-X[\w-]+")
"""A flag whose next word is for another program."""
LINKER = "-Wl,"
TO_LINKER = frozenset({LINKER, "-Xlinker", "-Xlinker=", "--linker-options="})
OBJECTS = (".a", ".o")
NAME = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


def absolute(flags: Iterable[str], folder: str) -> tuple[str, ...]:
    """Returns the flags with absolute paths in place of those relative ones that are files or folders below `folder`.

    A path that becomes a part of the library, such as that of -rpath, stays.
    """
    return tuple(
        start + ",".join(_absolute_word(before, word, folder) for before, word in words)
        for start, words in _parsed(flags)
    )


def _parsed(flags: Iterable[str]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yields the beginning of each flag and its words, each with the word before it that the same program gets.

    The words of one program may come in several flags: `-Wl,-T -Wl,a.ld`, `-Xlinker -T -Xlinker a.ld`. So may
    `-Wl,-T a.ld`, because a compiler hands its input files to the linker in order.
    """
    last: dict[str, str] = {}
    for flag in flags:
        match = FOR_ANOTHER.match(flag)
        start = match[0] if match else ""
        driver = last.get("", "")
        program = start or (driver if NEXT_FOR_ANOTHER.fullmatch(driver) else "")
        program = LINKER if program in TO_LINKER else program.rstrip("=")
        words = flag[len(start) :].split(",") if program else [flag]
        yield start, [*zip((last.get(program, ""), *words), words, strict=False)]
        last[program] = words[-1]
        if program:
            last[""] = words[-1] if program == LINKER else ""
        elif flag[:1] != "-":
            last[LINKER] = flag


def _path_in(before: str, word: str) -> tuple[str, str]:
    """Returns the flag of a word's path, and the path at the word's end; an empty path if there is none.

    `before` is the word before it. The flag is empty for a file that is linked.
    """
    if before != "@" and before in FLAGS:
        return before, word
    if LINKED.fullmatch(word):
        return "", "" if before in NAMING else word
    flag = max(filter(word.startswith, FLAGS), key=len, default="")
    path = word[len(flag) :] if flag else ""
    if path.startswith("="):  # not the = of -I=/x, which stands for the sysroot
        path = path[1:] if flag not in FOLDERS or flag.startswith("--") else ""
    return flag, path


def _absolute_word(before: str, word: str, folder: str) -> str:
    """Returns a word with an absolute path, if it has a relative one. `before` is the word before it."""
    flag, path = _path_in(before, word)
    if not path or path.startswith(("/", "-", "$", "=")):
        return word
    whole = os.path.join(folder, path)
    if flag in (*FOLDERS, *WRITTEN) or os.path.exists(whole):
        return word[: len(word) - len(path)] + os.path.normpath(whole)
    return word


def named(flags: Iterable[str], roots: Iterable[KernelRoot]) -> tuple[str, ...]:
    """Returns the flags with the names of roots instead of their paths."""
    roots = [root for root in roots if root.path != os.sep and not {"{", "}"} & set(root.name)]
    return tuple(
        _escaped(start) + ",".join(_named_word(before, word, roots) for before, word in words)
        for start, words in _parsed(flags)
    )


def _named_word(before: str, word: str, roots: list[KernelRoot]) -> str:
    """Returns a word with the name of a root, if it has a path below one that becomes no part of the library."""
    flag, path = _path_in(before, word)
    is_named = flag not in KEPT if flag else path.endswith(OBJECTS)
    if not path.startswith("/") or not is_named:
        return _escaped(word)
    path, comma, rest = path.partition(",")
    return _escaped(word[: len(word) - len(path + comma + rest)]) + _named_path(path, roots) + _escaped(comma + rest)


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


def relative_in_files(flags: Iterable[str], folder: str) -> tuple[str, str]:
    """Returns the first file of flags (@FILE) with a relative path to what is below `folder`, and the word with it.

    Both are empty if there is none. Compilers look for it in their working folder, which is another one.
    """
    for flag in flags:
        if flag.startswith("@/"):
            words = with_files([flag])
            for (start, parts), word in zip(_parsed(words), words, strict=True):
                if start + ",".join(_absolute_word(before, part, folder) for before, part in parts) != word:
                    return flag[1:], word
    return "", ""


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
