"""Turns what a failed build printed into an error that a person can act on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from opforge.builders.resources import exhausted_resource
from opforge.builders.spec.build_plan import Step
from opforge.errors import BuildError, BuildResourceError, CompileError

DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\s:][^:\n]*?)(?::(?P<line>\d+):(?:(?P<column>\d+):)?|\((?P<cuda>\d+)\):)"
    r" (?:(?:fatal|catastrophic) )?(?P<severity>error|warning|note|remark)(?: #\d+(?:-D)?)?: (?P<text>.*)$"
)
"""As g++ and clang write it, FILE:LINE:COLUMN: error, and as nvcc does, FILE(LINE): error."""
SUMMARY = re.compile(r"ld returned|linker command failed")
LINK = re.compile(
    r"undefined reference to|undefined symbol:|hidden symbol|mold: (?:error|fatal)|ld.lld: error|"
    r"cannot find -l|multiple definition of|ld returned|linker command failed"
)
NINJAS = re.compile(r"\[\d+/\d+\] |FAILED: |ninja: (?:build stopped|Entering directory)")
MISSING_HEADER = re.compile(r"'?(?P<name>[^':]+)'?(?:: No such file or directory| file not found)")
MISSING_LIBRARY = re.compile(r"(?:cannot find -l|library not found: |unable to find library -l)(?P<name>[^\s:]+)")
REGISTRATION = re.compile(r"^> +\d+ \| STABLE_TORCH_LIBRARY", re.MULTILINE)
"""The line that a diagnostic is about, as `_context` marks it."""
LONGEST_LINE = 400
"""Characters of a line that a message shows; the log has all of it."""
CONTEXT_BEFORE, CONTEXT_AFTER = 5, 4
LONGEST_KEPT = 64 << 10
"""Characters that an entry keeps of what compilers said."""


def build_error(op: str, status: int, output: str, log: str) -> BuildError:
    """The error for a build that ended with `status` after printing `output`; `log` is where all of it was kept."""
    lines = output.splitlines()
    scarce = exhausted_resource(op, output, log)
    if scarce:
        return scarce
    if "_opforge_blocks" in output and LINK.search(output):
        return no_registration(op)
    if status > 128 and "FAILED:" not in output:  # a compiler of its own accord may end with 255
        return BuildResourceError.of(op, f"ninja was ended by signal {status - 128}", "Run it again.", log)
    title, command = _failed_step(lines)
    words, found = _words(command), [*parse_diagnostics(lines)]
    first = next((one for one in found if one["severity"] == "error"), None)
    if first:
        where = f"{first['file']}:{first['line']}" + (f":{first['column']}" if first["column"] else "")
        context = _context(first["file"], first["line"])
        told = f"{where}: error: {first['message']}{_advice(first['message'], context)}"
        return CompileError.of(op, title, told, context, words, log, found)
    linking = sorted((line for line in lines if LINK.search(line)), key=lambda line: bool(SUMMARY.search(line)))
    if linking:
        told = linking[0].strip() + _advice(linking[0])
        return CompileError.of(op, title, told, "", words, log, [*found, *map(_unplaced, linking)])
    own = [line for line in lines if line.strip() not in ("", command) and not NINJAS.match(line)]
    said = [line for line in own if "error" in line.lower()] or own[-3:]
    shown = " / ".join(line[:LONGEST_LINE] for line in said[:3]) or f"exit status {status}"
    return CompileError.of(op, title, shown, "", words, log, [*found, _unplaced(shown)])


def parse_diagnostics(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """What compilers say of places in sources, in the form of `CompileError.diagnostics`."""
    for line in lines:
        found = DIAGNOSTIC.match(line)
        if found:
            place = {"file": found["file"], "line": int(found["line"] or found["cuda"])}
            yield {
                **place,
                "column": int(found["column"] or 0),
                "severity": found["severity"],
                "message": found["text"],
            }


def compiler_output(output: str) -> str:
    """What the compilers printed in a build, without ninja's own lines; the beginning, where it is very long."""
    return "\n".join(line for line in output.splitlines() if not NINJAS.match(line))[:LONGEST_KEPT]


def _unplaced(said: str) -> dict[str, Any]:
    """An error that speaks of no place in a source."""
    return {"file": "", "line": 0, "column": 0, "severity": "error", "message": said.strip()}


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # what stands where a command is expected need not be one
        return [command]


def no_registration(op: str) -> CompileError:
    """The error for a stable-ABI library in which no block registers an op."""
    return CompileError(
        f"{op}: no source registers an op. Write a STABLE_TORCH_LIBRARY({op}, m) block after"
        " #include <torch/csrc/stable/library.h>, or choose abi='c' for plain functions, abi='torch' for pybind.",
        op,
    )


def wrong_module_name(op: str, module: str) -> CompileError:
    """The error for a pybind module that Python would not find under the op's name."""
    return CompileError(
        f"{op}: the library's Python module is named {module!r}, and the op {op!r}."
        " Write PYBIND11_MODULE(TORCH_EXTENSION_NAME, m), or give the op the module's name.",
        op,
    )


def no_exports(op: str) -> CompileError:
    """The error for a library of plain functions that nothing outside it can see."""
    return CompileError(
        f"{op}: the library exports no function that can be called by name."
        ' Begin each with: extern "C" (and not with static)',
        op,
    )


def missing_output(op: str, step: Step, name: str, log: str) -> CompileError:
    """The error for a command that ended with status 0 and left one of its files out."""
    advice = "Try another CXX"
    if step.unit:
        advice = "A C++ compiler knows a source by its suffix, such as .cpp, .cc, .cxx: rename it, or try another CXX"
    problem = f"it ended with status 0 and did not write {name}. {advice}"
    return CompileError.of(op, step.title, problem, "", step.argv, log, [_unplaced(problem)])


def not_loadable(op: str, problem: str) -> CompileError:
    """The error for a linker that ended with status 0 and left something else than a library."""
    return CompileError(
        f"{op}: what was linked cannot be loaded: {problem}. Check CXX and LDFLAGS, or try another CXX.",
        op,
    )


def _advice(text: str, context: str = "") -> str:
    """What to do about a diagnostic, where its words or the line that it is about tell."""
    if header := MISSING_HEADER.match(text):
        name = header["name"]
        return f"\n(add the folder that holds {name} to include_dirs, or install the package that provides it)"
    if library := MISSING_LIBRARY.search(text):
        return (
            f"\n(install what provides lib{library['name']}.so, or name its folder in extra_link_args: -L/the/folder)"
        )
    if "opforge::Library::Boxed" in text:
        return '\n(wrap the function: m.impl("name", TORCH_BOX(&function)))'
    if REGISTRATION.search(context):
        return "\n(this macro is in torch/csrc/stable/library.h: is that included above?)"
    return ""


def _failed_step(lines: list[str]) -> tuple[str, str]:
    """The title and the command of the first step that failed, as ninja prints them."""
    title = "the build"
    for number, line in enumerate(lines):
        status = re.match(r"^\[\d+/\d+\] (.*)$", line)
        if status:
            title = status[1]
        if line.startswith("FAILED:"):
            return title, lines[number + 1].strip() if number + 1 < len(lines) else ""
    return title, ""


def _context(path: str, line: int) -> str:
    """Ten lines of the source around the diagnostic, the line itself marked."""
    try:
        with open(path.encode(), encoding="utf-8", errors="replace") as file:  # whatever the locale is
            source = file.read().splitlines()
    except OSError:
        return ""
    first, last = max(1, line - CONTEXT_BEFORE), min(len(source), line + CONTEXT_AFTER)
    return "\n".join(
        f"{'>' if number == line else ' '}{number:5} | {source[number - 1]}" for number in range(first, last + 1)
    )
