"""Reads a hub kernel's build.toml (editions 5, 4 and 3) as a project."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from typing import Any

from opforge.accelerator.target import Target
from opforge.builders.base import OpBuilder
from opforge.builders.declaration import abi
from opforge.builders.declaration.kernel_roots import OPFORGE, KernelRoot
from opforge.cache.schema import LIST, Fields
from opforge.errors import KernelFormatError, OpIncompatibleError
from opforge.foundation.versions import version_of
from opforge.packages.form import metadata, names, toml_file
from opforge.packages.form.version import Version

from . import build_keys, depends
from .build_keys import EXPECTED
from .project import BUILD_TOML, LOCAL, MakeBuilder, Needs, Project, inside

DEVICES = {"cpu": "cpu", "cuda": "cuda", "rocm": "hip", "xpu": "xpu"}
"""The backends that opforge builds, with its own name of each."""
DEFINES = {"cpu": "CPU_KERNEL", "cuda": "CUDA_KERNEL", "rocm": "ROCM_KERNEL", "xpu": "XPU_KERNEL"}
USES = {"cuda": "USE_CUDA", "rocm": "USE_ROCM", "xpu": "USE_XPU"}
COMPILED = (".cpp", ".cc", ".cxx", ".c", ".cu", ".hip", ".sycl")
DEVICE_FLAGS = {
    "cuda": ("cuda-flags", "cuda-capabilities"),
    "rocm": ("hip-flags", "rocm-archs"),
    "xpu": ("sycl-flags", ""),
}
"""Backend -> the fields with the flags of its compiler, and with the architectures of a kernel."""
DEFAULT_STABLE = "2.10"
PYTHON_FILES = ("py", "pyi")
"""The kinds of files of a package's Python where `pyext` names none."""


def read_folder(folder: str, provided: Mapping[str, str] | None = None) -> Project:
    """Returns the project that a folder's build.toml describes. Raises KernelFormatError, OSError.

    `provided` are the folders or wheels of further dependencies, by name.
    """
    path = os.path.join(folder, BUILD_TOML)
    return parse(toml_file.read(path, EXPECTED), path, folder, provided)


def parse(table: dict[str, Any], path: str, folder: str, provided: Mapping[str, str] | None = None) -> Project:
    """Returns the project of a table. Raises KernelFormatError."""
    fields = Fields(table, path, EXPECTED)
    fields.only(("general", "kernel", *build_keys.KINDS))
    general = build_keys.general(fields.table("general"), path)
    kinds = [kind for kind in build_keys.KINDS if kind in fields.values]
    if len(kinds) != 1:
        raise fields.error(f"it has {len(kinds)} of [torch], [torch-noarch] and [tvm-ffi], and not exactly one")
    part = build_keys.part(kinds[0], fields.table(kinds[0]), path)
    hub = general.table("hub", {})
    short = general.text("name")
    needs = _needs(general)
    tests = os.path.join(folder, "tests")
    project = Project(
        name=names.of_repository(hub.get("repo-id", f"{LOCAL}/{short}"), f"{path}: general.hub: repo-id"),
        version=Version(general.whole("version", 1)),
        folder=folder,
        builder=None,
        license=general.text("license", ""),
        upstream=general.text("upstream", ""),
        source=general.text("source", ""),
        python=_python(folder, short, path),
        python_files=part.texts("pyext", PYTHON_FILES),
        short=short,
        python_depends=needs.python,
        kernel_depends=needs.kernels,
        backend_needs={
            backend: _needs(Fields(general.table(backend, {}), f"{general.where}.{backend}", EXPECTED))
            for backend in build_keys.OF_BACKEND
        },
        tests=tests if os.path.isdir(tests) else "",
    )
    if kinds == ["torch-noarch"] or general.values.get("universal"):
        return _of_python_alone(project, fields, general, part)
    kernels = _kernels(fields, general.whole("edition", 0))
    backends = _backends(general, kernels)
    for checked in (part, *kernels):
        _sources(checked, folder)
        _folders(checked, folder)
    declared = {kind: table[kind] for kind in (*kinds, "kernel") if kind in table}
    declared |= {"name": short, "backends": list(backends), "edition": general.whole("edition", 0)}
    builder = builder_of(declared, path, folder, provided)
    toolkits = {"cuda": _cuda_versions(general, kernels)}
    tvm_ffi = depends.tvm_ffi()[1] if kinds == ["tvm-ffi"] else ""
    return project._replace(
        builder=builder, backends=backends, declared={BUILD_TOML: declared}, toolkits=toolkits, tvm_ffi=tvm_ffi
    )


def _of_python_alone(project: Project, fields: Fields, general: Fields, part: Fields) -> Project:
    """Returns a project without a library. Raises KernelFormatError if it has kernels."""
    if of_kernels := Fields(fields.values.get("kernel", {}), fields.where, EXPECTED).values:
        raise fields.error(f"it has kernel.{next(iter(of_kernels))}, and its Python alone is packed: it has no library")
    archs = {"cuda": part.texts("cuda_capabilities", ()), "rocm": part.texts("rocm_archs", ())}
    return project._replace(backends=general.texts("backends", ()) or ("universal",), archs=archs)


def _needs(fields: Fields) -> Needs:
    """Returns the needs of the variants of all backends, or of one backend. Raises KernelFormatError."""
    entries = fields.get("kernel-depends", LIST, [])
    kernels = tuple(metadata.dependency(value, fields.where, EXPECTED) for value in entries)
    return Needs(fields.texts("python-depends", ()), kernels)


def _backends(general: Fields, kernels: list[Fields]) -> tuple[str, ...]:
    """Returns the backends that the library is for: those of [general], or of its kernels. Raises KernelFormatError."""
    of_kernels = tuple(dict.fromkeys(kernel.text("backend") for kernel in kernels))
    backends = general.texts("backends", ()) or of_kernels or ("cpu",)
    for backend in of_kernels:
        if backend not in backends:
            raise general.error(f"'backends' lacks {backend!r}, which a kernel is for")
    return backends


def _cuda_versions(general: Fields, kernels: list[Fields]) -> tuple[str, str]:
    """Returns the oldest and the newest CUDA that the library may be built with; empty texts for any."""
    table = general.table("cuda", {})
    oldest = [table.get("minver", ""), *(kernel.text("cuda-minver", "") for kernel in kernels)]
    return max(oldest, key=version_of), table.get("maxver", "")


def _kernels(fields: Fields, edition: int) -> list[Fields]:
    table = fields.table("kernel", {})
    return [build_keys.kernel(value, f"{fields.where}: kernel.{name}", edition) for name, value in table.items()]


def builder_of(table: dict[str, Any], path: str, folder: str, provided: Mapping[str, str] | None = None) -> MakeBuilder:
    """Returns the builder of [torch] or [tvm-ffi] and every [kernel.NAME]; `name` is the package's.

    Raises KernelFormatError.
    """
    fields = Fields(table, path, EXPECTED)
    kind = "tvm-ffi" if "tvm-ffi" in table else "torch"
    part, kernels = build_keys.part(kind, fields.table(kind), path), _kernels(fields, fields.whole("edition", 0))
    backends = fields.texts("backends", ()) or tuple(dict.fromkeys(kernel.text("backend") for kernel in kernels))
    buildable = [backend for backend in backends or ("cpu",) if backend in DEVICES]
    if not buildable:
        raise fields.error(f"it is for {', '.join(backends)}, and opforge builds for {', '.join(DEVICES)}")
    python_name, paths = names.python_name(fields.text("name")), dict(provided or {})

    def builder(target: Target | None, portable: bool) -> OpBuilder:
        device = target.device if target else DEVICES[buildable[0]]
        backend = next((backend for backend in buildable if DEVICES[backend] == device), "")
        if not backend:
            raise KernelFormatError(path, f"it has no kernel for {device}", f"a target for {', '.join(buildable)}")
        mine = [kernel for kernel in kernels if kernel.text("backend") == backend]
        attributes = _attributes(python_name, folder, backend, part, mine)
        roots = [root for name in _needed(mine, paths) for root in depends.roots(name, paths[name])]
        if kind == "tvm-ffi":
            attributes |= _of_tvm_ffi(python_name, device)
        else:
            attributes |= _of_torch(part, backend)
        attributes["extra_compile_args"]["cxx"] += part.texts("cxx-flags", ())
        attributes["kernel_roots"] = (*attributes["kernel_roots"], *roots)
        return _made(attributes, target, portable)

    return builder


def _made(attributes: dict[str, Any], target: Target | None, portable: bool) -> OpBuilder:
    kind = type("HubKernelBuilder", (OpBuilder,), {**attributes, "__module__": __name__})
    made: OpBuilder = kind(target, portable=True) if portable else kind(target)
    return made


def _needed(kernels: list[Fields], provided: Mapping[str, str]) -> list[str]:
    """Returns the dependencies of kernels that the user has named. Raises KernelFormatError for one that is missing."""
    needed: dict[str, None] = {}
    for kernel in kernels:
        for name in kernel.texts("depends", ()):
            if problem := depends.problem(name, provided):
                raise KernelFormatError(kernel.where, problem, 'depends = ["torch"], or what --depend names')
            if name != depends.TORCH:
                needed[name] = None
    return [*needed]


def _python(folder: str, short: str, where: str) -> str:
    """Returns the folder of the kernel's Python: torch-ext/NAME, as every kernel of the hub has it."""
    for candidate in (f"torch-ext/{names.python_name(short)}", f"tvm-ffi-ext/{names.python_name(short)}"):
        if os.path.isdir(os.path.join(folder, candidate)):
            return inside(folder, candidate, where, EXPECTED)
    raise KernelFormatError(where, f"there is no folder torch-ext/{names.python_name(short)} beside it", EXPECTED)


def _attributes(name: str, folder: str, backend: str, part: Fields, kernels: list[Fields]) -> dict[str, Any]:
    """Returns the attributes of one backend's builder that do not depend on the framework."""
    uses = [(USES[backend], "1")] if backend in USES else []
    own = ("torch-ext", "tvm-ffi-ext")
    return {
        "name": name,
        "folder": folder,
        "sources": _sources(part, folder),
        "include_dirs": (*(path for path in own if os.path.isdir(os.path.join(folder, path))), *_folders(part, folder)),
        "define_macros": [(DEFINES[backend], "1"), *uses],
        # Each kernel has flags, include folders and architectures of its own.
        "groups": [_group(kernel, folder, backend) for kernel in kernels if _sources(kernel, folder)],
        "devices": (DEVICES[backend],),
    }


def _of_torch(torch: Fields, backend: str) -> dict[str, Any]:
    """Returns the further attributes of a library of torch's ops."""
    stable = torch.values.get("stable-abi")
    if isinstance(stable, dict):
        stable = stable.get(backend)
    # The hub's builder keeps pybind11 out of torch's headers: a library with it fits one Python alone.
    own_flags = () if stable else ("-UTORCH_API_INCLUDE_EXTENSION_H", "-DPy_LIMITED_API=0x03090000")
    return {
        "abi": abi.STABLE if stable else abi.TORCH,
        "torch_target": stable or DEFAULT_STABLE,
        "requires_torch": _requires_torch(torch),
        "extra_compile_args": {"cxx": [*own_flags]},
        "kernel_roots": (KernelRoot("opforge_hub", os.path.join(OPFORGE.path, "hub")),),
    }


def _of_tvm_ffi(name: str, device: str) -> dict[str, Any]:
    """Returns the further attributes of a library of tvm-ffi's functions. Raises OpIncompatibleError without it."""
    folder, _version = depends.tvm_ffi()
    if not folder:
        reason = "its sources include tvm-ffi, which is not installed: pip install apache-tvm-ffi"
        raise OpIncompatibleError(name, device, [reason])
    return {
        "abi": abi.PLAIN,
        "extra_compile_args": {"cxx": []},
        "extra_link_args": [f"-L{folder}/lib"],
        "libraries": ["tvm_ffi"],
        "kernel_roots": (KernelRoot("tvm_ffi", folder),),
    }


def _requires_torch(torch: Fields) -> str:
    """Returns the range of torch's versions: `minver` and `maxver` are both inside it."""
    lower, upper = torch.text("minver", ""), torch.text("maxver", "")
    conditions = [f">={lower}"] if lower else []
    if upper:
        major, minor = upper.split(".")
        conditions.append(f"<{major}.{int(minor) + 1}")
    return ",".join(conditions)


def _group(kernel: Fields, folder: str, backend: str) -> dict[str, Any]:
    group: dict[str, Any] = {
        "sources": _sources(kernel, folder),
        "include_dirs": _folders(kernel, folder),
        "extra_compile_args": {"cxx": list(kernel.texts("cxx-flags", ()))},
    }
    if backend in DEVICE_FLAGS:
        flags, architectures = DEVICE_FLAGS[backend]
        group["extra_compile_args"][DEVICES[backend]] = list(kernel.texts(flags, ()))
        if architectures and kernel.texts(architectures, ()):
            group["architectures"] = list(kernel.texts(architectures))
    return group


def _sources(part: Fields, folder: str) -> list[str]:
    """Returns the files that are compiled. Raises KernelFormatError for one that is not in the folder."""
    paths: list[str] = []
    for pattern in part.texts("src", ()):
        if not glob.has_magic(pattern) or os.path.exists(os.path.join(folder, pattern)):
            inside(folder, pattern, part.where, EXPECTED)
            paths.append(pattern)
            continue
        if pattern.startswith("/") or ".." in pattern.split("/"):
            raise part.error(f"'src' holds {ascii(pattern)[:100]}, which does not stay inside the package")
        matches = sorted(glob.glob(pattern, root_dir=folder, recursive=True))
        if not matches:
            raise part.error(f"'src' holds {ascii(pattern)[:100]}, which matches no file in {folder}")
        paths += matches
    return list(dict.fromkeys(path for path in paths if path.endswith(COMPILED)))


def _folders(part: Fields, folder: str) -> tuple[str, ...]:
    """Returns the include folders. Raises KernelFormatError for one that is missing or outside of the folder."""
    paths = tuple(dict.fromkeys(part.texts("include", ())))
    for path in filter(lambda path: os.path.normpath(path) != ".", paths):
        inside(folder, path, part.where, EXPECTED)
    return paths
