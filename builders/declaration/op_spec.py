"""`OpSpec`: an op's declaration, checked and resolved for one target."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.accelerator.target import Target
from opforge.errors import BuilderError
from opforge.fast_path.lookup import FLAG_ENDINGS, tables_for_all
from opforge.foundation import settings, upper_parts

from . import abi as abis
from . import kernel_roots, machine
from .attributes import ATTRIBUTES, READ, Enters
from .by_device import DeviceScope, with_absolute_paths
from .kernel_roots import KernelRoot

if TYPE_CHECKING:
    from .groups import SourceGroup

OTHER_WORDS = "words of other tools"
"""The part that knows the words of setuptools, torch and DeepSpeed, by its name in the table of upper parts."""
DEEPSPEED_METHODS = frozenset({"sources", "include_paths", "cxx_args", "nvcc_args", "extra_ldflags", "libraries_args"})
"""Methods of DeepSpeed's builders, whose results are attributes of an op."""
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
    groups: tuple[SourceGroup, ...] = ()
    """The sources with their own flags, folders or architectures."""
    own_arch: tuple[str, ...] = ()
    """The architectures of the sources of no group, if those of groups make them differ from the target's."""
    requires_torch: str = ""
    """The versions of torch that the op works with, such as ">=2.11,<2.14"; empty for all."""
    tunable: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The choices of `opforge tune`: names with the values that it tries."""

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
    def search_flags(self) -> tuple[str, ...]:
        """Returns the flags among which some may select other programs than the compiler's own, or other folders."""
        return (*self.cxx_flags, *(flag for group in self.groups for flag in group.cxx_flags), *self.link_flags)

    @property
    def all_include_dirs(self) -> tuple[str, ...]:
        """Returns the include folders of the op, then those of its groups."""
        return (*self.include_dirs, *(folder for group in self.groups for folder in group.include_dirs))

    @property
    def declared_roots(self) -> tuple[KernelRoot, ...]:
        """Returns the kernel roots between the builder's own folder and opforge's."""
        return self.roots[1:-2]


_OTHERS = {
    "builder": Enters(False, False, "it is for messages"),
    "package": Enters(False, False, "it says where to look for prebuilt entries, not for which"),
    "target": Enters(
        True,
        True,
        "the description holds the device alone: which level or architecture fits is decided"
        " by the records of the entries",
    ),
    "debug": Enters(True, True),
    "sanitize": Enters(True, True),
    "portable": Enters(
        False, False, "the plan holds the compiler that it selects; a prebuilt entry's record says what it needs"
    ),
    "sysroot": Enters(False, False, "as for `portable`"),
    "kernels": Enters(True, True),
    "extension_libraries": Enters(True, True),
}
"""The keys of the fields that are no attributes of a builder."""
_FIELDS = _OTHERS | {field: row.enters for row in ATTRIBUTES.values() if row.enters for field in row.fields}
IDENTITY = {field: _FIELDS[field] for field in OpSpec._fields}
"""Field of OpSpec -> the keys that it is in. A test changes each field and compares the keys with this table."""

TEXTS = ("version", "python_functions", "cases")
"""The attributes that are a text for every device, and that nothing else checks."""
HEADERS = (".h", ".hh", ".hpp", ".hxx", ".h++", ".H", ".cuh")
"""Endings of headers. gcc makes a precompiled header of one, and the linker fails."""
COMPILED = (".o", ".obj", ".lo", ".a", ".so", ".dylib")
"""Endings of what the compiler would pass on to the linker, and the build runs no linker for a source."""
OF_INSTANCES = frozenset({"debug", "sanitize", "portable", "trace"})


def resolve(declared: Any, target: Target) -> OpSpec:
    """Returns the spec of a declaration for a target. Raises BuilderError, naming the attribute that is wrong."""
    kind, get = type(declared), _attributes(declared)
    builder, name, devices, device = kind.__name__, get("name"), tuple(get("devices")), target.device
    scope = DeviceScope(builder, device, devices)
    abi = scope.scalar("abi", get("abi")) or abis.STABLE
    if name == "":
        name = getattr(declared, "NAME", "")  # a builder that was DeepSpeed's
    _check_name(builder, name, abi)
    _check_texts(builder, get)
    sources, groups, target, own_arch = _sources(scope, get("sources"), declared.groups, target)
    _check_abi(builder, abi, device)
    if type(declared.abi) is str:  # otherwise they may be for another device
        _check_functions(builder, abi, get("fakes"), get("signatures"))
    own = kernel_roots.KernelRoot(kernel_roots.OWN, _folder(builder, get("folder")) or kernel_roots.folder_of(kind), "")
    of_abi = (kernel_roots.FACADE,) if abi == abis.FACADE else ()  # before opforge's: some names are in both
    declared_roots = kernel_roots.listed(builder, get("kernel_roots"))
    roots = (own, *declared_roots, *of_abi, kernel_roots.OPFORGE, kernel_roots.OPFORGE_ABI)
    cxx_flags, device_flags = scope.compile_args("extra_compile_args", get("extra_compile_args"))
    spec = OpSpec(
        name=name,
        builder=builder,
        package=kind.__module__.partition(".")[0],
        abi=abi,
        target=target,
        devices=devices,
        sources=sources,
        cxx_flags=cxx_flags,
        device_flags=device_flags,
        roots=roots,
        debug=declared.debug,
        sanitize=declared.sanitize,
        portable=declared.portable,
        sysroot=settings.sysroot() if declared.portable else "",
        groups=groups,
        own_arch=own_arch,
        **{field: read(scope, name, get(name)) for name, field, read in READ},
    )
    if tables := tables_for_all(kind):
        spec = _with_tables(spec, tables)
    kernel_roots.check(builder, spec.roots)
    return _located(spec)


def _located(spec: OpSpec) -> OpSpec:
    """Returns the spec with absolute paths in its flags: relative ones count from the builder's own folder."""

    def flags(part: OpSpec | SourceGroup, *names: str) -> dict[str, Any]:
        return {name: with_absolute_paths(getattr(part, name), spec.roots[0].path) for name in names}

    return spec._replace(
        groups=tuple(group._replace(**flags(group, "cxx_flags", "device_flags")) for group in spec.groups),
        **flags(spec, "cxx_flags", "device_flags", "link_flags"),
    )


def _with_tables(spec: OpSpec, tables: Mapping[str, Any]) -> OpSpec:
    """Returns the spec with what its packages' builders have in common: its own flags come last, and so win."""
    from .for_all_builders import read

    common = read(tables, spec.target.device, spec.devices)
    further = dict.fromkeys(root for root in common.kernel_roots if root not in spec.roots)
    return spec._replace(
        roots=(*spec.roots[:-2], *further, *spec.roots[-2:]),
        include_dirs=(*spec.include_dirs, *common.include_dirs),
        defines=tuple(sorted({**dict(common.defines), **dict(spec.defines)}.items())),
        cxx_flags=(*common.cxx_flags, *spec.cxx_flags),
        device_flags=(*common.device_flags, *spec.device_flags),
        link_flags=(*common.link_flags, *spec.link_flags),
        libraries=(*spec.libraries, *common.libraries),
    )


def _attributes(declared: Any) -> Callable[[str], Any]:
    """Returns a function from an attribute's name to its value. Raises BuilderError for an unknown attribute."""
    classes = [kind for kind in type(declared).__mro__ if not kind.__module__.startswith("opforge.")]
    own = {name: value for kind in reversed(classes[:-1]) for name, value in vars(kind).items()}
    own |= {name: value for name, value in vars(declared).items() if name not in OF_INSTANCES}
    names = [name for name, value in own.items() if name[0] != "_" and _is_foreign(type(declared), name, value)]
    if not names:
        return partial(getattr, declared)
    attributes_of_ours = {
        name
        for kind in type(declared).__mro__
        if kind not in classes
        for name in vars(kind)
        if name[0] != "_" and name not in OF_INSTANCES
    }
    values = upper_parts.get(OTHER_WORDS).resolve(declared, names, attributes_of_ours)
    for name in values:
        if name in own and name not in names:
            others = " and ".join(f"{method}()" for method in names if method in DEEPSPEED_METHODS)
            advice = "Declare the flags in one place: the attribute"
            raise BuilderError(type(declared).__name__, f"it has the attribute {name!r} and {others}", advice)
    return lambda name: values[name] if name in values else getattr(declared, name)


def _is_foreign(kind: type, name: str, value: Any) -> bool:
    """Returns whether an attribute is not OpBuilder's: data of another name, or perhaps DeepSpeed's method."""
    if isinstance(value, types.MemberDescriptorType):
        return False  # a slot of the author's, which may hold nothing
    is_computed = isinstance(value, property) or hasattr(type(value), "__set_name__")  # the latter: cached_property
    is_computed = is_computed or not callable(value)  # a descriptor of the author's
    if hasattr(type(value), "__get__") and not is_computed:
        return name in DEEPSPEED_METHODS or name.endswith(FLAG_ENDINGS)
    return not any(name in vars(base) for base in kind.__mro__ if base.__module__.startswith("opforge."))


def _check_texts(builder: str, get: Callable[[str], Any]) -> None:
    for attribute in TEXTS:
        if not isinstance(get(attribute) or "", str):
            expected = f"Expected a text, such as {ATTRIBUTES[attribute].example}"
            raise BuilderError(builder, f"{attribute}={get(attribute)!r}", expected)


def _check_abi(builder: str, abi: str, device: str) -> None:
    if abi == abis.FACADE and device not in ("cpu", "cuda"):
        advice = 'It has headers for the CPU and CUDA: declare abi="torch", or "torch-stable" for rewritten sources'
        raise BuilderError(builder, f"abi={abi!r} for {device}", advice)


def _check_functions(builder: str, abi: str, fakes: Any, signatures: Any) -> None:
    if fakes and abi == abis.PLAIN:
        advice = "Only ops that are registered with torch can have fakes"
        raise BuilderError(builder, f"fakes with abi={abi!r}", advice)
    if signatures and abi != abis.PLAIN:
        raise BuilderError(builder, f"signatures with abi={abi!r}", "They are supported only with abi='c'")


def _sources(
    scope: DeviceScope, value: Any, groups: Any, target: Target
) -> tuple[tuple[str, ...], tuple[SourceGroup, ...], Target, tuple[str, ...]]:
    """Returns all sources, their groups, the target that these ask for, and the architectures of the other sources.

    Raises BuilderError if there are no sources, if one is named twice, or if one is a header or compiled already.
    """
    builder, sources = scope.builder, scope.listed("sources", value)
    grouped: tuple[tuple[SourceGroup, ...], Target, tuple[str, ...]] = ((), target, ())
    if len(set(sources)) < len(sources):
        twice = next(source for source in sources if sources.count(source) > 1)
        raise BuilderError(builder, f"sources names {twice!r} twice: its ops would be defined twice", "Name it once")
    if groups:
        from .groups import resolve as resolve_groups

        grouped = resolve_groups(scope, groups, sources, target)
        sources = (*sources, *(source for group in grouped[0] for source in group.sources))
    if not sources:
        of_device = f" for {scope.device}" if len(scope.devices) > 1 else ""
        raise BuilderError(builder, f"it names no sources{of_device}", "Name at least one file in `sources`")
    if header := next((source for source in sources if source.endswith(HEADERS)), ""):
        advice = "Remove it: a header is compiled with the sources that include it"
        raise BuilderError(builder, f"sources names {header!r}, a header", advice)
    if compiled := next((source for source in sources if source.endswith(COMPILED)), ""):
        advice = f"Name it in extra_link_args (extra_ldflags of opforge.load): [{compiled!r}]"
        raise BuilderError(builder, f"sources names {compiled!r}, which is compiled already", advice)
    return (sources, *grouped)


def _folder(builder: str, value: Any) -> str:
    """Returns the path of a declared folder as a text. Raises BuilderError."""
    try:
        return os.fspath(value or "")
    except TypeError:
        expected = f"Expected a path, such as {ATTRIBUTES['folder'].example}"
        raise BuilderError(builder, f"folder={value!r}", expected) from None


def _check_name(builder: str, name: object, abi: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or len(name.encode()) > LONGEST_NAME:
        expected = f"an identifier of at most {LONGEST_NAME} bytes"
        raise BuilderError(builder, f"name={name!r}", f"Expected {expected}, such as 'fused_adam'")
    if abi in abis.WITH_MODULES and not name.isascii():
        raise BuilderError(builder, f"name={name!r}", "Expected ASCII letters: it is also a Python module's name")


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
    for number, folder in enumerate(spec.all_include_dirs if spec.groups else spec.include_dirs):
        if kernel_roots.is_own_root(folder, spec.declared_roots):
            paths[f"include{number}"] = os.path.realpath(folder)
    paths["system"] = "/"
    paths.update(toolchain_roots or {})
    return paths
