"""Finds the libraries that a setup script's `build_ext` links, in the command line of its prepared compiler.

Options come from the extension, setup.cfg, the command line, `build_clib`, Python's own configuration and whatever a
subclass of the command does to `self.compiler`. The compiler puts all of them in order, so it is asked.
"""

from __future__ import annotations

import copy
import os
import re
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from opforge.errors import BuilderError

STEPS = ("compile", "_compile", "link", "link_shared_object", "spawn", "call")
"""The methods of a compiler that a command may replace. torch's own command replaces the first two."""
COMPILES = re.compile(r"-[DUIgO]|-W(?!l,)")
"""Flags that change nothing in a link: setuptools links by the command that compiles C++."""
OBJECT, LIBRARY = "opforge.object.o", "opforge.library.so"
"""Placeholders for the objects and the library on the command line that is asked for."""


class Link(NamedTuple):
    """The words of a link, and the libraries of torch that are among them."""

    words: tuple[str, ...]
    """Without the program, the objects of the extension's sources, the output, and what LDFLAGS says."""
    torch_libraries: tuple[str, ...]
    """File names, such as libtorch.so."""


def of(ext: Any, command: Any, torch_lib: str) -> Link:
    """Returns the link of an extension by the running command. `torch_lib` is the folder of torch's libraries.

    Raises BuilderError if the command compiles or links by another program than setuptools chooses.
    """
    for name in STEPS:
        function = vars(command.compiler).get(name)
        if function is not None and getattr(function, "__module__", "") != "torch.utils.cpp_extension":
            raise BuilderError(
                ext.name, f"its build_ext replaces the compiler's {name}()", "Use the compiler's options"
            )
    stock = _stock_compiler(command)
    argv = _recorded(ext, command, command.compiler)
    own = [_program(argv), _program(command.compiler.compiler_so)]
    if own != [_program(_recorded(ext, command, stock)), _program(stock.compiler_so)]:
        program = " and ".join(dict.fromkeys(map(" ".join, own)))
        raise BuilderError(ext.name, f"its build_ext chooses the compiler {program}", "Set CXX to it")
    if OBJECT not in argv:
        raise BuilderError(ext.name, "its build_ext links in its own way", "Leave the link to setuptools' compiler")
    at = argv.index(OBJECT)
    before = _without(argv[len(own[0]) : at], shlex.split(os.environ.get("LDFLAGS", "")))
    before = [word for word in before if word != "-shared" and not COMPILES.match(word)]
    words = (*before, *_without(argv[at + 1 :], ["-o", LIBRARY]))
    kept, libraries = list[str](), list[str]()
    for word in words:
        name = f"lib{word[2:]}.so" if word.startswith("-l") else ""
        if name and os.path.exists(os.path.join(torch_lib, name)):
            libraries.append(name)
        elif not (word.startswith("-L") and _is_useless(word[2:], torch_lib)):
            kept.append(word)
    return Link(tuple(kept), tuple(dict.fromkeys(libraries)))


def _recorded(ext: Any, command: Any, compiler: Any) -> list[str]:
    """Returns the command by which a compiler would link the extension, as setuptools' build_ext asks it to."""
    lines: list[list[str]] = []

    def record(argv: Sequence[str], *_arguments: Any, **_named: Any) -> None:
        lines.append(list(argv))

    asked = copy.copy(compiler)
    asked.force = True  # there is no object whose time could be compared
    asked.mkpath = lambda *_arguments, **_named: None
    asked.spawn = asked.call = record  # by the release of setuptools
    asked.link_shared_object(
        [OBJECT, *(ext.extra_objects or ())],
        LIBRARY,
        libraries=command.get_libraries(ext),
        library_dirs=ext.library_dirs,
        runtime_library_dirs=ext.runtime_library_dirs,
        extra_postargs=ext.extra_link_args or [],
        export_symbols=command.get_export_symbols(ext),
        target_lang=ext.language or compiler.detect_language(ext.sources),
    )
    return lines[-1] if lines else []


def _stock_compiler(command: Any) -> Any:
    """Returns the compiler that setuptools prepares before a command's subclass changes it."""
    from setuptools._distutils.ccompiler import new_compiler
    from setuptools._distutils.sysconfig import customize_compiler

    compiler = new_compiler(compiler=command.compiler.compiler_type)
    customize_compiler(compiler)
    return compiler


def _program(argv: Sequence[str]) -> list[str]:
    """Returns the words before the first option: the program, with a launcher or `env` before it."""
    return list(argv[: next((number for number, word in enumerate(argv) if word.startswith("-")), len(argv))])


def _without(words: Sequence[str], part: Sequence[str]) -> list[str]:
    """Returns the words without a part of them that follows in one piece."""
    size = len(part)
    for start in range(len(words) - size + 1 if size else 0):
        if list(words[start : start + size]) == list(part):
            return [*words[:start], *words[start + size :]]
    return list(words)


def _is_useless(folder: str, torch_lib: str) -> bool:
    """Returns whether a folder of libraries is torch's, whose libraries are named by stubs, or does not exist.

    Of `-L dir` the first word names no folder, and `=` stands for the sysroot: only the linker knows those.
    """
    if not folder or folder.startswith("="):
        return False
    return not os.path.isdir(folder) or os.path.realpath(folder) == os.path.realpath(torch_lib)
