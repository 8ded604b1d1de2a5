"""g++ and clang++: C++ for the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from opforge.builders.declaration.build_plan import BuildPlan, Step
from opforge.builders.declaration.flag_paths import with_files
from opforge.builders.declaration.op_spec import OpSpec
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout
from opforge.cache.records.inputs import RootedPath
from opforge.errors import SettingError, ToolchainNotFoundError
from opforge.foundation import environment, settings
from opforge.foundation.environment import COMPILER_VARIABLES
from opforge.foundation.lazy import cached_property

from .discovery import probe, programs
from .discovery.programs import which
from .toolchain import Toolchain

CANDIDATES = ("g++", "clang++")
CXX_NAMES = {"gcc": "g++", "cc": "c++", "clang": "clang++"}
PATH_FLAGS = (
    *("-B", "--gcc-toolchain=", "-specs", "--specs", "--sysroot", "--config"),
    *("-isysroot", "-iprefix", "-iwithprefix", "-iwithprefixbefore", "-iwithsysroot", "-I=", "-isystem=", "-iquote="),
    *("--include-prefix", "--include-with-prefix", "--include-with-prefix-before", "--include-with-prefix-after"),
    *("-imultilib", "-I-", "--include-barrier"),
    *("-cxx-isystem", "-stdlib++-isystem", "-flto"),
    *("-stdlib=", "--stdlib=", "-resource-dir", "--target=", "--gcc-install-dir=", "--gcc-triple="),
    *probe.LINKER_FLAGS,
    *probe.STARTED_FOR,
)
"""Prefixes of flags that select other programs, folders of headers or files of flags than the compiler's own.

-flto makes gcc read specs from more folders.

The folders are not those that the flags name by themselves: the compiler prints them.
"""
PATH_WORDS = ("-target",)
"""Flags that do so with the next word, and that are the beginnings of others which do not."""
MACHINES = {"x86-64": "x86_64", "aarch64": "aarch64"}
ARCH_FLAGS = {"aarch64": "-march=armv8-a"}
BASE_FLAGS = (
    "-O3",
    "-fPIC",
    "-fvisibility-inlines-hidden",
    "-fdiagnostics-color=never",
)
GCC_FLAGS = ("-fno-gnu-unique", "-fno-canonical-system-headers")
"""The second makes gcc list headers by the paths at which it found them: a link on the way may be switched."""
INSTALL = "Install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or set CXX to its path"


class HostToolchain(Toolchain):
    """The C++ compiler named by CXX, or the first of g++ and clang++ on PATH.

    `variable`, if it is set, names the compiler instead of CXX: a device compiler may need another one than ops for
    the CPU.
    """

    shared_flags: tuple[str, ...] = ("-fsanitize", "-m", "-g")
    """Prefixes of the compile flags that the linker gets too."""
    op_flags: tuple[str, ...] = ()
    """The flags of the op itself: those among them that begin with PATH_FLAGS are part of the compiler's identity."""

    def __init__(self, layout: Layout, disk: Disk, variable: str = "") -> None:
        self._layout, self._disk = layout, disk
        self.argv = find_compiler(variable if os.environ.get(variable) else "CXX")

    @cached_property
    def _info(self) -> probe.CompilerInfo:
        """The compiler's info, checked once for this object, which lives no longer than one load."""
        return probe.host_info(self.argv, self._layout, self._disk, self._path_flags())

    def linker(self) -> str:
        """Returns the path of the linker that LDFLAGS names, else of the compiler's own."""
        return str(self._info["linker"])

    def _path_flags(self) -> list[str]:
        flags = with_files((*self.op_flags, *env_words("CPPFLAGS"), *env_words("CXXFLAGS"), *env_words("LDFLAGS")))
        return [
            flag
            for before, flag, after in zip(("", *flags), flags, (*flags[1:], ""), strict=False)
            # `=` before a folder, as in -isystem =/usr/include/x, stands for the one of --sysroot.
            if flag.startswith(PATH_FLAGS)
            or before in PATH_FLAGS
            or {before, flag} & {*PATH_WORDS}
            or "=" in (flag[:1], after[:1])
        ]

    @classmethod
    def find(cls, spec: OpSpec, layout: Layout, disk: Disk) -> HostToolchain:
        """Returns the toolchain that CXX and PATH name. Raises ToolchainNotFoundError."""
        toolchain = cls(layout, disk)
        toolchain.op_flags = spec.search_flags
        return toolchain

    def programs(self) -> Mapping[str, list[int]]:
        return {**self.stamps(), **self._info["folders"]}

    def stamps(self) -> Mapping[str, list[int]]:
        """Returns the paths of the compiler's programs, with links resolved, and their stamps."""
        stamps: Mapping[str, list[int]] = self._info["stamps"]
        return stamps

    def identity(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self._info["identity"].items()))

    @property
    def is_clang(self) -> bool:
        """Whether the compiler takes clang's flags."""
        return "clang" in self._info["version"]

    def target_problem(self, device: str, arch: Sequence[str]) -> str | None:
        machine, _, system = self._info["machine"].partition("-")
        needed = machine_of(arch, "") if arch else machine
        if device != "cpu":
            return f"{self.argv[0]} compiles for the CPU, not for {device}"
        if "linux" not in system:
            return f"{self.argv[0]} builds for {system or machine}, and opforge builds libraries for Linux only"
        if needed != machine:
            advice = "Build with --portable, or set CXX to a compiler for it"
            return f"{self.argv[0]} compiles for {machine}, not for {needed or arch[0]}. {advice}"
        return None

    def environment(self) -> tuple[tuple[str, str], ...]:
        names = dict.fromkeys((*COMPILER_VARIABLES, *programs.own_variables(self.argv)))
        return tuple((name, os.environ[name]) for name in names if os.environ.get(name))

    def flags(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return env_words("CPPFLAGS") + env_words("CXXFLAGS"), env_words("LDFLAGS")

    @property
    def precompiles(self) -> bool:
        """Whether the compiler writes precompiled headers as gcc does. A compiler launcher does not understand them."""
        return not self.is_clang and not launcher()

    def target_flags(self, device: str, arch: Sequence[str]) -> tuple[str, ...]:
        flags = tuple(ARCH_FLAGS.get(level, f"-march={level}") for level in arch)
        return flags if self.is_clang else (*flags, *GCC_FLAGS)

    def search_folders(self) -> tuple[str, ...]:
        values = [os.environ.get("CPATH", ""), os.environ.get("CPLUS_INCLUDE_PATH", "")]
        user = [os.path.realpath(folder) for value in values for folder in value.split(os.pathsep) if folder]
        return (*user, *self._info["search"])

    def first_folders(self) -> tuple[str, ...]:
        return tuple(self._info["first"])

    def library_folders(self) -> tuple[str, ...]:
        return tuple(self._info["libraries"])

    def unlisted_files(self) -> list[str]:
        return [*self._info["specs"]]

    def steps(self, plan: BuildPlan, roots: Mapping[str, str], library: str) -> list[Step]:
        units = [self.compile(plan, roots, source, name) for name, source in objects_of(plan)]
        return self.finish(plan, units, library)

    def finish(self, plan: BuildPlan, units: list[Step], library: str, device: Sequence[str] = ()) -> list[Step]:
        """Returns the units' steps and those that link them; the linker gets `device` before the plan's flags."""
        link = self._link(plan, [unit.output for unit in units if unit.output.endswith(".o")], library, device)
        return [*(self._stub(name) for name in plan.stubs), *units, link]

    def compile(self, plan: BuildPlan, roots: Mapping[str, str], source: RootedPath, output: str) -> Step:
        """Returns the command that compiles one source to an object."""
        plan = plan.of(source)
        # A launcher may take the object from a cache, and write no list.
        assembled = f"{output.partition('.')[0]}.as.d" if self._info.get("lists_assembled") and not launcher() else ""
        command = (*self.argv, *plan_options(plan, roots), *plan.compile_flags, *prefix_maps(plan, roots))
        return compile_step(command, source, roots, output, assembled)

    def _stub(self, soname: str) -> Step:
        """Returns the command that links a library with a name and no content.

        The linker needs no more of one of torch's libraries, so torch need not be installed to link an op.
        """
        argv = (*self.argv, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-x", "c++", os.devnull, "-o", soname)
        return Step(soname, (), argv, f"name {soname}")

    def _link(self, plan: BuildPlan, objects: list[str], library: str, device: Sequence[str]) -> Step:
        # The archives and libraries that are linked in are inputs too, if the linker can list them.
        depfile = "link.d" if self._info["tells_archives"] else ""
        argv = [
            *self.argv,
            "-shared",
            *objects,
            *(flag for flag in plan.compile_flags if flag.startswith(self.shared_flags)),
            *("-Wl,--no-as-needed", *plan.stubs),
            *(f"-l{name}" for name in plan.libraries),
            "-Wl,-z,noexecstack",
            *device,
            *plan.link_flags,
            *([f"-Wl,--dependency-file={depfile}"] if depfile else []),
            *("-o", library),
        ]
        return Step(library, (*objects, *plan.stubs), tuple(argv), f"link {plan.op}", depfile)


def objects_of(plan: BuildPlan) -> list[tuple[str, RootedPath]]:
    """Returns each source of the plan, as (name of its object file, source)."""
    return [
        (f"{number}.{os.path.splitext(os.path.basename(source.path))[0]}.o", source)
        for number, source in enumerate(plan.sources)
    ]


def plan_options(plan: BuildPlan, roots: Mapping[str, str]) -> list[str]:
    """Returns the plan's definitions and include folders as options."""
    return [
        *(f"-D{name}={value}" if value else f"-D{name}" for name, value in plan.defines),
        *(option for folder in plan.include for option in ("-I", absolute(folder, roots))),
        *(option for folder in plan.system_include for option in ("-isystem", absolute(folder, roots))),
    ]


def compile_step(
    command: Sequence[str], source: RootedPath, roots: Mapping[str, str], output: str, assembled: str = ""
) -> Step:
    """Returns the step that compiles one source by this command, by way of the compiler launcher.

    The compiler lists what it reads in OUTPUT.d, and the assembler in `assembled` unless that is empty.
    """
    path, depfile = absolute(source, roots), output + ".d"
    listing = ("-MD", "-MF", depfile, *([f"-Wa,--MD,{assembled}"] if assembled else []))
    argv = (*launcher(), *command, *listing, "-c", path, "-o", output)
    return Step(output, (path,), argv, f"compile {source.path}", depfile, source, assembled)


def prefix_maps(plan: BuildPlan, roots: Mapping[str, str]) -> list[str]:
    """Returns the flags that keep folders out of the binary: the same sources then have the same bytes anywhere.

    There are none if the library is built for debugging.
    """
    if "-g" in plan.compile_flags:
        return []
    used = {path.root for path in (*plan.sources, *plan.include, *plan.system_include)}
    flags = (*plan.compile_flags, *plan.device_flags)
    used |= {name for name, path in roots.items() if any(path in flag for flag in flags)}
    folders = [(roots[name], name) for name in used if name in roots and name != "system"]
    folders += [(absolute(folder, roots), f"{folder.root}/{folder.path}") for folder in plan.outside()]
    # Compilers use the last one that fits: the nearest, as one root may lie within another here and not elsewhere.
    folders.sort(key=lambda pair: (len(pair[0]), pair[1]))
    return [f"-ffile-prefix-map={path}={name}" for path, name in folders]


def absolute(path: RootedPath, roots: Mapping[str, str]) -> str:
    """Returns the path of a file or folder on this machine."""
    return os.path.normpath(os.path.join(roots[path.root], path.path))


def env_words(variable: str) -> tuple[str, ...]:
    """Returns the words of a variable, split as a shell does. Raises SettingError."""
    return _words(environment.variable(variable), variable)


def _words(value: str, source: str) -> tuple[str, ...]:
    if not value:
        return ()
    import shlex

    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise SettingError(source, value, f"flags with balanced quotes ({error})") from error


def machine_of(arch: Sequence[str], default: str) -> str:
    """Returns the processor that code for these levels runs on, as it is called in a triple; else the default."""
    level = arch[0] if arch else ""
    return MACHINES.get(level.rpartition("-v")[0] or level, default)


def find_compiler(variable: str = "CXX") -> tuple[str, ...]:
    """Returns the C++ compiler's program with the flags that the variable names after it.

    A C compiler links no C++ library: the C++ compiler that was installed with it is used in its place.

    Raises ToolchainNotFoundError, SettingError.
    """
    whole = environment.variable(variable)
    if " " in whole and os.path.dirname(whole) and (path := which(whole)):
        return (path,)  # the path of a program, with spaces that nobody has quoted
    if chosen := tuple(map(_cxx_of, env_words(variable))):
        path = which(chosen[0])
        if path is None:
            searched = [f"{variable}={os.environ[variable]}"]
            raise ToolchainNotFoundError("C++ compiler", searched, f"Correct {variable}, or unset it.")
        return (path, *chosen[1:])
    for name in CANDIDATES:
        path = which(name)
        if path:
            return (path,)
    raise ToolchainNotFoundError("C++ compiler", [f"{name} on PATH" for name in CANDIDATES], INSTALL + ".")


def _cxx_of(word: str) -> str:
    """Returns the C++ compiler in the folder of a C compiler; any other word as it is."""
    match = programs.C_COMPILER.fullmatch(word)
    if not match:
        return word
    name = f"{match[1]}{CXX_NAMES[match[2]]}{match[3] or ''}"
    path, own = which(name), which(word)
    return name if path and own and os.path.dirname(path) == os.path.dirname(own) else word


def launcher() -> tuple[str, ...]:
    """Returns the command of the compiler launcher, such as ccache; empty if none is requested.

    It changes no result, so it is in no key. Raises ToolchainNotFoundError if it is not installed.
    """
    source = settings.compiler_launcher.found()[1]
    words = _words(settings.compiler_launcher(), source)
    path = which(words[0]) if words else None
    if words and path is None:
        searched = [f"{source}={words[0]}"]
        raise ToolchainNotFoundError("compiler launcher", searched, "Install it, or unset the variable.")
    return (path, *words[1:]) if path else ()
