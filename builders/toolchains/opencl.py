"""OpenCL: the host's compiler; each `.cl` source is in the library as text, which the device's driver compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opforge.builders.declaration.build_plan import BuildPlan, Step
from opforge.cache.records.inputs import RootedPath

from .device_toolchain import DeviceToolchain, translate_first
from .discovery import probe
from .host import absolute
from .toolchain import DevicePart

RUNTIME = "libOpenCL.so.1"


class OpenCL(DeviceToolchain):
    """No compiler but the host's: `relu.cl` becomes `extern "C" const char opforge_cl_relu[]`."""

    device, root, suffixes = "opencl", "opencl", (".cl",)
    translates = True

    def _find(self) -> tuple[str, ...]:
        return self.host.argv

    def _load_info(self) -> probe.CompilerInfo:
        return {"identity": {}, "stamps": {}, "include": [], "lib": [], "root": "", "stamp_file": ""}

    def arch_problem(self, arch: Sequence[str]) -> str | None:
        if arch:
            return f"the device's driver compiles OpenCL: write the target as opencl, without {'+'.join(arch)}"
        return None

    def part(self, abi: str) -> DevicePart:
        return DevicePart(stubs=(RUNTIME,))

    def compile_device(self, plan: BuildPlan, roots: Mapping[str, str], source: RootedPath, output: str) -> Step:
        step = self.host.compile(plan, roots, source, output)
        return translate_first(step, absolute(source, roots), output + ".cpp", [])
