"""`OpSpec`: an op's declaration, checked and resolved for one target."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge import settings
from opforge.accelerator.target import Target
from opforge.errors import BuilderError

from . import abi as abis
from . import kernel_roots, machine
from .kernel_roots import KernelRoot

if TYPE_CHECKING:
    from typing import ClassVar, Protocol

    class Declaration(Protocol):
        """What a builder declares. `OpBuilder` documents these attributes."""

        name: ClassVar[str]
        sources: ClassVar[Sequence[str]]
        abi: ClassVar[str]
        version: ClassVar[str]
        devices: ClassVar[Sequence[str]]
        include_dirs: ClassVar[Sequence[str]]
        kernel_roots: ClassVar[Sequence[KernelRoot]]
        define_macros: ClassVar[Sequence[tuple[str, str | None]] | Mapping[str, str]]
        extra_compile_args: ClassVar[Sequence[str] | Mapping[str, Sequence[str]]]
        extra_link_args: ClassVar[Sequence[str]]
        libraries: ClassVar[Sequence[str]]
        torch_target: ClassVar[str]
        fakes: ClassVar[Mapping[str, Callable[..., Any]]]
        signatures: ClassVar[Mapping[str, tuple[Any, Sequence[Any]]]]
        toolchain: ClassVar[str]
        folder: ClassVar[str]
        debug: bool
        sanitize: str
        portable: bool


if TYPE_CHECKING:
    from opforge.cache.records.inputs import RootedPath

LONGEST_NAME = 200
"""Bytes of an op's name. The name of a file, which has more in it than the op's name, may have 255."""


class OpSpec(NamedTuple):
    """A frozen value. Equal specs, toolchains and environments have equal plans."""

    name: str
    builder: str
    """The builder class's name, for error messages."""
    package: str
    """The top-level package that declares the builder: its installed folder may hold prebuilt entries."""
    version: str
    abi: str
    target: Target
    """Concrete: no "native", and an architecture wherever one is needed."""
    devices: tuple[str, ...]
    """The devices that the op can be built for."""
    torch_target: str
    sources: tuple[str, ...]
    include_dirs: tuple[str, ...]
    defines: tuple[tuple[str, str], ...]
    """Sorted by name."""
    cxx_flags: tuple[str, ...]
    device_flags: tuple[str, ...]
    """Flags for the sources of the target's device."""
    link_flags: tuple[str, ...]
    libraries: tuple[str, ...]
    roots: tuple[KernelRoot, ...]
    """Where sources are searched, in order: the builder's own folder, its kernel roots, opforge's two."""
    debug: bool
    sanitize: str
    portable: bool
    sysroot: str = ""
    """The sysroot that a portable build uses."""
    toolchain: str = ""
    """The toolchain as "module:Class"; empty for the one that serves the target's device."""
    kernels: tuple[tuple[str, str], ...] = ()
    """Triton kernels by name, each with its signature, constants and options as text."""
    extension_libraries: tuple[str, ...] | None = None
    """For a library that is imported without opforge: the torch libraries that it names. It registers its ops itself.
    None for a library that opforge loads."""

    @property
    def mode_flags(self) -> tuple[str, ...]:
        """Returns the compiler flags that `debug` and `sanitize` add."""
        flags = ("-g", "-fno-omit-frame-pointer") if self.debug or self.sanitize else ()
        return (*flags, f"-fsanitize={self.sanitize}") if self.sanitize else flags

    @property
    def uses_host_compiler(self) -> bool:
        """Returns whether the host's own compiler, and nothing else, builds the op."""
        return self.target.device == "cpu" and not self.portable and not self.toolchain

    @property
    def declared_roots(self) -> tuple[KernelRoot, ...]:
        """Returns the kernel roots between the builder's own folder and opforge's."""
        return self.roots[1:-2]


GPU_COMPILERS = {"cuda": "nvcc", "hip": "nvcc", "xpu": "sycl"}
"""Device -> torch's word for its compiler in `extra_compile_args`, beside the device's own name."""
COMPILERS = frozenset({"cxx", "cpu", "opencl", *GPU_COMPILERS, *GPU_COMPILERS.values()})
"""The keys of `extra_compile_args`, besides the devices that the builder names."""
PLAIN_LISTS = (tuple, list)
"""Checked before `isinstance(..., Mapping)`, whose first call in a process takes a tenth of a hit's time."""
OF_INSTANCES = frozenset({"debug", "sanitize", "portable", "trace"})


def resolve(declared: Declaration, target: Target) -> OpSpec:
    """Returns the spec of a declaration for a target. Raises BuilderError, naming the attribute that is wrong."""
    kind, get = type(declared), _attributes(declared)
    builder, name, abi = kind.__name__, get("name"), get("abi")
    if name == "":
        name = getattr(declared, "NAME", "")  # a builder that was DeepSpeed's
    _check_name(builder, name, abi)
    sources = words(builder, "sources", get("sources"))
    if not sources:
        raise BuilderError(builder, "it names no sources", "Name at least one file in `sources`")
    if get("fakes") and abi == abis.PLAIN:
        advice = "Only ops that are registered with torch can have fakes"
        raise BuilderError(builder, f"fakes with abi={abi!r}", advice)
    if get("signatures") and abi != abis.PLAIN:
        raise BuilderError(builder, f"signatures with abi={abi!r}", "They are supported only with abi='c'")
    own = kernel_roots.KernelRoot(kernel_roots.OWN, get("folder") or kernel_roots.folder_of(kind), "")
    roots = (own, *get("kernel_roots"), kernel_roots.OPFORGE, kernel_roots.OPFORGE_ABI)
    kernel_roots.check(builder, roots)
    devices = tuple(get("devices"))
    cxx_flags, device_flags = _compile_args(builder, get("extra_compile_args"), target.device, devices)
    return OpSpec(
        name=name,
        builder=builder,
        package=kind.__module__.partition(".")[0],
        version=get("version"),
        abi=abi,
        target=target,
        devices=devices,
        torch_target=get("torch_target"),
        sources=sources,
        include_dirs=words(builder, "include_dirs", get("include_dirs")),
        defines=macros(builder, get("define_macros")),
        cxx_flags=cxx_flags,
        device_flags=device_flags,
        link_flags=words(builder, "extra_link_args", get("extra_link_args")),
        libraries=words(builder, "libraries", get("libraries")),
        roots=roots,
        debug=declared.debug,
        sanitize=declared.sanitize,
        portable=declared.portable,
        sysroot=settings.sysroot() if declared.portable else "",
        toolchain=get("toolchain"),
    )


def _attributes(declared: Any) -> Callable[[str], Any]:
    """Returns a function from an attribute's name to its value. Raises BuilderError for an unknown attribute."""
    classes = [kind for kind in type(declared).__mro__ if not kind.__module__.startswith("opforge.")]
    own = {name: value for kind in reversed(classes[:-1]) for name, value in vars(kind).items()}
    own |= {name: value for name, value in vars(declared).items() if name not in OF_INSTANCES}
    names = [name for name, value in own.items() if name[0] != "_" and _is_foreign(type(declared), name, value)]
    if not names:
        return partial(getattr, declared)
    from . import attributes

    attributes_of_ours = {
        name
        for kind in type(declared).__mro__
        if kind not in classes
        for name in vars(kind)
        if name[0] != "_" and name not in OF_INSTANCES
    }
    values = attributes.resolve(declared, names, attributes_of_ours)
    for name in values:
        if name in own and name not in names:
            others = " and ".join(f"{method}()" for method in names if method in DEEPSPEED_METHODS)
            advice = "Declare the flags in one place: the attribute"
            raise BuilderError(type(declared).__name__, f"it has the attribute {name!r} and {others}", advice)
    return lambda name: values[name] if name in values else getattr(declared, name)


def _is_foreign(kind: type, name: str, value: Any) -> bool:
    """Returns whether an attribute is not OpBuilder's: data of another name, or perhaps DeepSpeed's method."""
    is_computed = isinstance(value, property) or hasattr(type(value), "__set_name__")  # the latter: cached_property
    if hasattr(type(value), "__get__") and not is_computed:
        return name in DEEPSPEED_METHODS or name.endswith(FLAG_ENDINGS)
    return not any(name in vars(base) for base in kind.__mro__ if base.__module__.startswith("opforge."))


DEEPSPEED_METHODS = frozenset({"sources", "include_paths", "cxx_args", "nvcc_args", "extra_ldflags", "libraries_args"})
FLAG_ENDINGS = ("flags", "flag", "args", "arg", "macros", "include_path")
"""Endings of methods that may be meant as DeepSpeed's, or as attributes. Others are the author's own helpers."""


def _compile_args(
    builder: str, value: Any, device: str, devices: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the flags for C++ and those for the device's own sources, from a list or a dict by compiler."""
    if type(value) in PLAIN_LISTS or not isinstance(value, Mapping):
        return words(builder, "extra_compile_args", value), ()
    for key in value:
        if key not in COMPILERS and key not in devices:
            expected = f"Expected {', '.join(sorted({*COMPILERS, *devices}))}"
            raise BuilderError(builder, f"extra_compile_args has the key {key!r}", expected)
    flags = {key: words(builder, f"extra_compile_args[{key!r}]", part) for key, part in value.items()}
    torchs_name = GPU_COMPILERS.get(device, "")
    return flags.get("cxx", ()), (*flags.get(torchs_name, ()), *flags.get(device, ()))


def macros(builder: str, value: Any) -> tuple[tuple[str, str], ...]:
    """Returns (name, value) pairs, sorted by name; an empty value for a name alone. Raises BuilderError."""
    try:
        items = value if type(value) in PLAIN_LISTS or not isinstance(value, Mapping) else value.items()
        pairs = [(name, "" if text is None else text) for name, text in items]
        if all(isinstance(part, str) for pair in pairs for part in pair):
            return tuple(sorted(dict(pairs).items()))
    except (TypeError, ValueError):
        pass
    raise BuilderError(builder, f"define_macros={value!r}", 'Expected [("NAME", "value"), ...], None for a name alone')


def _check_name(builder: str, name: object, abi: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or len(os.fsencode(name)) > LONGEST_NAME:
        expected = f"an identifier of at most {LONGEST_NAME} bytes"
        raise BuilderError(builder, f"name={name!r}", f"Expected {expected}, such as 'fused_adam'")
    if abi == abis.TORCH and not name.isascii():
        raise BuilderError(builder, f"name={name!r}", "Expected ASCII letters: it is also a Python module's name")


def words(builder: str, name: str, values: Any) -> tuple[str, ...]:
    """Returns the strings or paths of a list as strings. Raises BuilderError for anything else, such as one string."""
    try:
        if type(values) in PLAIN_LISTS or not isinstance(values, (str, bytes, os.PathLike)):
            return tuple([value if type(value) is str else os.fsdecode(value) for value in values])
    except TypeError:
        pass
    raise BuilderError(builder, f"{name}={values!r}", "Expected a list of strings, one argument each")


def root_paths(spec: OpSpec, toolchain_roots: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the path of each root of the spec's plan, by the root's name.

    `toolchain_roots` are those that the toolchain adds. Without a toolchain they are missing: what is built already
    needs no compiler, and so none of its headers.
    """
    paths = {root.name: root.path for root in spec.roots}
    torch = machine.torch_folder() if spec.abi != abis.PLAIN else None
    if torch:
        paths["torch"] = torch
    if spec.abi != abis.PLAIN:
        headers = machine.python_include()
        # Compilers print the names of system headers without links. Resolving them would cost each hit 5 %.
        paths["python"] = headers if toolchain_roots is None else os.path.realpath(headers)
    for number, folder in enumerate(spec.include_dirs):
        if is_own_root(spec, folder):
            paths[f"include{number}"] = os.path.realpath(folder)
    paths["system"] = "/"
    paths.update(toolchain_roots or {})
    return paths


def is_own_root(spec: OpSpec, folder: str) -> bool:
    """Returns whether an include folder is a root of its own: an absolute path outside of every kernel root."""
    return os.path.isabs(folder) and not kernel_roots.holding(folder, spec.declared_roots)


def include_folders(spec: OpSpec) -> list[RootedPath]:
    """Returns the include folders, by root: an absolute path is in no key, so its number stands for it."""
    from opforge.cache.records.inputs import RootedPath  # not on the path of a hit

    folders: list[RootedPath] = []
    for number, folder in enumerate(spec.include_dirs):
        located = kernel_roots.locate(spec.name, [folder], spec.roots)
        folders += (RootedPath(f"include{number}", ""),) if is_own_root(spec, folder) else located
    return folders
