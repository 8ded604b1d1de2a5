"""nvcc: CUDA, with a C++ compiler for the host's half of each source.

`accelerator/archs.py` resolves the names of architectures. `compat/cpp_extension/nvcc_flags.py` reads `-gencode` of an
author's own flags.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise

from opforge.accelerator import archs
from opforge.builders.declaration.abi import FACADE, STABLE, TORCH
from opforge.builders.declaration.build_plan import BuildPlan, Step
from opforge.builders.declaration.machine import torch_built_for
from opforge.builders.declaration.op_spec import OpSpec
from opforge.builders.facade import flags as facade
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout
from opforge.cache.records.inputs import RootedPath
from opforge.errors import ToolchainError, ToolchainNotFoundError
from opforge.foundation import settings

from .device_toolchain import SHAPE, DeviceToolchain
from .discovery import cuda_toolkits, probe, programs
from .discovery.programs import which
from .host import compile_step, prefix_maps
from .toolchain import DevicePart, Toolchain

PROGRAMS = ("bin/nvcc", "bin/ptxas", "bin/cudafe++", "bin/fatbinary", "bin/nvcc.profile")
HEADERS = ("cuda.h", "cuda_runtime_api.h", "crt/host_config.h", "cuda/version", "cub/version.cuh")
"""The headers that state a version, of each package that a toolkit consists of."""
HOMES = dict.fromkeys(("CUDA_HOME", "CUDA_PATH"), "bin/nvcc")
"""The variables that name a toolkit's folder."""
INFO_SHAPE = {**SHAPE, "release": str, "compiler": str, "known": list, "refuses_host": str}
PROFILE_VARIABLES = ("INCLUDES", "SYSTEM_INCLUDES", "CUDAFE_FLAGS", "NVVM_FLAGS", "OCG_FLAGS", "PTXAS_FLAGS")
"""Variables that nvcc.profile extends: nvcc uses the user's values of these too."""
TOOL_VARIABLES = (
    *("EDG_BASE", "EDG_MODULES_PATH", "USR_INCLUDE"),
    *("NVVMCCWIZ", "NVVM_IR_VER_CHK", "NV_NVVM_VERSION", "CAN_FINALIZE_DEBUG"),
)
"""Further variables that cudafe++, cicc and ptxas read: folders of headers, and how they treat their input."""
STUB_HEADERS = (
    "crt/host_runtime.h",
    "crt/func_macro.h",
    "crt/storage_class.h",
    "fatbinary_section.h",
    "math_constants.h",
)
"""Headers that the host's half of a source includes after nvcc has generated it: nvcc's own list omits these."""
OWN_FLAGS = ("-std=", "-O", "-g", "-D", "-I")
"""Prefixes of the flags that nvcc takes as a C++ compiler does. All others are for its host compiler."""
SYSTEM = "-isystem"
"""A flag that nvcc takes as well, with the next word."""
RUNTIME = (
    "-Wl,--as-needed",
    "-Wl,--exclude-libs,libcudart_static.a",
    "-lcudart_static",
    "-lrt",
    "-lpthread",
    "-ldl",
)
"""The flags that link CUDA's runtime into a library, which then needs no libcudart.

Its symbols are not exported: another version of it in the process must not replace them.
"""
NOTHING = ("-x", "cu", "-c", os.devnull, "-o", os.devnull)
"""Options that compile an empty source."""
INSTALL = (
    "Install the CUDA toolkit and put its nvcc on PATH, or set CUDA_HOME; without root: "
    "pip install nvidia-cuda-nvcc nvidia-cuda-cccl nvidia-cuda-runtime nvidia-cuda-crt nvidia-nvvm,"
    " all of one version. A prebuilt entry needs none."
)
ADVICE = "Set CUDA_HOME to a complete CUDA toolkit, or repair this one"
UNSUPPORTED = re.compile(r"#error -- (unsupported [^!]*!(?: [^!]*!)?)")


class Nvcc(DeviceToolchain):
    """nvcc by CUDA_HOME or CUDA_PATH, from PATH, from PyPI's packages, or from /usr/local/cuda."""

    device, root, suffixes = "cuda", "cuda", (".cu",)
    host_variable = "NVCC_CCBIN"
    passed_env = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", *PROFILE_VARIABLES, *TOOL_VARIABLES)
    plan_env = (*passed_env, *HOMES, host_variable)

    need: cuda_toolkits.Need | None = None
    """The requirements of the devices here; None if the op is built for another machine's."""

    @classmethod
    def find(cls, spec: OpSpec, layout: Layout, disk: Disk) -> Toolchain:
        toolchain, need = super().find(spec, layout, disk), cuda_toolkits.need_of(spec)
        if need and isinstance(toolchain, Nvcc):
            toolchain.need = need
            toolchain.argv = (cuda_toolkits.choose(find_all(), need, layout, disk),)
        return toolchain

    def _find(self) -> tuple[str, ...]:
        return (find(),)

    def _load_info(self) -> probe.CompilerInfo:
        name = (
            "nvcc",
            *self.argv,
            *self.host.argv,
            *(os.environ.get(variable, "") for variable in self.passed_env),
            *programs.state(self.argv),
            *programs.state(self.host.argv),
        )
        return probe.cached_info(name, INFO_SHAPE, self._layout, self._disk, self._probe)

    def _probe(self) -> probe.CompilerInfo:
        output = probe.run(self.argv, "--version", advice=ADVICE)
        version = probe.stated_version(self.argv, r"release (\d+\.\d+), V(\S+)", output, "a release", ADVICE)
        folders = _dry_run_folders(self.argv)
        root = os.path.realpath(folders["TOP"][0]) if folders["TOP"] else os.path.dirname(os.path.dirname(self.argv[0]))
        files = [os.path.join(root, name) for name in PROGRAMS]
        files += [os.path.join(folder, "cicc") for folder in folders["CICC_PATH"]]
        include = list(dict.fromkeys(os.path.realpath(folder) for folder in folders["-I"] + folders["-isystem"]))
        files += [os.path.join(folder, name) for folder in include for name in HEADERS]
        files = [path for path in dict.fromkeys(map(os.path.realpath, files)) if os.path.isfile(path)]
        digests = {os.path.basename(path): self._disk.digest(path) or "" for path in files}
        # argv[0] may be a wrapper, which says where the toolkit is: sources are compiled by the toolkit's own nvcc.
        own = os.path.join(root, "bin", "nvcc")
        watched = list(dict.fromkeys([os.path.realpath(self.argv[0]), *files]))
        # PyPI's packages have their libraries in a folder that their own nvcc does not search.
        libraries = [*folders["-L"], os.path.join(root, "lib")]
        codes = probe.run(self.argv, "--list-gpu-arch", advice=ADVICE).split()
        codes += probe.run(self.argv, "--list-gpu-code", advice=ADVICE).split()
        return {
            "identity": {"version": f"nvcc {version[2]}"}
            | {f"{name} sha256": digest for name, digest in digests.items()},
            "stamps": {path: list(self._disk.stamp(path) or ()) for path in watched} | dict(self.host.stamps()),
            "absent": [],
            "root": root,
            "stamp_file": os.path.relpath(files[0] if files else watched[0], root),
            "compiler": own if os.path.isfile(own) else self.argv[0],
            "include": include,
            "lib": [os.path.realpath(folder) for folder in libraries if os.path.isdir(folder)],
            "release": version[1],
            "known": codes,
            "refuses_host": self._host_problem(),
        }

    def _host_problem(self) -> str:
        """Returns why nvcc does not accept the host compiler, in nvcc's words; empty if it does."""
        options = ("-ccbin", self.host.argv[0], "-x", "cu", "-E", os.devnull)
        status, _out, err = probe.try_run(self.argv, *options, advice=ADVICE)
        match = UNSUPPORTED.search(err)
        lines = [match[1]] if match else err.strip().splitlines() or [f"it ended with {status}"]
        return lines[0] if status else ""

    @property
    def release(self) -> str:
        """The CUDA release, such as 13.0."""
        return str(self.info["release"])

    def arch_problem(self, arch: Sequence[str]) -> str | None:
        if self.need and (problem := self.need.problem(self.release)):
            return problem
        if self.info["refuses_host"]:
            advice = "set NVCC_CCBIN (for CUDA alone) or CXX to an older compiler, or install a newer CUDA toolkit"
            return f"nvcc {self.release} does not accept {self.host.argv[0]}: {self.info['refuses_host']}; {advice}"
        for code in archs.resolve_ptx(arch):
            problem = self._code_problem(code)
            if problem:
                return problem
        return None

    def _code_problem(self, code: str) -> str | None:
        """Returns why nvcc cannot build for one architecture, or None if it can."""
        codes: list[str] = self.info["known"]
        major, minor, letter = archs.numbers(code)
        base = code.removesuffix(letter) if letter else code
        # Older releases do not list the variants with a letter: whether nvcc accepts one is tried.
        if base in codes and (not letter or code in codes or self.accepts(code, "--dryrun", *_gencode(code), *NOTHING)):
            return None
        offers = sorted({name for name in codes if name.startswith("sm_")}, key=archs.numbers)
        return (
            f"nvcc {self.release} does not know {code} (compute capability {major}.{minor}{letter}); it knows"
            f" {', '.join(offers)}. Install a CUDA toolkit that does, or name another by --target or"
            " TORCH_CUDA_ARCH_LIST"
        )

    def unlisted_files(self) -> list[str]:
        headers = [os.path.join(folder, name) for folder in self.info["include"] for name in STUB_HEADERS]
        return [*headers, *super().unlisted_files()]

    def part(self, abi: str) -> DevicePart:
        part = DevicePart(system_include=self.headers(), link_flags=RUNTIME, requires=(("cuda", self.release),))
        if abi == STABLE:
            return part._replace(defines=(("USE_CUDA", ""),), stubs=("libtorch_cuda.so",))
        if abi == FACADE:  # libtorch_cuda.so is looked up at run time: the library loads beside a torch without it
            return part._replace(device_flags=facade.OF_NVCC)
        if abi == TORCH:
            self._match_torch()
            return part._replace(stubs=("libc10_cuda.so", "libtorch_cuda.so"))
        return part

    def _match_torch(self) -> None:
        """Raises ToolchainError if torch was built for another major release of CUDA than nvcc's, or without CUDA."""
        cuda = torch_built_for("cuda")
        if cuda is None:
            advice = "Install a CUDA build of torch, or write the op for the stable ABI, which needs none to compile"
            raise ToolchainError(self.argv[0], "the `torch` ABI needs a torch that is built with CUDA", advice)
        if cuda.split(".")[0] != self.release.split(".")[0]:
            advice = f"Use a CUDA {cuda.split('.')[0]} toolkit (set CUDA_HOME), or write the op for the stable ABI"
            raise ToolchainError(
                self.argv[0], f"it is CUDA {self.release}, and torch was built for CUDA {cuda}", advice
            )

    def device_flags(self, arch: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
        own = [
            flag if flag.startswith(OWN_FLAGS) or SYSTEM in (before, flag) else _to_host(flag)
            for before, flag in pairwise(("", *flags))
        ]
        own += map(_to_host, self.host.target_flags("cpu", ()))
        if "-g" in flags:
            own.append("-lineinfo")
        return (*own, *(option for code in archs.resolve_ptx(arch) for option in _gencode(code)))

    def options(self, plan: BuildPlan, roots: Mapping[str, str]) -> list[str]:
        # nvcc would read -DA=1,2 as two definitions.
        words = super().options(plan, roots)
        return [word.replace(",", "\\,") if word.startswith("-D") else word for word in words]

    def compile_device(self, plan: BuildPlan, roots: Mapping[str, str], source: RootedPath, output: str) -> Step:
        command = [
            self.info["compiler"],
            *("-ccbin", self.host.argv[0]),
            *map(_to_host, self.host.argv[1:]),
            *self.options(plan, roots),
            *plan.device_flags,
            *map(_to_host, prefix_maps(plan, roots)),
            f"--threads={_threads(plan)}",
        ]
        return compile_step(command, source, roots, output)


def find() -> str:
    """Returns the path of the first nvcc. Raises ToolchainNotFoundError."""
    return programs.below_home("CUDA compiler", HOMES) or which("nvcc") or find_all()[0]


def find_all() -> list[str]:
    """Returns the nvcc that a variable names, or all on this machine. Raises ToolchainNotFoundError."""
    if named := programs.below_home("CUDA compiler", HOMES):
        return [named]
    names = [os.path.join(folder, "nvcc") for folder in programs.path_folders()]
    paths = list(dict.fromkeys(filter(None, map(which, [*names, *packaged_paths()]))))
    if not paths:
        searched = ["CUDA_HOME and CUDA_PATH, which are not set", "nvcc on PATH", *packaged_paths()]
        raise ToolchainNotFoundError("CUDA compiler", searched, INSTALL)
    return paths


def header_folders(compiler: str) -> list[str]:
    """Returns the folders in which this nvcc finds CUDA's headers. Raises ToolchainNotFoundError."""
    folders = _dry_run_folders((compiler,))
    return list(dict.fromkeys(os.path.realpath(folder) for folder in folders["-I"] + folders["-isystem"]))


def packaged_paths() -> list[str]:
    """Returns where nvcc may be installed: by PyPI's packages below `nvidia`, by toolkits in /usr/local."""
    paths, disk = list[str](), Disk()
    for folder in sys.path:
        vendor = os.path.join(folder, "nvidia")
        names = sorted((name for name in disk.names(vendor) if name.startswith("cu")), reverse=True)
        paths += filter(os.path.isfile, (os.path.join(vendor, name, "bin", "nvcc") for name in names))
    others = sorted((name for name in disk.names("/usr/local") if name.startswith("cuda-")), reverse=True)
    return [*paths, *(f"/usr/local/{name}/bin/nvcc" for name in ("cuda", *others))]


def _dry_run_folders(argv: Sequence[str]) -> dict[str, list[str]]:
    """Returns the folders that nvcc prints in a dry run: of a wrapper on PATH, these show which toolkit it uses."""
    _status, _out, err = probe.try_run(argv, "--dryrun", *NOTHING, advice=ADVICE)
    folders: dict[str, list[str]] = {"TOP": [], "CICC_PATH": [], "-I": [], "-isystem": [], "-L": []}
    for line in err.split("\n"):  # a path may hold what str.splitlines counts as the end of a line
        name, equals, value = line.removeprefix("#$ ").partition("=")
        if equals and name in ("TOP", "CICC_PATH"):
            folders[name] = [value]
        elif equals and name in ("INCLUDES", "SYSTEM_INCLUDES", "LIBRARIES"):
            words = iter(shlex.split(value))
            for word in words:
                if word == "-isystem":
                    folders[word].append(next(words, ""))
                elif word[:2] in ("-I", "-L"):
                    folders[word[:2]].append(word[2:])
    return folders


def _to_host(flag: str) -> str:
    """Returns a flag for the host compiler, quoted: nvcc splits it at commas and runs the host compiler by a shell."""
    return "-Xcompiler=" + shlex.quote(flag).replace(",", "\\,")


def _gencode(code: str) -> tuple[str, str]:
    return "-gencode", f"arch={archs.virtual(code)},code={code}"


def _threads(plan: BuildPlan) -> int:
    """Returns how many architectures of one source nvcc compiles at once: its share of the jobs."""
    jobs = settings.jobs() or len(os.sched_getaffinity(0))
    return max(1, jobs // len(plan.sources))
