"""Reads a hub kernel's build.toml (editions 5, 4 and 3) as a project."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from opforge.errors import KernelFormatError
from opforge.packages.form import names, toml_file, version
from opforge.packages.form.json_text import Fields
from opforge.packages.form.version import Version

from .project import BUILD_TOML, LOCAL, MakeBuilder, Needs, Project, inside

if TYPE_CHECKING:
    from opforge.accelerator.target import Target
    from opforge.builders.base import OpBuilder

EXPECTED = "a build.toml of edition 5, 4 or 3, as kernel-builder reads it"
EDITIONS = (3, 4, 5)
GENERAL = (
    "backends",
    "cuda",
    "edition",
    "hub",
    "kernel-depends",
    "license",
    "name",
    "neuron",
    "python-depends",
    "source",
    "tpu",
    "universal",
    "upstream",
    "version",
    "xpu",
)
TORCH = ("cxx-flags", "include", "maxver", "minver", "pyext", "pyroot", "src", "stable-abi")
KERNEL = (
    "backend",
    "cuda-capabilities",
    "cuda-flags",
    "cuda-minver",
    "cxx-flags",
    "depends",
    "hip-flags",
    "include",
    "language",
    "rocm-archs",
    "src",
    "sycl-flags",
)
DEVICES = {"cpu": "cpu", "cuda": "cuda", "rocm": "hip", "xpu": "xpu"}
"""The backends that opforge builds, with its own name of each."""
DEFINES = {"cpu": "CPU_KERNEL", "cuda": "CUDA_KERNEL", "rocm": "ROCM_KERNEL", "xpu": "XPU_KERNEL"}
USES = {"cuda": "USE_CUDA", "rocm": "USE_ROCM", "xpu": "USE_XPU"}
COMPILED = (".cpp", ".cc", ".cxx", ".c", ".cu", ".hip", ".sycl")
DEVICE_FLAGS = {"cuda": ("cuda-flags", "cuda-capabilities"), "rocm": ("hip-flags", "rocm-archs")}
"""Backend -> the fields with the flags of its compiler, and with the architectures of a kernel."""
OWN_NEEDS = ("cuda", "neuron", "tpu", "xpu")
"""The backends that have a table of their own in [general]."""
DEFAULT_STABLE = "2.10"
MINOR = re.compile(r"\d{1,3}\.\d{1,3}", re.ASCII)


def read_folder(folder: str) -> Project:
    """Returns the project that a folder's build.toml describes. Raises KernelFormatError, OSError."""
    path = os.path.join(folder, BUILD_TOML)
    return parse(toml_file.read(path, EXPECTED), path, folder)


def parse(table: dict[str, Any], path: str, folder: str) -> Project:
    """Returns the project of a table. Raises KernelFormatError."""
    fields = Fields(table, path, EXPECTED)
    fields.only(("general", "kernel", "torch", "torch-noarch", "tvm-ffi"))
    general = Fields(fields.table("general"), f"{path}: general", EXPECTED)
    general.only(GENERAL)
    edition = general.whole("edition", 0)
    if edition and edition not in EDITIONS:
        raise general.error(f"'edition' is {edition}, and opforge reads {', '.join(map(str, EDITIONS))}")
    kinds = [kind for kind in ("torch", "torch-noarch", "tvm-ffi") if kind in fields.values]
    if kinds == ["tvm-ffi"]:
        raise fields.error("it describes a kernel for tvm-ffi, which opforge loads and does not build")
    if len(kinds) != 1:
        raise fields.error(f"it has {len(kinds)} of [torch], [torch-noarch] and [tvm-ffi], and not exactly one")
    hub = Fields(general.table("hub", {}), f"{path}: general.hub", EXPECTED)
    short = names.check_short(general.text("name"), f"{path}: general: name")
    name = hub.text("repo-id", f"{LOCAL}/{short}").lower()
    needs = _needs(general)
    own = {backend: Fields(general.table(backend, {}), f"{general.where}.{backend}", EXPECTED) for backend in OWN_NEEDS}
    project = Project(
        name=names.check(name, f"{path}: general.hub: repo-id"),
        version=Version(general.whole("version", 1)),
        folder=folder,
        builder=None,
        license=general.text("license", ""),
        upstream=general.text("upstream", ""),
        source=general.text("source", ""),
        python=_python(folder, short, path),
        python_depends=needs.python,
        kernel_depends=needs.kernels,
        backend_needs={backend: _needs(part) for backend, part in own.items()},
        tests=os.path.join(folder, "tests") if os.path.isdir(os.path.join(folder, "tests")) else "",
    )
    if kinds == ["torch-noarch"]:
        backends = general.texts("backends", ()) or ("universal",)
        return project._replace(backends=backends)
    declared = {part: table[part] for part in ("torch", "kernel") if part in table} | {"name": short}
    builder = builder_of(declared, path, folder)
    return project._replace(builder=builder, backends=_backends(fields, general), declared={BUILD_TOML: declared})


def _needs(fields: Fields) -> Needs:
    """Returns what the variants of all backends need, or those of one. Raises KernelFormatError."""
    where = f"{fields.where}: kernel-depends"
    entries = [Fields(value, where, EXPECTED) for value in fields.get("kernel-depends", list, "list", [])]
    kernels = {
        names.check(entry.text("repo-id").lower(), where): version.parse_range(entry.values.get("version"), where)
        for entry in entries
    }
    return Needs(fields.texts("python-depends", ()), kernels)


def _backends(fields: Fields, general: Fields) -> tuple[str, ...]:
    """Returns the backends that the library is for: those of [general], or of its kernels. Raises KernelFormatError."""
    of_kernels = tuple(dict.fromkeys(kernel.text("backend") for kernel in _kernels(fields)))
    backends = general.texts("backends", ()) or of_kernels or ("cpu",)
    for backend in of_kernels:
        if backend not in backends:
            raise general.error(f"'backends' lacks {backend!r}, which a kernel is for")
    return backends


def _buildable(fields: Fields) -> list[str]:
    """Returns the backends of the kernels that opforge builds; `cpu` without a kernel. Raises KernelFormatError."""
    backends = tuple(dict.fromkeys(kernel.text("backend") for kernel in _kernels(fields))) or ("cpu",)
    buildable = [backend for backend in backends if backend in DEVICES]
    if not buildable:
        raise fields.error(f"its kernels are for {', '.join(backends)}, and opforge builds for {', '.join(DEVICES)}")
    return buildable


def _kernels(fields: Fields) -> list[Fields]:
    table = fields.table("kernel", {})
    return [_kernel(value, f"{fields.where}: kernel.{name}") for name, value in table.items()]


def builder_of(table: dict[str, Any], path: str, folder: str) -> MakeBuilder:
    """Returns the builder of [torch] and every [kernel.NAME]; `name` is the package's. Raises KernelFormatError."""
    fields = Fields(table, path, EXPECTED)
    torch = Fields(fields.table("torch"), f"{path}: torch", EXPECTED)
    torch.only(TORCH)
    torch.texts("src", ())
    buildable, kernels = _buildable(fields), _kernels(fields)
    python_name = names.python_name(fields.text("name"))

    def builder(target: Target | None, portable: bool) -> OpBuilder:
        device = target.device if target else DEVICES[buildable[0]]
        backend = next((backend for backend in buildable if DEVICES[backend] == device), "")
        if not backend:
            raise KernelFormatError(path, f"it has no kernel for {device}", f"a target for {', '.join(buildable)}")
        mine = [kernel for kernel in kernels if kernel.text("backend") == backend]
        for kernel in mine:
            if unknown := [name for name in kernel.texts("depends", ()) if name != "torch"]:
                problem = f"'depends' names {unknown[0]!r}, which opforge does not provide"
                raise KernelFormatError(kernel.where, problem, 'depends = ["torch"] alone')
        kind = _builder_class(python_name, folder, backend, torch, mine)
        return kind(target, portable=True) if portable else kind(target)

    return builder


def _python(folder: str, short: str, where: str) -> str:
    """Returns the folder of the kernel's Python: torch-ext/NAME, as every kernel of the hub has it."""
    for candidate in (f"torch-ext/{names.python_name(short)}", f"tvm-ffi-ext/{names.python_name(short)}"):
        if os.path.isdir(os.path.join(folder, candidate)):
            return inside(folder, candidate, where, EXPECTED)
    raise KernelFormatError(where, f"there is no folder torch-ext/{names.python_name(short)} beside it", EXPECTED)


def _kernel(value: Any, where: str) -> Fields:
    fields = Fields(value, where, EXPECTED)
    fields.only(KERNEL)
    if "backend" not in fields.values and "language" in fields.values:
        # Edition 3 names a language; one that is not named otherwise is CUDA.
        fields.values = {**fields.values, "backend": {"cuda-hipify": "rocm"}.get(fields.text("language"), "cuda")}
    fields.text("backend", None) or fields.values.setdefault("backend", "cuda")
    fields.texts("src")
    fields.texts("depends", ())
    return fields


def _builder_class(name: str, folder: str, backend: str, torch: Fields, kernels: list[Fields]) -> type[OpBuilder]:
    """Returns the builder of all kernels of one backend with torch's part."""
    from opforge.builders.base import OpBuilder
    from opforge.builders.spec import abi
    from opforge.builders.spec.kernel_roots import OPFORGE, KernelRoot

    sources = _sources(torch, folder)
    stable = torch.values.get("stable-abi")
    if isinstance(stable, dict):
        stable = stable.get(backend)
    device = DEVICES[backend]
    # The hub's builder keeps pybind11 out of torch's headers: a library with it fits one Python alone.
    own_flags = () if stable else ("-UTORCH_API_INCLUDE_EXTENSION_H", "-DPy_LIMITED_API=0x03090000")
    uses = [(USES[backend], "1")] if backend in USES else []
    attributes = {
        "name": name,
        "folder": folder,
        "sources": sources,
        "include_dirs": _folders([torch], folder, "torch-ext"),
        "define_macros": [(DEFINES[backend], "1"), *uses],
        "extra_compile_args": {"cxx": [*own_flags, *_flags([torch], "cxx-flags")]},
        # Each kernel has flags, include folders and architectures of its own.
        "groups": [_group(kernel, folder, backend) for kernel in kernels if _sources(kernel, folder)],
        "devices": (device,),
        "abi": abi.STABLE if stable else abi.TORCH,
        "torch_target": stable if isinstance(stable, str) and stable else DEFAULT_STABLE,
        "requires_torch": _requires_torch(torch),
        "kernel_roots": (KernelRoot("opforge_hub", os.path.join(OPFORGE.path, "hub")),),
        "__module__": __name__,
    }
    return type("HubKernelBuilder", (OpBuilder,), attributes)


def _requires_torch(torch: Fields) -> str:
    """Returns the range of torch's versions: `minver` and `maxver` are both inside it."""
    lower, upper = torch.text("minver", ""), torch.text("maxver", "")
    for text in filter(None, (lower, upper)):
        if not MINOR.fullmatch(text):
            raise torch.error(f"{ascii(text)[:40]} is no version of torch such as 2.11")
    conditions = [f">={lower}"] if lower else []
    if upper:
        major, minor = upper.split(".")
        conditions.append(f"<{major}.{int(minor) + 1}")
    return ",".join(conditions)


def _group(kernel: Fields, folder: str, backend: str) -> dict[str, Any]:
    group: dict[str, Any] = {
        "sources": _sources(kernel, folder),
        "include_dirs": _folders([kernel], folder, "torch-ext"),
        "extra_compile_args": {"cxx": _flags([kernel], "cxx-flags")},
    }
    if backend in DEVICE_FLAGS:
        flags, architectures = DEVICE_FLAGS[backend]
        group["extra_compile_args"][DEVICES[backend]] = _flags([kernel], flags)
        if kernel.texts(architectures, ()):
            group["architectures"] = list(kernel.texts(architectures))
    return group


def _sources(part: Fields, folder: str) -> list[str]:
    paths = [path for path in part.texts("src", ()) if path.endswith(COMPILED)]
    for path in paths:
        inside(folder, path, part.where, EXPECTED)
    return list(dict.fromkeys(paths))


def _folders(parts: list[Fields], folder: str, *others: str) -> tuple[str, ...]:
    """Returns the include folders that exist."""
    paths = [*others, *(path for part in parts for path in part.texts("include", ()))]
    return tuple(path for path in dict.fromkeys(paths) if os.path.isdir(os.path.join(folder, path)))


def _flags(parts: list[Fields], name: str) -> list[str]:
    return [flag for part in parts for flag in part.texts(name, ())]
