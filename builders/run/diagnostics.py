"""Turns the output of a failed build into an error that says what to do."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from opforge.builders.resources import ended_by_signal, exhausted_resource, no_inodes
from opforge.builders.spec.build_plan import Step
from opforge.errors import BuildError, BuildResourceError, CompileError

DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\s:][^:\n]*?)(?::(?P<line>\d+):(?:(?P<column>\d+):)?|\((?P<cuda>\d+)\):)"
    r" (?:(?:fatal|catastrophic) )?(?P<severity>error|warning|note|remark)(?: #\d+(?:-D)?)?: (?P<text>.*)$"
)
"""FILE:LINE:COLUMN: error, as g++ and clang print it, and FILE(LINE): error, as nvcc does."""
SUMMARY = re.compile(r"ld returned|linker command failed")
LINK = re.compile(
    r"undefined reference to|undefined symbol:|hidden symbol|mold: (?:error|fatal)|ld.lld: error|"
    r"cannot find -l|multiple definition of|ld returned|linker command failed"
)
NINJA_LINE = re.compile(r"\[\d+/\d+\] |FAILED: |ninja: (?:build stopped|Entering directory)")
MISSING_HEADER = re.compile(r"'?(?P<name>[^':]+)'?(?:: No such file or directory| file not found)")
MISSING_LIBRARY = re.compile(r"(?:cannot find -l|library not found: |unable to find library -l)(?P<name>[^\s:]+)")
REGISTRATION = re.compile(r"^> +\d+ \| STABLE_TORCH_LIBRARY", re.MULTILINE)
"""A registration block in the line that a diagnostic is about, as `_context` marks it."""
LONGEST_LINE = 400
"""The number of characters of a line that a message shows; the log has all of it."""
CONTEXT_BEFORE, CONTEXT_AFTER = 5, 4
"""The number of lines of the source that a message shows before and after the one that a diagnostic is about."""
LONGEST_OUTPUT = 64 << 10
"""The number of characters of the compilers' output that an entry keeps."""


def build_error(op: str, status: int, output: str, log: str, folder: str = "") -> BuildError:
    """Returns the error for a build that failed.

    Args:
        op: The op.
        status: ninja's exit status, 128 + signal if it was killed.
        output: What ninja and the compilers printed.
        log: The path at which the output is kept; empty if it is not.
        folder: The folder in which the compilers wrote; empty if it is not known.
    """
    lines = output.splitlines()
    exhausted = exhausted_resource(op, output, log)
    if exhausted:
        return (no_inodes(op, folder, log) or exhausted) if "No space left on device" in output else exhausted
    if status > 128 and "FAILED:" not in output:  # with "FAILED:" it is a compiler's own status, such as 255
        program = "ninja or a compiler" if "interrupted by user" in output else "ninja"
        return BuildResourceError.of(op, f"{program} was ended by signal {status - 128}", "Run it again.", log)
    title, command = _failed_step(lines)
    ended = ended_by_signal(op, title, output, log)
    if ended:
        return ended
    argv, diagnostics = _argv(command), [*parse_diagnostics(lines)]
    first = next((diagnostic for diagnostic in diagnostics if diagnostic["severity"] == "error"), None)
    if first:
        location = f"{first['file']}:{first['line']}" + (f":{first['column']}" if first["column"] else "")
        context = _context(first["file"], first["line"])
        message = f"{location}: error: {first['message']}{_advice(first['message'], context)}"
        return CompileError.of(op, title, message, context, argv, log, diagnostics)
    link_lines = sorted((line for line in lines if LINK.search(line)), key=lambda line: bool(SUMMARY.search(line)))
    if link_lines and not SUMMARY.search(link_lines[0]):
        message = link_lines[0].strip() + _advice(link_lines[0])
        return CompileError.of(op, title, message, "", argv, log, [*diagnostics, *map(_unlocated, link_lines)])
    exhausted = no_inodes(op, folder, log)
    if exhausted:
        return exhausted
    printed = [line for line in lines if line.strip() not in ("", command) and not NINJA_LINE.match(line)]
    reasons = [line for line in printed if not SUMMARY.search(line)]
    if printed and not reasons:
        problem = "the linker failed and printed no reason: memory may have run out"
        advice = "Run it again with more memory: with OPFORGE_JOBS=1, or a higher limit (`ulimit -v`)."
        return BuildResourceError.of(op, problem, advice, log)
    likely = [line for line in reasons if "error" in line.lower()] or reasons[-3:]
    message = " / ".join(line[:LONGEST_LINE] for line in likely[:3]) or f"exit status {status}"
    return CompileError.of(op, title, message, "", argv, log, [*diagnostics, _unlocated(message)])


def parse_diagnostics(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields what compilers report about lines of sources, in the form of `CompileError.diagnostics`."""
    for line in lines:
        match = DIAGNOSTIC.match(line)
        if match:
            yield {
                "file": match["file"],
                "line": int(match["line"] or match["cuda"]),
                "column": int(match["column"] or 0),
                "severity": match["severity"],
                "message": match["text"],
            }


def compiler_output(output: str) -> str:
    """Returns what the compilers printed in a build, without ninja's own lines; at most LONGEST_OUTPUT characters."""
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


def no_exports(op: str) -> CompileError:
    """Returns the error for a library of plain functions that exports none."""
    return CompileError(
        f"{op}: the library exports no function that can be called by name."
        ' Begin each with: extern "C" (and not with static)',
        op,
    )


def missing_output(op: str, step: Step, name: str, log: str) -> CompileError:
    """Returns the error for a command that ended with status 0 and did not write `name`."""
    advice = "Try another CXX"
    if step.unit:
        advice = "A C++ compiler knows a source by its suffix, such as .cpp, .cc, .cxx: rename it, or try another CXX"
    problem = f"it ended with status 0 and did not write {name}. {advice}"
    return CompileError.of(op, step.title, problem, "", step.argv, log, [_unlocated(problem)])


def not_loadable(op: str, problem: str) -> CompileError:
    """Returns the error for a linker that ended with status 0 and wrote something else than a library."""
    return CompileError(
        f"{op}: the linked library cannot be loaded: {problem}. Check CXX and LDFLAGS, or try another CXX.",
        op,
    )


def _advice(text: str, context: str = "") -> str:
    """Returns what to do about a diagnostic, as lines to append; empty if nothing is known.

    `context` is the source around it, as `_context` returns it.
    """
    if header := MISSING_HEADER.match(text):
        name = header["name"]
        return f"\n(add the folder that holds {name} to include_dirs, or install the package that provides it)"
    if library := MISSING_LIBRARY.search(text):
        return (
            f"\n(install what provides lib{library['name']}.so, or name its folder in extra_link_args: -L/the/folder)"
        )
    if "needs torch_target" in text or "need torch_target" in text:
        return "\n(set torch_target in the builder, or pass it to opforge.load)"
    if "torch::stable::detail::StableLibrary::Boxed" in text:
        return '\n(wrap the function: m.impl("name", TORCH_BOX(&function)))'
    if REGISTRATION.search(context):
        return "\n(this macro is in torch/csrc/stable/library.h: is that included above?)"
    return ""


def _failed_step(lines: list[str]) -> tuple[str, str]:
    """Returns the title and the command of the first step that failed, as ninja prints them."""
    title = "the build"
    for number, line in enumerate(lines):
        status = re.match(r"^\[\d+/\d+\] (.*)$", line)
        if status:
            title = status[1]
        if line.startswith("FAILED:"):
            return title, lines[number + 1].strip() if number + 1 < len(lines) else ""
    return title, ""


def _context(path: str, line: int) -> str:
    """Returns ten lines of the source around a line, which is marked; empty if the source cannot be read."""
    try:
        with open(path.encode(), encoding="utf-8", errors="replace") as file:  # the name is UTF-8 whatever the locale
            source = file.read().splitlines()
    except OSError:
        return ""
    first, last = max(1, line - CONTEXT_BEFORE), min(len(source), line + CONTEXT_AFTER)
    return "\n".join(
        f"{'>' if number == line else ' '}{number:5} | {source[number - 1]}" for number in range(first, last + 1)
    )
