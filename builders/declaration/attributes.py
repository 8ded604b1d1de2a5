"""The table of an op's attributes: the type of each, how it is read, which keys it is in, and where it is declared.

`OpBuilder` has the name, the type and the default of each. From this table follow the fields of `OpSpec` and their
keys, the keywords of `opforge.load` and `load_inline`, the fields of [op] in kernel.toml, those of groups and of
FOR_ALL_BUILDERS, what a library requires of the machine that loads it, and the table in docs/builders.md.

A new attribute is declared in three files: a line in `OpBuilder`, a row here with a line in `Common`, and a field of
`OpSpec`. An attribute that changes the compilation also needs a line in `planner.py`. The script
docs/opforge_docs/attributes.py writes the table of docs/builders.md anew. A field that enters the description, or the
plan, changes the keys of all ops, which are then built again: tests/unit/builders/declaration/test_identity.py holds
two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from .by_device import DeviceScope, Macros, Words

if TYPE_CHECKING:
    import inspect
    import os

    from opforge.accelerator.target import Target

    from .machine import Machine

LOAD, INLINE, TOML, GROUP, PACKAGE = "load", "load_inline", "kernel.toml", "groups", "FOR_ALL_BUILDERS"
"""Where attributes can be declared besides a builder's class."""
CALLS = frozenset({LOAD, INLINE})


class Common(TypedDict, total=False):
    """The attributes that `load` and `load_inline` take by keyword, and what a builder is made with."""

    torch_target: str
    requires_torch: str
    architectures: Words
    fakes: Mapping[str, Callable[..., Any]] | None
    signatures: Mapping[str, tuple[Any, Sequence[Any]]] | None
    include_dirs: Sequence[str | os.PathLike[str]] | Mapping[str, Any]
    define_macros: Macros
    extra_compile_args: Words
    extra_link_args: Words
    libraries: Words
    target: Target | str | None
    debug: bool
    sanitize: str


class Files(TypedDict, total=False):
    """Further arguments of `load`, whose source files may be for several devices."""

    abi: str | Mapping[str, str] | None
    groups: Sequence[Mapping[str, Any]]


class Texts(TypedDict, total=False):
    """Further arguments of `load_inline`."""

    abi: str | None


class FileKeywords(Common, Files, total=False):
    """The keywords of `load`."""


class TextKeywords(Common, Texts, total=False):
    """The keywords of `load_inline`."""


KEYWORDS = {f"Unpack[{kind.__name__}]": kind for kind in (FileKeywords, TextKeywords)}
"""The annotations of the functions that take them."""


class Enters:
    """Whether a field is in the keys; `why` is the reason where it is not."""

    __slots__ = ("description", "plan", "why")

    def __init__(self, description: bool, plan: bool, why: str = "") -> None:
        self.description, self.plan, self.why = description, plan, why


class Requirement(NamedTuple):
    """The requirement of an attribute's value on the machine. It is recorded with the library."""

    name: str
    """Its name in the record."""
    problem: Callable[[str, Machine | None], str | None]
    """Returns why a machine, by default this one, does not meet the value; None if it does."""


class Attribute(NamedTuple):
    """An attribute of an op, without its type and default."""

    name: str
    text: str
    """Markdown for the documentation."""
    example: str
    """A value, as it is written in Python. Tests use it too, so it is not the default."""
    enters: Enters | None = None
    """The keys that its fields of `OpSpec` are in; None if it has none."""
    fields: tuple[str, ...] = ()
    """The fields of `OpSpec` that it sets; by default one of its own name."""
    read: Callable[[DeviceScope, str, Any], Any] | None = None
    """Returns the field for the declared value. None if `resolve` reads it together with others."""
    by_device: bool = False
    """Whether it may be a dict from a device's name to its value."""
    places: frozenset[str] = frozenset()
    """Where it can be declared besides a builder's class."""
    of_torch: tuple[str, ...] = ()
    """The arguments of torch's `load` that add to it."""
    requirement: Requirement | None = None


def _as_it_is(_scope: DeviceScope, _name: str, value: Any) -> Any:
    return value


def _torch_range(scope: DeviceScope, _name: str, value: Any) -> str:
    if value == "":
        return ""
    from .torch_range import checked

    return checked(scope.builder, value)


def _import_path(scope: DeviceScope, name: str, value: Any) -> Any:
    path = scope.scalar(name, value)
    if path and not isinstance(path, str):
        from opforge.errors import BuilderError

        raise BuilderError(scope.builder, f"{name}={path!r}", 'Expected a text, "module:Class"')
    return path


def _torch_problem(text: str, machine: Machine | None) -> str | None:
    from . import torch_range

    return torch_range.problem(text, machine.torch) if machine else torch_range.installed_problem(text)


def _tunable(scope: DeviceScope, _name: str, value: Any) -> tuple[tuple[str, tuple[int, ...]], ...]:
    if not value:
        return ()
    from .tunable import checked

    return checked(scope.builder, value)


BOTH = Enters(True, True)
_ROWS = (
    Attribute(
        "name",
        "the op's name, an identifier; required",
        '"relu"',
        BOTH,
        places=frozenset({TOML}),
    ),
    Attribute(
        "sources",
        "its files, below the class's folder or a kernel root; required",
        '["relu.cpp"]',
        Enters(True, True, "by root and path; the description also holds their contents"),
        by_device=True,
        places=frozenset({TOML, GROUP}),
    ),
    Attribute("abi", "one of those above", '"torch"', BOTH, by_device=True, places=CALLS | {TOML}),
    Attribute(
        "torch_target",
        "the oldest torch that must load the library",
        '"2.11"',
        Enters(True, True, "for the stable ABI alone"),
        read=_as_it_is,
        places=CALLS | {TOML},
    ),
    Attribute(
        "requires_torch",
        "the versions of torch that it works with",
        '">=2.11,<2.14"',
        BOTH,
        read=_torch_range,
        places=CALLS | {TOML},
        requirement=Requirement("torch versions", _torch_problem),
    ),
    Attribute(
        "devices",
        "the devices that it can be built for; `load` takes them from the sources' suffixes",
        '("cpu", "cuda")',
        Enters(False, False, "it says which targets are possible; the target is one of them"),
        places=frozenset({TOML, GROUP}),
    ),
    Attribute(
        "architectures",
        "the architectures of the device's sources; by default the target's",
        '["9.0a"]',
        Enters(False, True, "as for the architectures of `target`"),
        fields=("own_arch",),
        by_device=True,
        places=CALLS | {TOML, GROUP},
    ),
    Attribute(
        "groups",
        "sources with flags and architectures of their own ([below](#several-devices-groups-of-sources))",
        '[{"sources": ["sm90.cu"]}]',
        BOTH,
        places=frozenset({LOAD}),
    ),
    Attribute(
        "include_dirs",
        "folders for -I",
        '["include"]',
        Enters(True, True, "by root and path; what they hold is compared after the key has matched"),
        read=DeviceScope.listed,
        by_device=True,
        places=CALLS | {TOML, GROUP, PACKAGE},
        of_torch=("extra_include_paths",),
    ),
    Attribute(
        "define_macros",
        "pairs for -D, with `None` for a name alone",
        '[("NAME", "value")]',
        BOTH,
        fields=("defines",),
        read=lambda scope, _name, value: scope.macros(value),
        by_device=True,
        places=CALLS | {TOML, GROUP, PACKAGE},
    ),
    Attribute(
        "extra_compile_args",
        'flags for the C++ compiler; or a dict, `"cxx"` for C++, a device\'s name for its own sources, `"nvcc"` for'
        " CUDA and HIP alike",
        '{"cxx": ["-O1"]}',
        BOTH,
        fields=("cxx_flags", "device_flags"),
        places=CALLS | {TOML, GROUP, PACKAGE},
        of_torch=("extra_cflags", "extra_cuda_cflags", "extra_sycl_cflags"),
    ),
    Attribute(
        "extra_link_args",
        "flags of the link",
        '["-L/the/folder"]',
        BOTH,
        fields=("link_flags",),
        read=DeviceScope.listed,
        by_device=True,
        places=CALLS | {TOML, PACKAGE},
        of_torch=("extra_ldflags",),
    ),
    Attribute(
        "libraries",
        "names for -l",
        '["m"]',
        BOTH,
        read=DeviceScope.listed,
        by_device=True,
        places=CALLS | {TOML, PACKAGE},
    ),
    Attribute(
        "fakes",
        "name of a function to Python function, for `torch.compile`",
        '{"relu": torch.empty_like}',
        places=CALLS,
    ),
    Attribute(
        "signatures",
        "for the ABI `c`: name to result and arguments",
        '{"relu": (ctypes.c_int, [ctypes.c_void_p])}',
        places=CALLS,
    ),
    Attribute(
        "python_functions",
        "called once with the loaded op, it returns more functions of the op by name",
        '"module:function"',
    ),
    Attribute(
        "tunable",
        "numbers that `opforge tune` may choose: see [tuning.md](tuning.md)",
        '{"block": (256, 512)}',
        Enters(
            False,
            False,
            "the loaded library gets the values; which names it has is in its sources. The configs of Triton kernels"
            " are compiled, and in `kernels`",
        ),
        read=_tunable,
    ),
    Attribute("cases", "the cases that are compared, timed and tuned: see [cases.md](cases.md)", '"module:CASES"'),
    Attribute(
        "toolchain",
        "a compiler of your own ([external.md](external.md#a-compiler-of-your-own))",
        '"module:Class"',
        Enters(
            False, False, "the plan holds the compiler that it selects; a prebuilt entry's record says what it needs"
        ),
        read=_import_path,
        by_device=True,
    ),
    Attribute(
        "kernel_roots",
        "further folders for sources",
        '[KernelRoot("mine", "/the/folder")]',
        Enters(
            True,
            True,
            "by name and order, and which of them have headers. The plan also holds where each source lies",
        ),
        fields=("roots",),
        places=frozenset({PACKAGE}),
    ),
    Attribute("folder", "a folder in place of that of the class's own file", '"/the/folder"'),
    Attribute("version", "a text that is part of the key", '"2"', BOTH, read=_as_it_is),
)
ATTRIBUTES = {row.name: row._replace(fields=row.fields or (row.name,)) if row.enters else row for row in _ROWS}
"""Every attribute by its name, in the order of the documentation."""
READ = tuple((row.name, row.fields[0], row.read) for row in ATTRIBUTES.values() if row.read)
"""The attributes that are read by themselves: name, field of `OpSpec`, and how."""
REQUIREMENTS = tuple((row.fields[0], row.requirement) for row in ATTRIBUTES.values() if row.requirement)
"""Fields of `OpSpec` that require something of the machine."""


def declared_in(place: str) -> tuple[str, ...]:
    """Returns the names of the attributes that can be declared in a place."""
    return tuple(row.name for row in ATTRIBUTES.values() if place in row.places)


def requirements(spec: Any) -> tuple[tuple[str, str], ...]:
    """Returns the requirements of a spec's attributes on a machine, as they are recorded."""
    return tuple((needed.name, value) for field, needed in REQUIREMENTS if (value := getattr(spec, field)))


def unmet(required: Mapping[str, str], machine: Machine | None = None) -> str | None:
    """Returns why a machine, by default this one, does not meet what attributes require; None if it meets all."""
    for _field, needed in REQUIREMENTS:
        if needed.name in required and (problem := needed.problem(required[needed.name], machine)):
            return problem
    return None


def signature(function: Callable[..., Any], defaults: Mapping[str, Any]) -> inspect.Signature:
    """Returns the signature of a function, with each of the keywords that it takes by one of the classes above."""
    import inspect

    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        kind: Any = KEYWORDS.get(str(parameter.annotation))
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and kind:
            types = {name: getattr(hint, "__forward_arg__", hint) for name, hint in kind.__annotations__.items()}
            parameters += [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
                for name, default in defaults.items()
                if name in types
            ]
        else:
            parameters.append(parameter)
    return inspect.signature(function).replace(parameters=parameters)
