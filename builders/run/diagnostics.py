"""Turns the output of a failed build into an error with advice."""

from __future__ import annotations

import glob
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from opforge.builders.declaration import kernel_roots
from opforge.builders.declaration.build_plan import Step
from opforge.builders.resources import ended_by_signal, exhausted_resource, memory_advice, no_inodes, small_stack
from opforge.errors import BuildError, BuildResourceError, CompileError
from opforge.fast_path.library import OLDEST_TORCH
from opforge.foundation import settings
from opforge.foundation.symbols import demangled

DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\s:][^:\n]*?)(?::(?P<line>\d+):(?:(?P<column>\d+):)?|\((?P<cuda>\d+)\):)"
    r" (?:(?:fatal|catastrophic) )?(?P<severity>error|warning|note|remark)(?: #\d+(?:-D)?)?: (?P<text>.*)$"
)
"""FILE:LINE:COLUMN: error, as g++ and clang print it, and FILE(LINE): error, as nvcc does."""
SUMMARY = re.compile(r"ld returned|linker command failed")
NOT_STABLE = "TORCH_STABLE_ONLY or TORCH_TARGET_VERSION"
"""A part of the #error in those of torch's headers that are not of the stable ABI."""
LINK = re.compile(
    r"undefined reference to|undefined symbol:|hidden symbol|mold: (?:error|fatal)|ld.lld: error|"
    r"cannot find -l|multiple definition of|ld returned|linker command failed"
)
UNDEFINED = re.compile(r"undefined (?:reference|symbol)")
STUB = re.compile(r"lib(?:torch|c10)\w*\.so")
NO_LINKER = re.compile(
    r"invalid linker name|cannot find '?ld|unrecognized command.line option|unable to execute command"
)
NINJA_LINE = re.compile(r"\[\d+/\d+\] |FAILED: |ninja: (?:build stopped|Entering directory)")
MISSING_HEADER = re.compile(r"'?(?P<name>[^':]+)'?(?:: No such file or directory| file not found)")
MISSING_LIBRARY = re.compile(r"(?:cannot find -l|library not found: |unable to find library -l)(?P<name>[^\s:]+)")
MEMBER_OF_STABLE = re.compile(
    r"is not a member of .torch::stable.(?!:)|no member named .* in namespace 'torch::stable'"
)
REGISTRATION = re.compile(r"^> +\d+ \| (?P<stable>STABLE_)?TORCH_LIBRARY", re.MULTILINE)
"""The head of a registration block in the line that a diagnostic is about, as `_context` marks it."""
UNKNOWN_MACRO = re.compile(
    r"expected constructor|expected unqualified-id|unknown type name|requires a type specifier|does not name a type|"
    r"forbids declaration|expected '[)]' before|['\u2018](?:STABLE_TORCH_LIBRARY\w*|TORCH_BOX)['\u2019]"
)
"""Messages of g++ and clang about an undefined macro."""
CARET_LINE = re.compile(r"^[ |]*\|?[ ]*[~^][ ~^]*$")
"""The line below the source in which g++ and clang mark the place of an error."""
GUTTER = re.compile(r"^ *\d* \| ?")
"""The prefix that g++ prints before a line of the source."""
FLAGS_IN_ONE = re.compile(r"""-(?!ffile-prefix-map=)[^\s"']+(?:\s+-[^\s"']+)+""")
"""A word with several flags, which a shell would have split."""
SUBMODULE = re.compile(r"^\s*path\s*=\s*(\S.*?)\s*$", re.MULTILINE)
"""The folder of a submodule in .gitmodules."""
STANDARD = re.compile(r"^-std=(?:c|gnu)\+\+(\w\w)$")
STANDARDS = {"98": 0, "03": 3, "0x": 11, "1y": 14, "1z": 17, "2a": 20, "2b": 23, "2c": 26}
"""The names of standards that are not their years."""
OLDEST_STANDARD = 17
"""The C++ standard that every torch which opforge builds for needs."""
REQUIRED_STANDARD = re.compile(r"#\s*error\b.*\bC\+\+(\d\d)\b")
"""The message of torch's headers to a compiler for an older standard."""
TORCH_HEADER = re.compile(r"(?P<include>.*/)(?:torch|c10|ATen)/[\w/]+\.h(?:pp)?$")
FACADE_HEADERS, ABI_HEADERS = (
    os.path.join(root.path, root.include) + os.sep for root in (kernel_roots.FACADE, kernel_roots.OPFORGE_ABI)
)
LED_FROM = re.compile(
    r"^(?P<file>[^\s:][^:\n]*?):(?P<line>\d+):(?P<column>\d+):(?:\s+required from|.* requested here$)"
)
"""The place of a use that made a compiler look into a template."""
EXPANDED_IN = re.compile(r"^(?P<file>[^\s:][^:\n]*?):(?P<line>\d+):(?P<column>\d+): note: in expansion of macro ")
"""The place of a macro, which g++ names below an error in it."""
INCLUDED_FROM = re.compile(
    r"^(?:In file included| +) from (?P<file>[^\s:][^:\n]*?):(?P<line>\d+)(?::(?P<column>\d+))?[,:]$"
)
"""The place of an #include that a compiler names above an error."""
OF_TORCH = re.compile(r"(?:ATen|c10|torch|caffe2|pybind11|THC?)/")
"""The beginnings of the names of torch's headers."""
API_HEADERS = "torch/csrc/api/include"
"""The folder in torch's include folder that only the ABI "torch" searches: torch/torch.h and others are there."""
MACRO_OF_TORCH = re.compile(r"^>.*\b(?:AT|TORCH|C10|CAFFE2|THC?)_\w+", re.MULTILINE)
"""A macro of torch's in the line of an error, as `_context` shows it."""
UNKNOWN_NAME = re.compile(
    r"['\u2018]\w+['\u2019] (?:was not declared|does not name)|use of undeclared |unknown type name |"
    r'identifier "\w+" is undefined'
)
"""A name without a namespace, which `using namespace at`, or an argument's type, may lead to torch's."""
INTRINSIC = re.compile(r"['\u2018](?:_mm\d*_\w+|__m\d+\w*)['\u2019]")
"""A vector function or type of x86. torch's own headers bring them where the processor converts halves."""
HEAD = 2000
"""Characters at the beginning of such a header in which it checks the standard."""
HEADERS_WITH_STANDARD = ("ATen/ATen.h", "torch/all.h", "torch/csrc/api/include/torch/all.h")
LONGEST_LINE = 400
"""The number of characters of a line that a message shows; the log has all of it."""
CONTEXT_BEFORE, CONTEXT_AFTER = 5, 4
"""The number of lines of the source that a message shows before and after the one that a diagnostic is about."""
LONGEST_OUTPUT = 64 << 10
"""The number of characters of the compilers' output that an entry keeps."""


def build_error(
    op: str, status: int, output: str, log: str, folder: str = "", is_on_facade: bool = False
) -> BuildError:
    """Returns the error for a build that failed.

    Args:
        op: The op.
        status: ninja's exit status, 128 + signal if it was killed.
        output: What ninja and the compilers printed.
        log: The path at which the output is kept; empty if it is not.
        folder: The folder in which the compilers wrote; empty if it is not known.
        is_on_facade: Whether the sources were compiled with the facade of torch's headers.
    """
    lines = output.splitlines()
    exhausted = exhausted_resource(op, output, log)
    if exhausted:
        return (no_inodes(op, folder, log) or exhausted) if "No space left on device" in output else exhausted
    if status > 128 and "FAILED:" not in output:  # with "FAILED:" it is a compiler's own status, such as 255
        program = "ninja or a compiler" if "interrupted by user" in output else "ninja"
        advice = (small_stack() if status - 128 == signal.SIGSEGV else "") or "Run it again."
        return BuildResourceError.of(op, f"{program} was ended by signal {status - 128}", advice, log)
    title, command = _failed_step(lines)
    if ended := ended_by_signal(op, title, output, log):
        return ended
    argv, diagnostics = _argv(command), [*parse_diagnostics(lines)]
    first = next((diagnostic for diagnostic in diagnostics if diagnostic["severity"] == "error"), None)
    if first:
        reported, first = first, _in_the_source(lines, first)
        location = f"{first['file']}:{first['line']}" + (f":{first['column']}" if first["column"] else "")
        context = _context(first["file"], first["line"], _caret(lines, first))
        is_led = first is not reported  # a use in the source made the compiler look into the facade
        may_be_a_limit = is_on_facade and (is_led or _may_be_a_limit(first["message"], context))
        hint = _hint_for(first, context, argv, may_be_a_limit)
        shown = "\n".join(part for part in (context, hint, _further(diagnostics, log)) if part)
        return CompileError.of(op, title, f"{location}: error: {first['message']}", shown, argv, log, diagnostics)
    link_lines = sorted((line for line in lines if LINK.search(line)), key=lambda line: bool(SUMMARY.search(line)))
    if link_lines and not SUMMARY.search(link_lines[0]):
        message = link_lines[0].strip()
        hint = _flag_hint(argv, message) or _hint(message)
        return CompileError.of(op, title, message, hint, argv, log, [*diagnostics, *map(_unlocated, link_lines)])
    exhausted = no_inodes(op, folder, log)
    if exhausted:
        return exhausted
    printed = [line for line in lines if line.strip() not in ("", command) and not NINJA_LINE.match(line)]
    reasons = [line for line in printed if not SUMMARY.search(line)]
    if printed and not reasons:
        problem = "the linker failed and printed no reason: memory may have run out"
        advice = f"{memory_advice()} Or raise the limit (`ulimit -v`)."
        return BuildResourceError.of(op, problem, advice, log)
    likely = [line for line in reasons if "error" in line.lower()] or reasons[-3:]
    message = " / ".join(line[:LONGEST_LINE] for line in likely[:3]) or f"exit status {status}"
    hint = _flag_hint(argv, message)
    return CompileError.of(op, title, message, hint, argv, log, [*diagnostics, _unlocated(message)])


def _hint_for(error: Mapping[str, Any], context: str, argv: Sequence[str], may_be_a_limit: bool) -> str:
    """Returns what to do about a compiler's error; empty if nothing is known about it.

    `may_be_a_limit` says whether it may come from what the facade of torch's headers does not have.
    """
    message, file = error["message"], error["file"]
    hint = _flag_hint(argv, message) or _standard_hint(argv, file, message)
    hint = hint or (_facade_hint(message, argv) if may_be_a_limit else "")
    hint = hint or _abi_hint(message, file, argv)
    hint = hint or _submodule_hint(message, file) or _sdist_hint(message, file, context)
    return hint or _hint(message, context) or _language_hint(argv)


def parse_diagnostics(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields the compilers' diagnostics of source lines, in the form of `CompileError.diagnostics`."""
    for line in lines:
        if match := DIAGNOSTIC.match(line):
            yield {
                "file": match["file"],
                "line": int(match["line"] or match["cuda"]),
                "column": int(match["column"] or 0),
                "severity": match["severity"],
                "message": match["text"],
            }


def compiler_output(output: str) -> str:
    """Returns the compilers' output in a build without ninja's own lines, at most LONGEST_OUTPUT characters."""
    return "\n".join(line for line in output.splitlines() if not NINJA_LINE.match(line))[:LONGEST_OUTPUT]


def _unlocated(message: str) -> dict[str, Any]:
    """Returns an error that belongs to no line of a source, in the form of `CompileError.diagnostics`."""
    return {"file": "", "line": 0, "column": 0, "severity": "error", "message": message.strip()}


def _argv(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # the line after "FAILED:" is not always a command
        return [command]


def no_registration(op: str) -> CompileError:
    """Returns the error for a stable-ABI library in which no block registers an op."""
    return CompileError(
        f"{op}: no source registers an op. Write a STABLE_TORCH_LIBRARY({op}, m) block after"
        " #include <torch/csrc/stable/library.h>, or choose abi='c' for plain functions, abi='torch' for pybind.",
        op,
    )


def wrong_module_name(op: str, module: str) -> CompileError:
    """Returns the error for a pybind module that Python would not find under the op's name."""
    return CompileError(
        f"{op}: the library's Python module is named {module!r}, and the op {op!r}."
        " Write PYBIND11_MODULE(TORCH_EXTENSION_NAME, m), or give the op the module's name.",
        op,
    )


def nothing_for_python(op: str) -> CompileError:
    """Returns the error for a library on the facade that has neither a module nor an op."""
    return CompileError(
        f"{op}: no source has a PYBIND11_MODULE or registers an op."
        " Write PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) or a TORCH_LIBRARY block that names the functions.",
        op,
    )


def branch_by_version(op: str, path: str, line: int, macro: str) -> CompileError:
    """Returns the error for a line on the facade that a later torch may answer otherwise."""
    message = (
        f"{macro} decides here between versions of torch that this one library serves:"
        f" expected a condition with one answer from torch {OLDEST_TORCH} on"
    )
    shown = f"{op}: {path}:{line}: error: {message}", _context(path, line), _facade_hint(message, ("-c", path))
    diagnostic = {"file": path, "line": line, "column": 0, "severity": "error", "message": message}
    return CompileError("\n".join(filter(None, shown)), op, diagnostics=[diagnostic])


def no_exports(op: str) -> CompileError:
    """Returns the error for a library of plain functions that exports none."""
    return CompileError(
        f"{op}: the library exports no function that can be called by name."
        ' Begin each with: extern "C" (and not with static)',
        op,
    )


UNLISTED = {
    ".s": "rename it to .S",
    ".i": "name the .c that it was made from",
    ".ii": "name the .cpp that it was made from",
}


def missing_output(op: str, step: Step, name: str, log: str) -> CompileError:
    """Returns the error for a command that ended with status 0 and did not write `name`."""
    advice = "Try another CXX"
    if step.unit:
        advice = (
            "A C++ compiler knows a source by its suffix, such as .cpp, .cc, .cxx, .S: rename it, or try another CXX."
            " Compile other languages yourself, and name the objects in extra_link_args"
        )
        suffix = os.path.splitext(step.unit.path)[1]
        if suffix in UNLISTED:
            advice = (
                f"Of a {suffix} file, which is not preprocessed, no compiler lists what it reads: {UNLISTED[suffix]}"
            )
    problem = f"it ended with status 0 and did not write {name}. {advice}"
    return CompileError.of(op, step.title, problem, "", step.argv, log, [_unlocated(problem)])


def missing_symbols(op: str, names: Sequence[str]) -> CompileError:
    """Returns the error for a library with symbols that no library has which will be loaded with it."""
    shown = [*demangled(names[:3]).values()]
    further = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return CompileError(
        f"{op}: undefined symbol: {', '.join(shown)}{further}: none of the libraries that it needs has it, nor has"
        " Python or torch.\nhint: name the source or the library that defines it in sources or libraries; or set"
        " OPFORGE_ALLOW_UNDEFINED=1 if another library will be there when this one is loaded",
        op,
    )


def not_loadable(op: str, problem: str) -> CompileError:
    """Returns the error for a linker that ended with status 0 and wrote something else than a library."""
    return CompileError(
        f"{op}: the linked library cannot be loaded: {problem}. Check CXX and LDFLAGS, or try another CXX.",
        op,
    )


def _in_a_wheel(header: str) -> str:
    """Returns the folder of a header among the wheels of CUDA's libraries; empty if none has it.

    torch for CUDA installs them. A compiler that is installed without these libraries does not look there.
    """
    found = (path for folder in sys.path for path in glob.glob(f"{glob.escape(folder or os.curdir)}/nvidia/*/include"))
    return next((path for path in found if os.path.isfile(os.path.join(path, header))), "")


def _hint(text: str, context: str = "") -> str:
    """Returns the hint for a diagnostic, as a line of the message; empty if none is known.

    `context` is the source around it, as `_context` returns it.
    """
    if header := MISSING_HEADER.match(text):
        name = header["name"]
        if folder := _in_a_wheel(name):
            return f"hint: {name} is in {folder}: add that folder to include_dirs, or set CPATH to it"
        if name == "Python.h":
            return (
                "hint: install this Python's headers (Debian, Ubuntu: apt install python3-dev; Fedora: dnf install"
                ' python3-devel), or declare abi = "torch-facade", which needs none'
            )
        return f"hint: add the folder that holds {name} to include_dirs, or install the package that provides it"
    if library := MISSING_LIBRARY.search(text):
        name = library["name"]
        if "/" in name:
            return f"hint: write {name.removeprefix('-l')!r} in extra_link_args: a name in libraries has no folder"
        if (bare := re.sub(r"^(-l|lib)|\.(so[.\d]*|a)$", "", name)) != name:
            return f"hint: write {bare!r}: a name in libraries, and after -l, has neither -l nor lib before it, nor .so"
        return f"hint: install what provides lib{name}.so, or name its folder in extra_link_args: -L/the/folder"
    if MEMBER_OF_STABLE.search(text):
        return (
            "hint: the functions of torch::stable are in torch/csrc/stable/ops.h: is that included above? Some are in"
            " newer versions of torch alone: raise torch_target"
        )
    if INTRINSIC.search(text) and UNKNOWN_NAME.search(text):
        return "hint: #include <immintrin.h> in that source: torch's headers do not"
    if UNDEFINED.search(text) and "torch::stable::Tensor::" in text:
        return "hint: #include <torch/csrc/stable/tensor.h> in that source"
    if "needs torch_target" in text or "need torch_target" in text:
        return "hint: set torch_target in the builder, or pass it to opforge.load"
    if "torch::stable::detail::StableLibrary::Boxed" in text:
        return 'hint: wrap the function: m.impl("name", TORCH_BOX(&function))'
    if "overloaded function" in text and "TORCH_BOX" in context:
        return "hint: rename it: TORCH_BOX takes a name that one function has, and a header may declare another one"
    if "redefinition of" in text and "TORCH_LIBRARY_static_init_" in text:
        return (
            "hint: a namespace has one such block: put all ops into it, or write STABLE_TORCH_LIBRARY_FRAGMENT below it"
        )
    block = REGISTRATION.search(context)
    if block and UNKNOWN_MACRO.search(text) and "did you mean" not in text:
        if not block["stable"]:
            return "hint: beside torch/csrc/stable/library.h write STABLE_TORCH_LIBRARY; this one is in torch/library.h"
        return "hint: this macro is in torch/csrc/stable/library.h: is that included above?"
    return ""


def _in_the_source(lines: Sequence[str], error: dict[str, Any]) -> dict[str, Any]:
    """Returns an error in a header of opforge's with the place in a source that has led to it, if that is known."""
    own = FACADE_HEADERS, ABI_HEADERS
    if not error["file"].startswith(own):
        return error
    at = next((at for at, line in enumerate(lines) if line.startswith(f"{error['file']}:{error['line']}:")), 0)
    before = [match for line in lines[:at] if (match := LED_FROM.match(line))]  # as g++ prints it
    after = [match for line in lines[at:] if (match := LED_FROM.match(line) or EXPANDED_IN.match(line))]  # and clang
    included = [match for line in lines[:at] if (match := INCLUDED_FROM.match(line))]
    # g++ has the innermost of them first in a line that begins so, clang last and each in such a line
    start = max((number for number, match in enumerate(included) if match[0].startswith("In")), default=0)
    for match in (*reversed(before), *after, *included[start:], *reversed(included[:start])):
        if not match["file"].startswith(own):
            return error | {"file": match["file"], "line": int(match["line"]), "column": int(match["column"] or 0)}
    return error


def _may_be_a_limit(text: str, context: str) -> bool:
    """Returns whether an error may come from what the facade does not have, and not from the source's own text."""
    from opforge.builders.facade.front_end import OF_TORCH as NAMES_TORCH  # for builds on the facade alone

    if text.startswith("expected "):  # what a macro that is not defined leaves
        return MACRO_OF_TORCH.search(context) is not None
    known = NAMES_TORCH.search(text) or "static assertion failed" in text
    return bool(known or MISSING_HEADER.match(text) or UNKNOWN_NAME.match(text))


def _abi_hint(text: str, file: str, argv: Sequence[str]) -> str:
    """Returns the hint for what the op's ABI does not have: headers of torch's, or parts of Python's interface."""
    folders = [word for word in argv if word.endswith("/torch/include")]
    header = MISSING_HEADER.match(text)
    name = header["name"] if header and OF_TORCH.match(header["name"]) else ""
    if NOT_STABLE in text or (name and any(os.path.exists(f"{folder}/{API_HEADERS}/{name}") for folder in folders)):
        return 'hint: this header is not of the stable ABI: declare abi = "torch", or "torch-facade", in the builder'
    if name and not folders:
        return (
            'hint: abi = "c" has no headers of torch: declare "torch-stable" for torch/csrc/stable, "torch" for others'
        )
    if "/pybind11/" in file and any(word.startswith("-DPy_LIMITED_API") for word in argv):
        return (
            "hint: pybind11 needs more than Python's limited API: remove py_limited_api=True (-DPy_LIMITED_API); on the"
            " facade, with OPFORGE_CPP_EXTENSION=torch-facade, one library serves every Python"
        )
    return ""


def _facade_hint(text: str, argv: Sequence[str]) -> str:
    """Returns the hint for a line that the facade may not have; empty for a header that is not torch's."""
    header = MISSING_HEADER.match(text)
    if header and not OF_TORCH.match(header["name"]):
        return ""
    source = argv[argv.index("-c") + 1] if "-c" in argv[:-1] else "SOURCE"
    return (
        f"hint: if torch's own headers accept the source: `opforge why-not {shlex.quote(source)}` lists every line that"
        ' the facade of torch\'s headers does not have; abi="torch", or OPFORGE_CPP_EXTENSION=1 for a setup script,'
        " compiles with those, for one torch and one Python"
    )


def joined_flags_hint(argv: Sequence[str]) -> str:
    """Returns what is wrong if a word of a command has several flags, as a shell would split it; otherwise nothing."""
    joined = next((word for word in argv if FLAGS_IN_ONE.fullmatch(word)), "")
    return joined and f"{joined!r} is one argument to the compiler: write each flag as a string of its own"


def _flag_hint(argv: Sequence[str], text: str) -> str:
    """Returns a hint if a flag of the command asks for what cannot be: 32 bits, all symbols, a linker that is missing.

    `text` is the diagnostic.
    """
    if "-m32" in argv:
        return "hint: -m32 builds for 32 bits, and Python and torch here have 64: remove it"
    if "-static" in argv and "-shared" in argv:
        return "hint: a library that Python loads cannot be linked with -static: remove it (-static-libgcc is possible)"
    if joined := joined_flags_hint(argv):
        return f"hint: {joined}"
    words = [part for word in argv for part in (word[4:].split(",") if word.startswith("-Wl,") else [word])]
    has_defs = "--no-undefined" in words or "--no-allow-shlib-undefined" in words or ("-z", "defs") in pairwise(words)
    if has_defs and UNDEFINED.search(text) and any(STUB.fullmatch(word) for word in argv):
        return (
            "hint: torch's libraries are linked by name alone: remove -Wl,-z,defs (--no-undefined). After the link"
            " opforge itself looks for symbols that no library has"
        )
    named = [word for word in argv if word.startswith(("-fuse-ld=", "--ld-path="))]
    if named and NO_LINKER.search(text):
        return f"hint: install the linker that {named[-1]} names, or remove that flag"
    for variable, flags in settings.user_flags().items():
        for flag in flags.split():
            if flag.startswith("-") and re.search(rf"(?<!\S)['\u2018]?{re.escape(flag)}(?![\w-])", text):
                return f"hint: {flag} is in {variable}, whose flags are for every op: correct that variable"
    return ""


def _submodule_hint(text: str, file: str) -> str:
    """Returns the hint for a missing header if the project of `file` has a git submodule without files."""
    if not MISSING_HEADER.match(text) or not os.path.isabs(file):
        return ""
    for root in map(str, Path(file).parents):
        if empty := next((path for path in _submodules(root) if not _has_files(os.path.join(root, path))), ""):
            return (
                f"hint: the git submodule {empty} in {root} is empty: run `git submodule update --init --recursive`"
                " there. An archive that a forge makes has no submodules: clone the project instead"
            )
    return ""


def _sdist_hint(text: str, file: str, context: str) -> str:
    """Returns the hint for a missing header of the project's own, if `file` is in an unpacked source distribution."""
    header = MISSING_HEADER.match(text)
    if not header or f'"{header["name"]}"' not in context:
        return ""
    if not any((root / "PKG-INFO").is_file() for root in Path(file).parents):
        return ""
    what = f"the source distribution may lack {header['name']}: add `recursive-include FOLDER *.h` to MANIFEST.in"
    return f"hint: {what}, or name its folder in include_dirs"


def _submodules(root: str) -> list[str]:
    """Returns the folders of a project's git submodules, as .gitmodules names them."""
    path = os.path.join(root, ".gitmodules")
    with suppress(OSError), open(path, encoding="utf-8", errors="replace", opener=_without_waiting) as listed:
        return SUBMODULE.findall(listed.read(LONGEST_OUTPUT))
    return []


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # anyone may put a pipe into a folder such as /tmp


def _has_files(folder: str) -> bool:
    try:
        return bool(os.listdir(folder))
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _language_hint(argv: Sequence[str]) -> str:
    """Returns a hint if the source is C, which is compiled as C++."""
    is_c = "-c" in argv[:-1] and argv[argv.index("-c") + 1].endswith(".c")
    return (
        'hint: a .c file is compiled as C++: write what is both, with extern "C" before its functions' if is_c else ""
    )


def _standard_hint(argv: Sequence[str], file: str, text: str) -> str:
    """Returns a hint if one of torch's headers is compiled for a C++ standard that is too old for it.

    The number is in the diagnostic `text` of the header `file`, or in those of torch's headers that check it.
    """
    flags = [match for word in argv if (match := STANDARD.match(word))]
    header = TORCH_HEADER.search(file)
    if not flags or not header:
        return ""
    needed = _required_standard([text]) or _required_standard(_heads(header["include"])) or OLDEST_STANDARD
    chosen = flags[-1][1]
    if (STANDARDS[chosen] if chosen in STANDARDS else int(chosen)) >= needed:
        return ""
    flag = flags[-1][0]
    return (
        f"hint: torch's headers need C++{needed}: remove {flag} from extra_compile_args and CXXFLAGS, or write"
        f" -std=c++{needed}"
    )


def _required_standard(texts: Iterable[str]) -> int:
    """Returns the number of the C++ standard that headers require by an #error; 0 if they require none."""
    return max((int(match[1]) for text in texts if (match := REQUIRED_STANDARD.search(text))), default=0)


def _heads(include: str) -> Iterator[str]:
    """Yields the beginnings of those of torch's headers that check the standard."""
    for name in HEADERS_WITH_STANDARD:
        with suppress(OSError), open(os.path.join(include, name), encoding="utf-8", errors="replace") as file:
            yield file.read(HEAD)


def _further(diagnostics: Sequence[Mapping[str, Any]], log: str) -> str:
    """Returns how many other errors there are, as a line of the message; empty if there are none."""
    errors = {tuple(entry.values()) for entry in diagnostics if entry["severity"] == "error"}
    number = len(errors) - 1
    where = "in the full log" if log else "in CompileError.diagnostics"
    return f"and {number} further {'error' if number == 1 else 'errors'} {where}" if number > 0 else ""


def _caret(lines: Sequence[str], diagnostic: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the line of the source as the compiler printed it, with tabs replaced, and the marks below it.

    Both are empty if it printed none.
    """
    start = f"{diagnostic['file']}:{diagnostic['line']}:{diagnostic['column']}:"
    for number, line in enumerate(lines[:-2]):
        if line.startswith(start) and CARET_LINE.match(lines[number + 2]):
            width = len(match[0]) if (match := GUTTER.match(lines[number + 1])) else 0
            return lines[number + 1][width:], lines[number + 2][width:].rstrip()
    return "", ""


def _failed_step(lines: list[str]) -> tuple[str, str]:
    """Returns the title and the command of the first step that failed, as ninja prints them."""
    title = "the build"
    for number, line in enumerate(lines):
        if status := re.match(r"^\[\d+/\d+\] (.*)$", line):
            title = status[1]
        if line.startswith("FAILED:"):
            return title, lines[number + 1].strip() if number + 1 < len(lines) else ""
    return title, ""


def _context(path: str, line: int, caret: tuple[str, str] = ("", "")) -> str:
    """Returns ten lines of the source around a line, which is marked; empty if the source cannot be read.

    `caret` is what `_caret` returns. A text that is not the file's, such as that of a macro, is left out.
    """
    try:
        with open(path.encode(), encoding="utf-8", errors="replace") as file:  # the name is UTF-8 whatever the locale
            source = file.read().splitlines()
    except OSError:
        return ""
    text, marks = caret
    first, last = max(1, line - CONTEXT_BEFORE), min(len(source), line + CONTEXT_AFTER)
    shown = []
    for number in range(first, last + 1):
        is_marked = number == line and marks and text.split() == source[number - 1].split()
        shown.append(f"{'>' if number == line else ' '}{number:5} | {text if is_marked else source[number - 1]}")
        shown += [f"       | {marks}"] if is_marked else []
    return "\n".join(shown)
