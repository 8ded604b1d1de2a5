"""icpx: SYCL for Intel's devices, compiled ahead of time for those that the target names, SPIR-V for the others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from opforge.accelerator.target import Target
from opforge.builders.declaration.abi import PLAIN
from opforge.builders.declaration.build_plan import BuildPlan, Step
from opforge.cache.records.inputs import RootedPath
from opforge.errors import ToolchainNotFoundError

from .device_toolchain import SHAPE, DeviceToolchain
from .discovery import probe, programs
from .discovery.programs import which
from .host import compile_step, prefix_maps
from .toolchain import DevicePart

INFO_SHAPE = {**SHAPE, "release": str}
HOMES = {"CMPLR_ROOT": "bin/icpx", "ONEAPI_ROOT": "compiler/latest/bin/icpx"}
DEFAULT = "/opt/intel/oneapi/compiler/latest/bin/icpx"
INSTALL = (
    "Install Intel's oneAPI DPC++/C++ compiler (intel-oneapi-compiler-dpcpp-cpp, from Intel's own repository: no"
    " distribution has it) and source its setvars.sh. A prebuilt entry needs none."
)
ADVICE = "Set CMPLR_ROOT to a complete DPC++ installation, or repair this one"


class Sycl(DeviceToolchain):
    """icpx by CMPLR_ROOT or ONEAPI_ROOT, from PATH, or from /opt/intel. It also links, which writes the device code."""

    device, root, suffixes = "xpu", "oneapi", (".sycl",)
    plan_env = tuple(HOMES)

    def _find(self) -> tuple[str, ...]:
        named = programs.below_home("SYCL compiler", HOMES)
        path = named or which("icpx") or which(DEFAULT)
        if path is None:
            raise ToolchainNotFoundError("SYCL compiler", [*HOMES, "icpx on PATH", DEFAULT], INSTALL)
        return (path,)

    def _load_info(self) -> probe.CompilerInfo:
        values = (os.environ.get(variable, "") for variable in self.plan_env)
        name = ("icpx", *self.argv, *values, *programs.state(self.argv))
        return probe.cached_info(name, INFO_SHAPE, self._layout, self._disk, self._probe)

    def _probe(self) -> probe.CompilerInfo:
        output = probe.run(self.argv, "--version", advice=ADVICE)
        version = probe.stated_version(self.argv, r"Compiler (\S+)", output, "a compiler", ADVICE)
        program = os.path.realpath(self.argv[0])
        root = os.path.dirname(os.path.dirname(program))
        return {
            "identity": {"version": f"icpx {version[1]}", "icpx sha256": self._disk.digest(program) or ""},
            "stamps": {program: list(self._disk.stamp(program) or ())},
            "absent": [],
            "root": root,
            "stamp_file": os.path.relpath(program, root),
            "include": [folder for folder in (os.path.join(root, "include"),) if os.path.isdir(folder)],
            "lib": [folder for folder in (os.path.join(root, "lib"),) if os.path.isdir(folder)],
            "release": version[1],
        }

    def arch_problem(self, arch: Sequence[str]) -> str | None:
        return None  # the device's compiler, ocloc, reports an architecture that it does not know when it runs

    def part(self, abi: str) -> DevicePart:
        part = DevicePart(system_include=self.headers(), requires=(("sycl", str(self.info["release"]).split(".")[0]),))
        if abi == PLAIN:
            return part
        return part._replace(defines=(("USE_XPU", ""),), stubs=("libtorch_xpu.so",))

    def device_flags(self, arch: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
        return (*flags, *_targets(arch))

    def compile_device(self, plan: BuildPlan, roots: Mapping[str, str], source: RootedPath, output: str) -> Step:
        flags = (*self.options(plan, roots), *plan.device_flags, *prefix_maps(plan, roots))
        return compile_step((*self.argv, *flags, "-x", "c++"), source, roots, output)

    def steps(self, plan: BuildPlan, roots: Mapping[str, str], library: str) -> list[Step]:
        *others, link = super().steps(plan, roots, library)
        arch = Target.parse(plan.target).arch
        device = [*_targets(arch), *(("-Xs", f"-device {','.join(arch)}") if arch else ())]
        # icpx must link: the host's linker would drop the device code.
        return [*others, link._replace(argv=(*self.argv, *device, *link.argv[len(self.host.argv) :]))]


def _targets(arch: Sequence[str]) -> tuple[str, ...]:
    """Returns the flags for SPIR-V, which every device can compile, and for the machine code of those in `arch`."""
    return ("-fsycl", f"-fsycl-targets={'spir64_gen,' if arch else ''}spir64")
