"""Checks the Python of a package: it must work under any name, and importing it must write nothing."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from opforge.packages.form.digests import files_of

WRITERS = frozenset(
    {
        "makedirs",
        "mkdir",
        "remove",
        "rename",
        "replace",
        "rmdir",
        "rmtree",
        "symlink",
        "touch",
        "unlink",
        "write_bytes",
        "write_text",
    }
)
"""Methods and functions that change files."""
PROCESSES = frozenset({"os.system", "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.Popen"})
MODES = frozenset("wax+")
DEFINERS, LIBRARY = ("custom_op", "define", "triton_op"), "Library"
"""Functions of torch.library that define an op by its name with the namespace, and the class that defines them in
one."""
NAMES = ("name", "qualname", "ns")


def problems(folder: str, package: str) -> list[str]:
    """Returns the problems of the Python files in a variant's folder. `package` is the package's Python name."""
    lines = []
    for path in files_of(folder):
        if path.endswith(".py"):
            lines += _file_problems(os.path.join(folder, path), path, package)
    return lines


def _file_problems(file: str, path: str, package: str) -> list[str]:
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read(), path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [f"{path} cannot be read as Python: {error}"]
    lines = []
    for node in ast.walk(tree):
        for name in _absolute_imports(node):
            if name.split(".")[0] == package:
                advice = "the package is imported under another name; import it relatively (from . import ...)"
                lines.append(f"{path}, line {getattr(node, 'lineno', 0)}: it imports {name}: {advice}")
    for node in ast.walk(tree):
        if namespace := _defined_namespace(node):
            advice = "another package may define it; use this build's (from ._ops import add_op_namespace_prefix)"
            lines.append(
                f"{path}, line {getattr(node, 'lineno', 0)}: it defines ops in the namespace {namespace!r}: {advice}"
            )
    writes = [(call.lineno, what) for call in _calls_at_import(tree.body) if (what := _writes(call))]
    return lines + [f"{path}, line {line}: {what} when it is imported: do it in a function" for line, what in writes]


def _absolute_imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [node.module or ""]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
        name = node.args[0]
        is_text = isinstance(name, ast.Constant) and isinstance(name.value, str)
        return [str(name.value)] if is_text and not str(name.value).startswith(".") else []  # type: ignore[attr-defined]
    return []


def _defined_namespace(node: ast.AST) -> str:
    """Returns the namespace in torch.ops that a call names by a text and defines ops in; else an empty text."""
    if not isinstance(node, ast.Call):
        return ""
    called = ast.unparse(node.func).rpartition(".")[2]
    first = next(iter(node.args), None) or next((word.value for word in node.keywords if word.arg in NAMES), None)
    if called not in (*DEFINERS, LIBRARY) or not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return ""
    if called == LIBRARY:
        kinds = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "kind")]
        is_definition = any(isinstance(kind, ast.Constant) and kind.value in ("DEF", "FRAGMENT") for kind in kinds)
        return first.value if is_definition else ""
    return first.value.partition("::")[0] if "::" in first.value else ""


def _calls_at_import(body: list[ast.stmt]) -> Iterator[ast.Call]:
    """Yields the calls that importing the module makes: those outside of functions."""
    waiting: list[ast.AST] = [*body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting += [*node.decorator_list, *node.args.defaults]
            continue
        if isinstance(node, ast.Lambda) or (isinstance(node, ast.If) and _is_main(node)):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting += ast.iter_child_nodes(node)


def _is_main(node: ast.If) -> bool:
    return ast.unparse(node.test) in ("__name__ == '__main__'", "TYPE_CHECKING")


def _writes(call: ast.Call) -> str:
    """Returns the change that a call makes outside of Python, in words; empty if it makes none."""
    name = ast.unparse(call.func)
    if name in PROCESSES:
        return f"it starts a process ({name})"
    if name in ("open", "io.open", "os.open") or name.endswith(".open"):
        modes = [*call.args[(0 if name.endswith(".open") and name not in ("io.open",) else 1) :], *_keywords(call)]
        texts = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
        short = [text for text in texts if len(text) <= 3]
        return f"it writes ({name})" if any(MODES & set(text) for text in short) else ""
    # str.replace and dict-like names are left alone: only what is called on os, shutil or a path counts.
    owner, dot, last = name.rpartition(".")
    if last not in WRITERS or not dot:
        return ""
    is_certain = owner in ("os", "shutil") or last in ("mkdir", "touch", "unlink", "write_bytes", "write_text")
    return f"it changes files ({name})" if is_certain else ""


def _keywords(call: ast.Call) -> list[ast.expr]:
    return [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
