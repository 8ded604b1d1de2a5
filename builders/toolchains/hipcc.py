"""hipcc: HIP for AMD's devices, from HIP sources or from CUDA's, which are translated in the build folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from opforge.builders.spec.abi import PLAIN
from opforge.builders.spec.build_plan import BuildPlan, Step
from opforge.cache.records.inputs import RootedPath
from opforge.errors import ToolchainError, ToolchainNotFoundError

from . import probe
from .device_toolchain import SHAPE, DeviceToolchain, through
from .host import absolute, launcher, prefix_maps, which
from .toolchain import DevicePart

INFO_SHAPE = {**SHAPE, "release": str, "known": list}
VARIABLES = ("HIP_PATH", "ROCM_HOME", "ROCM_PATH")
INSTALL = "Install it (Debian, Ubuntu: apt install hipcc), or set ROCM_HOME to a ROCm installation."
ADVICE = "Set ROCM_HOME to a whole ROCm installation, or mend this one"
CONFIGURATION = re.compile(r"^(ROCM_PATH|HIP_CLANG_PATH|DEVICE_LIB_PATH|HIP_LIB_PATH)=(.*)$", re.MULTILINE)
CLANGS = ("clang++", "clang++-15", "clang++-16", "clang++-17", "clang")
NOTHING = ("-###", "-x", "hip", "-c", os.devnull, "-o", os.devnull)
"""What it would do with a source that has nothing in it."""


class Hipcc(DeviceToolchain):
    """hipcc by HIP_PATH, ROCM_HOME or ROCM_PATH, from PATH, or from /opt/rocm."""

    device, root, suffixes = "hip", "rocm", (".hip", ".cu")
    translates = True
    passed_env = (
        "HIPCC_COMPILE_FLAGS_APPEND",
        "HIPCC_LINK_FLAGS_APPEND",
        "HIP_CLANG_PATH",
        "DEVICE_LIB_PATH",
        *VARIABLES,
    )
    plan_env = passed_env

    def _find(self) -> tuple[str, ...]:
        for variable in VARIABLES:
            home = os.environ.get(variable)
            if home:
                path = which(os.path.join(home, "bin", "hipcc"))
                if path is None:
                    searched = [f"{variable}={home}, which has no bin/hipcc"]
                    advice = f"Correct {variable}, or unset it."
                    raise ToolchainNotFoundError("HIP compiler", searched, advice, searched[0])
                return (path,)
        path = which("hipcc") or which("/opt/rocm/bin/hipcc")
        if path is None:
            raise ToolchainNotFoundError("HIP compiler", [*VARIABLES, "hipcc on PATH", "/opt/rocm/bin/hipcc"], INSTALL)
        return (path,)

    def _load_info(self) -> probe.CompilerInfo:
        name = ("hipcc", *self.argv, *(os.environ.get(one, "") for one in ("PATH", *self.passed_env)))
        return probe.cached_info(name, INFO_SHAPE, self._layout, self._disk, self._probe)

    def _probe(self) -> probe.CompilerInfo:
        # Without a device its helper prints a traceback, and it answers all the same.
        _status, told, problem = probe.try_run(self.argv, "--version", advice=ADVICE)
        version = re.search(r"HIP version: *(\S+)", told)
        if not version:
            said = (told + problem).strip().partition("\n")[0]
            raise ToolchainError(self.argv[0], f"`hipcc --version` names no HIP version, but says {said!r}", ADVICE)
        clang = re.search(r"(\S*clang version \S+)", told)
        where = self._configuration()
        root = os.path.realpath(where.get("ROCM_PATH") or os.path.dirname(os.path.dirname(self.argv[0])))
        compiler = next(filter(None, (which(os.path.join(where.get("HIP_CLANG_PATH", ""), one)) for one in CLANGS)), "")
        library = where.get("DEVICE_LIB_PATH", "")
        bitcode = sorted(one for one in self._disk.names(library) if one.endswith(".bc"))
        programs = [self.argv[0], compiler, *(os.path.join(library, one) for one in bitcode)]
        programs = [os.path.realpath(one) for one in programs if one and os.path.isfile(one)]
        digests = {os.path.basename(one): self._disk.digest(one) or "" for one in programs}
        names = (re.fullmatch(r"oclc_isa_version_(\w+)\.bc", one) for one in bitcode)
        return {
            "identity": {"version": f"hip {version[1]}, {clang[1] if clang else ''}"}
            | {f"{name} sha256": digest for name, digest in digests.items()},
            "stamps": {one: list(self._disk.stamp(one) or ()) for one in programs},
            "absent": [],
            "root": root,
            "seal": os.path.relpath(programs[0], root),
            "include": [] if root == "/usr" else [os.path.join(root, "include")],
            "lib": [one for one in (where.get("HIP_LIB_PATH", ""), os.path.join(root, "lib")) if os.path.isdir(one)],
            "release": version[1],
            "known": [f"gfx{one[1]}" for one in names if one],
        }

    def _configuration(self) -> dict[str, str]:
        """The folders that hipcc finds for itself, as it tells when it is asked to be verbose."""
        question = ("--offload-arch=gfx900", *NOTHING)
        _status, out, err = probe.try_run(self.argv, *question, advice=ADVICE, variables={"HIPCC_VERBOSE": "7"})
        return dict(CONFIGURATION.findall(out + err))

    def root_paths(self) -> Mapping[str, str]:
        return {} if self.info["root"] == "/usr" else super().root_paths()  # then its files are the system's

    def trusted_roots(self) -> Mapping[str, str]:
        return super().trusted_roots() if self.root_paths() else {}

    def arch_problem(self, arch: Sequence[str]) -> str | None:
        for one in arch:
            if not self.accepts(one, f"--offload-arch={one}", *NOTHING):
                known = ", ".join(self.info["known"]) or "none that it names"
                return f"hipcc {self.info['release']} does not know {one}; it knows {known}. Install a newer ROCm"
        return None

    def part(self, abi: str) -> DevicePart:
        requires = (("hip", ".".join(str(self.info["release"]).split(".")[:2])),)
        part = DevicePart((("__HIP_PLATFORM_AMD__", "1"),), self.headers(), (), ("-lamdhip64",), requires)
        if abi == PLAIN:
            return part
        # torch's headers know the shims for its streams by CUDA's name, and ROCm's torch has them under that name.
        defines = (*part.defines, ("USE_ROCM", "1"), ("USE_CUDA", "1"))
        return part._replace(defines=defines, stubs=("libtorch_hip.so",))

    def device_flags(self, arch: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
        return (*flags, "-fno-gpu-rdc", *(f"--offload-arch={one}" for one in arch))

    def compile_device(self, plan: BuildPlan, roots: Mapping[str, str], source: RootedPath, output: str) -> Step:
        path, depfile = absolute(source, roots), output + ".d"
        argv = [
            *launcher(),
            *self.argv,
            *self.options(plan, roots),
            *plan.device_flags,
            *prefix_maps(plan, roots),
            *("-x", "hip", "-MD", "-MF", depfile, "-c", path, "-o", output),
        ]
        step = Step(output, (path,), tuple(argv), f"compile {source.path}", depfile, source)
        return step if path.endswith(".hip") else self._translated(plan, roots, step, path, ".hip")

    def compile_host(self, plan: BuildPlan, roots: Mapping[str, str], source: RootedPath, output: str) -> Step:
        # A source of the host may call CUDA's runtime too.
        step, path = self.host.compile(plan, roots, source, output), absolute(source, roots)
        return self._translated(plan, roots, step, path, os.path.splitext(path)[1])

    def _translated(self, plan: BuildPlan, roots: Mapping[str, str], step: Step, path: str, suffix: str) -> Step:
        return through(step, path, step.output + suffix, [absolute(folder, roots) for folder in plan.include])
