"""Compiles declared signatures of Triton kernels for their targets. A program of its own: `python -I triton_worker.py`.

Its one argument is JSON: `triton` (the folder that holds the package), `output` (a C++ file to write: the table of what
was compiled), `roots` (root -> folder, of the kernels' files), `kernels` (as `Kernel.text` writes them, each with the
`root` and `path` of its source), `images` ([number of the kernel, device, architecture]), `debug`. Images go beside the
output, and the files that were read are listed in OUTPUT.d, as compilers do. It imports nothing of opforge, which is
not on its path.
"""

from __future__ import annotations

import glob
import importlib
import json
import os
import re
import sys
import sysconfig
import types
from collections.abc import Iterable
from typing import Any

OURS = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
"""The variables that are kept: no other can change what is compiled, so none need be in a key."""
WARP = {"cuda": 32}
BYTES = {"i1": 1, "i32": 4, "i64": 8, "fp32": 4, "fp64": 8}
"""Of an argument as the code takes it."""
WAVE_OF_64 = ("gfx8", "gfx9")
SHARED = {
    **dict.fromkeys(("75",), 64),
    **dict.fromkeys(("80", "87"), 163),
    **dict.fromkeys(("86", "89", "120", "121"), 99),
    **dict.fromkeys(("90", "100", "101", "103", "110"), 227),
    "gfx950": 160,
    "gfx": 64,
}
"""Compute capability, or begin of the name of a GPU of AMD -> KiB of shared memory that a block may have.

CUDA C++ Programming Guide, table of technical specifications; AMD's instruction set documents, "LDS"."""


def main(argument: str) -> int:
    """Performs one task; returns the exit status."""
    task = json.loads(argument)
    kept = {name: os.environ[name] for name in OURS if name in os.environ}
    os.environ.clear()
    os.environ.update(kept)
    private = os.path.abspath(task["output"] + ".cache")
    os.environ["TRITON_CACHE_DIR"], os.environ["TRITON_HOME"] = private, private
    # A path in the binary would make it differ from one that is built in another folder.
    os.environ["TRITON_DISABLE_LINE_INFO"] = "0" if task["debug"] else "1"
    sys.path.insert(0, task["triton"])  # this Triton, whichever another folder holds
    importlib.import_module("triton.compiler")
    # Python takes bytecode for that of a source of the same size and second: kernels must not come from an old one.
    sys.pycache_prefix = private
    imported = set(sys.modules)
    modules: dict[str, Any] = {}
    table = ['#include "opforge/kernel_image.h"', ""]
    for index, (number, device, arch) in enumerate(task["images"]):
        kernel = task["kernels"][number]
        path = os.path.join(task["roots"][kernel["root"]], kernel["path"])
        function, line = None, 1
        try:
            module = modules.get(path) or modules.setdefault(path, _import(path))
            function = _function(module, kernel)
            line = _line_of(function)
            _check_arguments(function, kernel)
            image = _compile(function, kernel, device, arch)
        except Exception as error:
            text = _error_text(error, path, line, f"{kernel['name']} for {arch}")
            if is_config(kernel):
                sys.stdout.write(text.replace(": error: ", ": warning: it is left out: ", 1))
                continue
            sys.stderr.write(text)
            return 1
        if too_much := shared_problem(image["shared"], arch):
            if not is_config(kernel):
                advice = "declare smaller tiles or fewer stages"
                text = f"{kernel['name']} is left out for {arch}: {too_much}; {advice}"
                sys.stdout.write(f"{path}:{line}: warning: {text}\n")
            continue
        table += _entry(task["output"], index, kernel, image)
    with open(task["output"], "w", encoding="utf-8") as file:
        file.write("\n".join(table) + "\n")
    with open(task["output"] + ".d", "w", encoding="utf-8", errors="surrogateescape") as file:
        read = sorted({*modules, *_read(imported, task["triton"], task["roots"].values())})
        file.write(f"{task['output']}: " + " \\\n ".join(map(_escaped, read)) + "\n")
    return 0


_packages: dict[str, str] = {}
"""Folder of kernels -> its package. The code has the name, so that it must not follow from the folder's path."""


def _import(path: str) -> types.ModuleType:
    """Imports a file of kernels as a module of a package that is created for its folder, whose files it can import."""
    folder, name = os.path.split(path)
    package = _packages.setdefault(folder, f"kernels_{len(_packages)}")
    if package not in sys.modules:
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [folder]
    return importlib.import_module(f"{package}.{name.removesuffix('.py')}")


def _function(module: types.ModuleType, kernel: dict[str, Any]) -> Any:
    function: Any = _unwrapped(getattr(module, kernel["function"], None))
    if function is None:
        raise LookupError(f"there is no @triton.jit function {kernel['function']!r} in it")
    return function


def _unwrapped(value: Any) -> Any:
    """Returns the function of @triton.jit in a value, as below @triton.autotune or @triton.heuristics; else None."""
    from triton.runtime.jit import JITFunction

    while hasattr(inner := getattr(value, "__dict__", {}).get("fn"), "arg_names"):
        value = inner
    return value if isinstance(value, JITFunction) else None


def _line_of(function: Any) -> int:
    """Returns the line of the `def` of a function, from which Triton counts lines."""
    above = next((i for i, text in enumerate(function.raw_src) if text.lstrip().startswith("def ")), 0)
    return int(function.starting_line_number) + above


def _check_arguments(function: Any, kernel: dict[str, Any]) -> None:
    declared = {name for name, _kind in kernel["arguments"]} | kernel["constants"].keys()
    if declared != set(function.arg_names):
        wrong = ", ".join(sorted(declared ^ set(function.arg_names)))
        raise TypeError(f"the kernel's declaration and the function differ in: {wrong}")
    order = [name for name in function.arg_names if name not in kernel["constants"]]
    if order != [name for name, _kind in kernel["arguments"]]:
        raise TypeError(f"the run-time arguments must be declared in the function's order: {', '.join(order)}")


def _compile(function: Any, kernel: dict[str, Any], device: str, arch: str) -> dict[str, Any]:
    import triton
    import triton.runtime.cache as cache
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if hasattr(cache, "triton_key"):
        cache.triton_key = lambda: ""  # hashes half a gigabyte, for the key of a cache that lives as long as this task
    text = arch.startswith("compute_")
    warp = WARP.get(device) or (64 if arch.startswith(WAVE_OF_64) else 32)
    number = re.findall(r"\d+", arch)[0] if device == "cuda" else 0
    target = GPUTarget(device, int(number) if device == "cuda" else arch.partition(":")[0], warp)
    arguments = dict(kernel["arguments"])
    constants = {name: _constant(value) for name, value in kernel["constants"].items()}
    signature = {
        name: arguments[name].partition(":")[0] if name in arguments else "constexpr" for name in function.arg_names
    }
    promised = [name in arguments and arguments[name].endswith(":16") for name in function.arg_names]
    attributes = {(index,): [["tt.divisibility", 16]] for index, aligned in enumerate(promised) if aligned}
    source = ASTSource(function, signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": kernel["warps"], "num_stages": kernel["stages"], "enable_fp_fusion": True}
    built = triton.compile(source, target=target, options=options)
    metadata = built.metadata
    if unsupported := unsupported_feature(metadata):
        raise ValueError(f"it needs {unsupported}, which the launcher does not support")
    if device == "cuda":
        ptx = built.asm["ptx"]
        content, exact = built.asm["cubin"], re.findall(r"^\.target\s+(\w+)", ptx, re.MULTILINE)[0]
        if text:
            content, exact = ptx.encode() + b"\0", arch
        hidden = hidden_parameters(ptx, list(arguments.values()))
    else:
        content, exact = built.asm["hsaco"], arch
        hidden = len(re.findall(r"\.value_kind:\s+(?!hidden_)", built.asm["amdgcn"])) - len(arguments)
    return {
        "content": content,
        "symbol": metadata.name,
        "arch": exact,
        "shared": metadata.shared,
        "threads": metadata.num_warps * warp,
        "parameters": len(arguments),
        "hidden": hidden,
        "aligned": sum(1 << index for index, kind in enumerate(arguments.values()) if kind.endswith(":16")),
    }


def is_config(kernel: dict[str, Any]) -> bool:
    """Returns whether a kernel is one of another's configs. These are something to try, and not needed."""
    return bool(kernel["name"].endswith("]"))


def shared_problem(size: int, arch: str) -> str:
    """Returns why a block cannot have so many bytes of shared memory on an architecture; "" if it can."""
    number = re.match(r"(?:sm|compute)_(\d+)", arch)
    names = [number[1]] if number else [arch.partition(":")[0], arch[:3]]
    limit = next((SHARED[name] for name in names if name in SHARED), 0)
    return (
        f"it needs {size} bytes of shared memory a block, and {arch} has {limit << 10}"
        if 0 < limit << 10 < size
        else ""
    )


def unsupported_feature(metadata: Any) -> str:
    """Returns the feature of a compiled kernel that a plain launch lacks, by its metadata; empty if there is none."""
    for name in ("launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size"):
        if getattr(metadata, name, 0):
            return f"{name}={getattr(metadata, name)}"
    blocks = getattr(metadata, "num_ctas", 1)
    return f"clusters of {blocks} blocks" if blocks != 1 else ""


def _constant(value: Any) -> Any:
    """Returns a constant as the kernel gets it: Triton's own float16 for "dtype:float16"."""
    import triton.language

    is_dtype = isinstance(value, str) and value.startswith("dtype:")
    return getattr(triton.language, value.partition(":")[2]) if is_dtype else value


def hidden_parameters(ptx: str, kinds: list[str]) -> int:
    """Returns how many null pointers the entry point takes after the arguments of these types.

    Raises ValueError if it takes anything else: the launcher would pass arguments that do not match the code.
    """
    head = ptx[ptx.index(".entry") :]
    sizes = [int(bits) // 8 for bits in re.findall(r"\.param\s+\.[a-z](\d+)", head[: head.index(")")])]
    passed = [8 if kind.startswith("*") else BYTES[kind.partition(":")[0]] for kind in kinds]
    hidden = len(sizes) - len(passed)
    if sizes != passed + [8] * hidden:
        raise ValueError(f"its code takes parameters of {sizes} bytes, and the launcher would pass {passed}")
    return hidden


def _entry(output: str, index: int, kernel: dict[str, Any], image: dict[str, Any]) -> list[str]:
    """Writes the image to a file of its own. Returns the lines that include it and register it with the launcher."""
    file = f"{output}.{index}.image"
    with open(file, "wb") as written:
        written.write(image["content"])
    name = "image_" + re.sub(r"\W", "_", f"{output}_{index}")
    numbers = [image[field] for field in ("shared", "threads", "parameters", "hidden", "aligned")]
    texts = [json.dumps(text) for text in (kernel["name"], image["symbol"], image["arch"])]
    return [
        f'__asm__(".pushsection .rodata\\n.balign 64\\n{name}_data:\\n.incbin \\"{file}\\"\\n.popsection");',
        f'extern "C" const char {name}_data[] __attribute__((visibility("hidden")));',
        f"static const opforge_image {name} = {{{', '.join(texts)}, {name}_data, {len(image['content'])}, "
        f"{', '.join(map(str, numbers))}}};",
        f"OPFORGE_IMAGE({name});",
        "",
    ]


def _error_text(error: BaseException, path: str, line: int, what: str) -> str:
    """Returns the error in the form of compilers' errors, with file and line."""
    # Triton wraps an error once for each function that it passes through: the innermost has the location.
    inner = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
        if hasattr(inner, "node") and hasattr(inner, "src"):
            error = inner
    if (node := getattr(error, "node", None)) is not None:
        path, line = _location_of(getattr(error, "src", None), path, line)
        line += node.lineno - 1
    if isinstance(error, SyntaxError) and error.lineno:
        path, line = error.filename or path, error.lineno
    message = getattr(error, "error_message", None) or (error.__cause__ and repr(error.__cause__)) or str(error)
    lines = str(message).strip().splitlines() or [type(error).__name__]
    return f"{path}:{line}: error: {type(error).__name__}: {lines[0]} ({what})\n" + "\n".join(lines[1:]) + "\n"


def _location_of(source: str | None, path: str, line: int) -> tuple[str, int]:
    """Returns the file of the function with this source, and the line of its `def`."""
    for module in list(sys.modules.values()):
        for function in filter(None, map(_unwrapped, list(vars(module).values()))):
            if function.src == source:
                return sys.modules[function.__module__].__file__ or path, _line_of(function)
    return path, line


def _read(imported: set[str], triton: str, roots: Iterable[str]) -> list[str]:
    """Returns the files of the modules that the kernels imported. Versions identify Triton's and Python's own files.

    A module may be outside of the op's roots and of the folder of packages, as that of a package which is installed in
    place: then what has led Python there counts too, as another environment has another one.
    """
    new_modules = [module for name, module in sys.modules.items() if name not in imported]
    files = {file for module in new_modules if (file := getattr(module, "__file__", None))}
    versioned = (os.path.join(triton, "triton", ""), os.path.join(os.path.dirname(os.__file__), ""))
    packages = os.path.join(sysconfig.get_path("purelib"), "")
    read = [file for file in files if not file.startswith(versioned) or file.startswith(packages)]
    if any(not file.startswith((packages, *(os.path.join(root, "") for root in roots))) for file in read):
        read += [file for pattern in ("*.pth", "_*.py") for file in glob.glob(packages + pattern)]
    return read


def _escaped(path: str) -> str:
    return path.replace("$", "$$").replace("\\", "\\\\").replace(" ", "\\ ").replace("#", "\\#")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
