"""Compiles declared signatures of Triton kernels for their targets. A program of its own: `python -I triton_worker.py`.

Its one argument is JSON: `triton` (the folder that holds the package), `output` (a C++ file to write: the table of what
was compiled), `roots` (root -> folder, of the kernels' files), `kernels` (as `Kernel.text` tells them, each with the
`root` and `path` of its source), `images` ([number of the kernel, device, architecture]), `debug`. Images go beside the
output, and what was read is told in OUTPUT.d, as compilers do. It imports nothing of opforge, which it could not find.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import types
from typing import Any

OURS = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
"""The variables that are kept: no other can change what is compiled, so none need be in a key."""
WARP = {"cuda": 32}
BYTES = {"i1": 1, "i32": 4, "i64": 8, "fp32": 4, "fp64": 8}
"""Of an argument as the code takes it."""
WAVE_OF_64 = ("gfx8", "gfx9")


def main(argument: str) -> int:
    """Do one task; returns the exit status."""
    task = json.loads(argument)
    kept = {name: os.environ[name] for name in OURS if name in os.environ}
    os.environ.clear()
    os.environ.update(kept)
    private = os.path.abspath(task["output"] + ".cache")
    os.environ["TRITON_CACHE_DIR"], os.environ["TRITON_HOME"] = private, private
    # A path in the binary would make it another in another folder.
    os.environ["TRITON_DISABLE_LINE_INFO"] = "0" if task["debug"] else "1"
    sys.path.insert(0, task["triton"])  # this Triton, whichever another folder holds
    importlib.import_module("triton.compiler")
    known = set(sys.modules)
    modules: dict[str, Any] = {}
    table = ['#include "opforge/kernel_image.h"', ""]
    for index, (number, device, arch) in enumerate(task["images"]):
        kernel = task["kernels"][number]
        path = os.path.join(task["roots"][kernel["root"]], kernel["path"])
        function, line = None, 1
        try:
            module = modules.get(path) or modules.setdefault(path, _import(path))
            function = _function(module, kernel)
            line = function.starting_line_number
            image = _compile(function, kernel, device, arch)
        except Exception as error:
            sys.stderr.write(_complaint(error, path, line, f"{kernel['name']} for {arch}"))
            return 1
        table += _entry(task["output"], index, kernel, image)
    with open(task["output"], "w", encoding="utf-8") as file:
        file.write("\n".join(table) + "\n")
    with open(task["output"] + ".d", "w", encoding="utf-8", errors="surrogateescape") as file:
        read = sorted({*modules, *_read(known, task["triton"])})
        file.write(f"{task['output']}: " + " \\\n ".join(map(_escaped, read)) + "\n")
    return 0


def _import(path: str) -> types.ModuleType:
    """A file of kernels as a module of a package made up for its folder, so that it can import its neighbours."""
    folder, name = os.path.split(path)
    package = "kernels_" + re.sub(r"\W", "_", folder)
    if package not in sys.modules:
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [folder]
    return importlib.import_module(f"{package}.{name.removesuffix('.py')}")


def _function(module: types.ModuleType, kernel: dict[str, Any]) -> Any:
    function = getattr(module, kernel["function"], None)
    if function is None or not hasattr(function, "arg_names"):
        raise LookupError(f"there is no @triton.jit function {kernel['function']!r} in it")
    given = {name for name, _kind in kernel["arguments"]} | kernel["constants"].keys()
    if given != set(function.arg_names):
        wrong = ", ".join(sorted(given ^ set(function.arg_names)))
        raise TypeError(f"the kernel's declaration and the function differ in: {wrong}")
    order = [name for name in function.arg_names if name not in kernel["constants"]]
    if order != [name for name, _kind in kernel["arguments"]]:
        raise TypeError(f"the run-time arguments must be declared in the function's order: {', '.join(order)}")
    return function


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
    told = built.metadata
    if asks := beyond_the_launcher(told):
        raise ValueError(f"it asks for {asks}, which the launcher does not give")
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
        "symbol": told.name,
        "arch": exact,
        "shared": told.shared,
        "threads": told.num_warps * warp,
        "parameters": len(arguments),
        "hidden": hidden,
        "aligned": sum(1 << index for index, kind in enumerate(arguments.values()) if kind.endswith(":16")),
    }


def beyond_the_launcher(told: Any) -> str:
    """What a compiled kernel's metadata asks for beyond a plain launch, in words; empty where it asks for nothing."""
    for name in ("launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size"):
        if getattr(told, name, 0):
            return f"{name}={getattr(told, name)}"
    blocks = getattr(told, "num_ctas", 1)
    return f"clusters of {blocks} blocks" if blocks != 1 else ""


def _constant(value: Any) -> Any:
    """A constant as the kernel gets it: "dtype:float16" stands for Triton's own float16."""
    import triton.language

    is_dtype = isinstance(value, str) and value.startswith("dtype:")
    return getattr(triton.language, value.partition(":")[2]) if is_dtype else value


def hidden_parameters(ptx: str, kinds: list[str]) -> int:
    """How many null pointers the entry point takes after the arguments of these types. Raises ValueError where it takes
    anything else: the launcher would pass what the code does not mean."""
    head = ptx[ptx.index(".entry") :]
    found = [int(bits) // 8 for bits in re.findall(r"\.param\s+\.[a-z](\d+)", head[: head.index(")")])]
    wanted = [8 if kind.startswith("*") else BYTES[kind.partition(":")[0]] for kind in kinds]
    hidden = len(found) - len(wanted)
    if found != wanted + [8] * hidden:
        raise ValueError(f"its code takes parameters of {found} bytes, and the launcher would pass {wanted}")
    return hidden


def _entry(output: str, index: int, kernel: dict[str, Any], image: dict[str, Any]) -> list[str]:
    """Write the image to a file of its own, and tell the assembler and the launcher of it."""
    file = f"{output}.{index}.image"
    with open(file, "wb") as written:
        written.write(image["content"])
    name = "image_" + re.sub(r"\W", "_", f"{output}_{index}")
    told = [image[one] for one in ("shared", "threads", "parameters", "hidden", "aligned")]
    texts = [json.dumps(one) for one in (kernel["name"], image["symbol"], image["arch"])]
    return [
        f'__asm__(".pushsection .rodata\\n.balign 64\\n{name}_data:\\n.incbin \\"{file}\\"\\n.popsection");',
        f'extern "C" const char {name}_data[] __attribute__((visibility("hidden")));',
        f"static const opforge_image {name} = {{{', '.join(texts)}, {name}_data, {len(image['content'])}, "
        f"{', '.join(map(str, told))}}};",
        f"OPFORGE_IMAGE({name});",
        "",
    ]


def _complaint(error: BaseException, path: str, line: int, what: str) -> str:
    """The error as compilers print theirs, so that whoever reads the output finds the place."""
    # Triton wraps an error once for each function that it passes through: the innermost names the place.
    inner = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
        if hasattr(inner, "node") and hasattr(inner, "src"):
            error = inner
    node = getattr(error, "node", None)
    if node is not None:
        path, line = _place_of(getattr(error, "src", None), path, line)
        line += node.lineno - 1
    if isinstance(error, SyntaxError) and error.lineno:
        path, line = error.filename or path, error.lineno
    said = getattr(error, "error_message", None) or (error.__cause__ and repr(error.__cause__)) or str(error)
    first = str(said).strip().splitlines() or [type(error).__name__]
    return f"{path}:{line}: error: {type(error).__name__}: {first[0]} ({what})\n" + "\n".join(first[1:]) + "\n"


def _place_of(source: str | None, path: str, line: int) -> tuple[str, int]:
    """The file of the function with this source, and the line of its `def`, where Triton's own lines begin to count."""
    from triton.runtime.jit import JITFunction

    for module in list(sys.modules.values()):
        for one in list(vars(module).values()):
            if isinstance(one, JITFunction) and one.src == source:
                above = next((i for i, text in enumerate(one.raw_src) if text.lstrip().startswith("def ")), 0)
                return sys.modules[one.__module__].__file__ or path, one.starting_line_number + above
    return path, line


def _read(known: set[str], triton: str) -> list[str]:
    """The files of the modules that the kernels imported; Triton's and Python's own are told by their versions."""
    named = {
        file for name, one in sys.modules.items() if name not in known and (file := getattr(one, "__file__", None))
    }
    vouched = (os.path.join(triton, "triton", ""), os.path.join(os.path.dirname(os.__file__), ""))
    packages = os.path.join(vouched[1], "site-packages", "")
    return [file for file in named if not file.startswith(vouched) or file.startswith(packages)]


def _escaped(path: str) -> str:
    return path.replace("$", "$$").replace("\\", "\\\\").replace(" ", "\\ ").replace("#", "\\#")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
