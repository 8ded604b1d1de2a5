"""hipcc: HIP for AMD's devices, from HIP sources or from CUDA sources, which are translated in the build folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from opforge.builders.declaration.abi import PLAIN
from opforge.builders.declaration.build_plan import BuildPlan, Step
from opforge.cache.records.inputs import RootedPath
from opforge.errors import ToolchainNotFoundError

from .device_toolchain import SHAPE, DeviceToolchain, translate_first
from .discovery import configuration, probe, programs, search
from .discovery.programs import which
from .host import absolute, compile_step, prefix_maps
from .toolchain import DevicePart

INFO_SHAPE = {**SHAPE, "search": list, "release": str, "known": list}
VARIABLES = ("HIP_PATH", "ROCM_HOME", "ROCM_PATH")
INSTALL = "Install it (Debian, Ubuntu: apt install hipcc), or set ROCM_HOME to a ROCm installation."
ADVICE = "Set ROCM_HOME to a complete ROCm installation, or repair this one"
CONFIGURATION = re.compile(r"^(ROCM_PATH|HIP_CLANG_PATH|DEVICE_LIB_PATH|HIP_LIB_PATH)=(.*)$", re.MULTILINE)
CLANGS = ("clang++", "clang++-15", "clang++-16", "clang++-17", "clang")
NOTHING = ("-###", "-x", "hip", "-c", os.devnull, "-o", os.devnull)
"""Options that print the commands for an empty source, without running them."""


PREPROCESS = ("--offload-arch=gfx900", "-x", "hip", "-E", "-v", os.devnull, "-o", os.devnull)


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
        named = programs.below_home("HIP compiler", dict.fromkeys(VARIABLES, "bin/hipcc"))
        path = named or which("hipcc") or which("/opt/rocm/bin/hipcc")
        if path is None:
            raise ToolchainNotFoundError("HIP compiler", [*VARIABLES, "hipcc on PATH", "/opt/rocm/bin/hipcc"], INSTALL)
        return (path,)

    def _load_info(self) -> probe.CompilerInfo:
        values = (os.environ.get(variable, "") for variable in self.passed_env)
        name = ("hipcc", *self.argv, *values, *programs.state(self.argv))
        return probe.cached_info(name, INFO_SHAPE, self._layout, self._disk, self._probe)

    def _probe(self) -> probe.CompilerInfo:
        # Without a device hipcc's helper fails with a traceback, but the version is printed all the same.
        _status, out, err = probe.try_run(self.argv, "--version", advice=ADVICE)
        version = probe.stated_version(self.argv, r"HIP version: *(\S+)", out + err, "a HIP version", ADVICE)
        clang = re.search(r"(\S*clang version \S+)", out)
        folders = self._folders()
        root = os.path.realpath(folders.get("ROCM_PATH") or os.path.dirname(os.path.dirname(self.argv[0])))
        names = (folders["started"], *CLANGS)  # hipcc asks clang++ for its version, and may compile with another one
        paths = (which(os.path.join(folders.get("HIP_CLANG_PATH", ""), name)) for name in names)
        clangs = [path for path in paths if path]
        library = folders.get("DEVICE_LIB_PATH", "")
        bitcode = sorted(name for name in self._disk.names(library) if name.endswith(".bc"))
        distribution, _listed, without = configuration.surroundings(out + err)
        # Both may have the same name: the last one, which compiles, is identified by its digest, and both are watched.
        files = [self.argv[0], *reversed(clangs[:2]), *distribution, *(os.path.join(library, name) for name in bitcode)]
        files = [os.path.realpath(path) for path in files if path and os.path.isfile(path)]
        digests = {os.path.basename(path): self._disk.digest(path) or "" for path in files}
        codes = (re.fullmatch(r"oclc_isa_version_(\w+)\.bc", name) for name in bitcode)
        return {
            "identity": {"version": f"hip {version[1]}, {clang[1] if clang else ''}"}
            | {f"{name} sha256": digest for name, digest in digests.items()},
            "stamps": {path: list(self._disk.stamp(path) or ()) for path in files},
            "absent": without,
            "root": root,
            "stamp_file": os.path.relpath(files[0], root),
            "include": [] if root == "/usr" else [os.path.join(root, "include")],
            "lib": list(filter(os.path.isdir, (folders.get("HIP_LIB_PATH", ""), os.path.join(root, "lib")))),
            "release": version[1],
            "search": search.header_folders("".join(probe.try_run(self.argv, *PREPROCESS, advice=ADVICE)[1:])),
            "known": [f"gfx{code[1]}" for code in codes if code],
        }

    def _folders(self) -> dict[str, str]:
        """Returns the folders that hipcc finds by itself, which it prints if it is verbose, by their variables."""
        options = ("--offload-arch=gfx900", *NOTHING)
        _status, out, err = probe.try_run(self.argv, *options, advice=ADVICE, variables={"HIPCC_VERBOSE": "7"})
        command = re.search(r"^hipcc-cmd: *(\S+)", out + err, re.MULTILINE)
        return {**dict(CONFIGURATION.findall(out + err)), "started": command[1].strip('"') if command else CLANGS[0]}

    def search_folders(self) -> tuple[str, ...]:
        return (*self.info["search"], *super().search_folders())

    def root_paths(self) -> Mapping[str, str]:
        return {} if self.info["root"] == "/usr" else super().root_paths()  # files below /usr are the system's

    def arch_problem(self, arch: Sequence[str]) -> str | None:
        for code in arch:
            if not self.accepts(code, f"--offload-arch={code}", *NOTHING):
                codes = ", ".join(self.info["known"]) or "none that it names"
                return f"hipcc {self.info['release']} does not know {code}; it knows {codes}. Install a newer ROCm"
        return None

    def part(self, abi: str) -> DevicePart:
        requires = (("hip", ".".join(str(self.info["release"]).split(".")[:2])),)
        part = DevicePart((("__HIP_PLATFORM_AMD__", "1"),), self.headers(), (), ("-lamdhip64",), requires)
        if abi == PLAIN:
            return part
        # USE_CUDA too: torch's headers declare the functions for streams under CUDA's name, and ROCm's torch has these.
        defines = (*part.defines, ("USE_ROCM", "1"), ("USE_CUDA", "1"))
        return part._replace(defines=defines, stubs=("libtorch_hip.so",))

    def device_flags(self, arch: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
        return (*flags, "-fno-gpu-rdc", *(f"--offload-arch={code}" for code in arch))

    def compile_device(self, plan: BuildPlan, roots: Mapping[str, str], source: RootedPath, output: str) -> Step:
        flags = (*self.options(plan, roots), *plan.device_flags, *prefix_maps(plan, roots))
        step = compile_step((*self.argv, *flags, "-x", "hip"), source, roots, output)
        path = absolute(source, roots)
        return step if path.endswith(".hip") else self._translated(plan, roots, step, path, ".hip")

    def compile_host(self, plan: BuildPlan, roots: Mapping[str, str], source: RootedPath, output: str) -> Step:
        # Sources of the host are translated too: they may call CUDA's runtime.
        step, path = self.host.compile(plan, roots, source, output), absolute(source, roots)
        return self._translated(plan, roots, step, path, os.path.splitext(path)[1])

    def _translated(self, plan: BuildPlan, roots: Mapping[str, str], step: Step, path: str, suffix: str) -> Step:
        folders = [absolute(folder, roots) for folder in plan.include]
        return translate_first(step, path, step.output + suffix, folders)
