"""Triton: kernels in Python for NVIDIA and AMD GPUs, compiled ahead of time and linked by the host's compiler."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from typing import Any

from opforge.accelerator import archs
from opforge.accelerator.target import Target
from opforge.builders.declaration.build_plan import BuildPlan, Step
from opforge.builders.declaration.machine import package_folder
from opforge.builders.declaration.op_spec import OpSpec
from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout
from opforge.cache.records.inputs import RootedPath
from opforge.errors import ToolchainNotFoundError
from opforge.foundation.lazy import cached_property

from .discovery import probe
from .host import HostToolchain
from .portable import find_for_cpu
from .toolchain import HostedToolchain

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "triton_worker.py")
INSTALL = "pip install 'opforge[triton]'"
ADVICE = f"Install it ({INSTALL}), or use a library that was built elsewhere: build-ops --out."
BATCH = 16
"""The number of images that one process compiles. Importing Triton takes as long as four images."""
LAUNCHER = tuple(f"launcher/{name}.cpp" for name in ("launch", "open", "cuda_driver", "hip_driver"))
"""The launcher's units, below opforge's own kernel root."""
DEVICES = ("cuda", "hip")
OLDEST = (7, 5)
EXACT = 90
"""From sm_90 on Triton compiles for one architecture alone, also in PTX. PTX for later devices must be older."""
PORTABLE = "compute_80"
"""The PTX of a target that names none that later devices run."""


def compiled_archs(arch: Sequence[str]) -> tuple[str, ...]:
    """Returns the architectures that Triton compiles for a CUDA target.

    sm_90 and later become sm_90a, and `ptx` becomes PTX of an architecture older than EXACT.
    """
    codes = []
    for code in arch:
        if code.startswith("sm_"):
            major, minor, _letter = archs.numbers(code)
            code = f"sm_{major}{minor}a" if major * 10 + minor >= EXACT else f"sm_{major}{minor}"
        codes.append(code)
    forward = [code for code in codes if code.startswith("sm_") and not code.endswith("a")]
    newest = archs.virtual(archs.newest_portable(forward)) if forward else PORTABLE
    return archs.canonical("cuda", [newest if code == "ptx" else code for code in codes])


class TritonToolchain(HostedToolchain):
    """The Triton that this Python would import, with `host` or the host's compiler."""

    host: HostToolchain
    root = "triton"
    """The report shows the version that `identity` has under this name, as for a device compiler's root."""

    def __init__(self, layout: Layout, disk: Disk, host: HostToolchain | None = None) -> None:
        self._folder = find()
        self.package = os.path.join(self._folder, "triton")
        self._layout, self._disk = layout, disk
        self.host = host or HostToolchain(layout, disk)
        self.argv = (sys.executable, "-I", WORKER)

    @classmethod
    def find(cls, spec: OpSpec, layout: Layout, disk: Disk) -> TritonToolchain:
        """Returns Triton with the host's compiler, or with the one for portable libraries."""
        machine = Target("cpu", (os.uname().machine.replace("_", "-"),))
        return cls(layout, disk, find_for_cpu(spec._replace(target=machine), layout, disk))

    @cached_property
    def _info(self) -> probe.CompilerInfo:
        """Triton's info, checked once for this object."""
        return probe.cached_info(("triton", self._folder), {}, self._layout, self._disk, self._probe)

    def identity(self) -> tuple[tuple[str, str], ...]:
        own = [(f"triton {name}", value) for name, value in self._info["identity"].items()]
        return tuple(sorted([*self.host.identity(), *own]))

    def programs(self) -> Mapping[str, list[int]]:
        return {**self.host.programs(), **self._info["stamps"], **self._info["folders"]}

    def root_paths(self) -> Mapping[str, str]:
        """Returns also the folder of installed packages, which leads imports to those that are installed in place."""
        return {**self.host.root_paths(), "site": sysconfig.get_path("purelib")}

    def outside(self, plan: BuildPlan, roots: Mapping[str, str]) -> list[RootedPath]:
        """Returns also the folders above the packages of the kernels' files, which import others by the full name."""
        above = list[RootedPath]()
        for source in plan.sources:
            folder, up = os.path.dirname(os.path.join(roots[source.root], source.path)), os.path.dirname(source.path)
            while os.path.isfile(os.path.join(folder, "__init__.py")):
                folder, up = os.path.dirname(folder), os.path.normpath(os.path.join(up, os.pardir))
            above.append(RootedPath(source.root, up))
        return [*super().outside(plan, roots), *(folder for folder in above if folder.path.startswith(os.pardir))]

    def target_problem(self, device: str, arch: Sequence[str]) -> str | None:
        if device not in DEVICES:
            return f"Triton compiles for {' and '.join(DEVICES)}, not for {device}"
        if not arch:
            return f"no architecture of {device} is named, and there is no such device here"
        for code in archs.resolve_ptx(arch) if device == "cuda" else ():
            major, minor, _letter = archs.numbers(code)
            if (major, minor) < OLDEST:
                return f"Triton compiles for sm_{OLDEST[0]}{OLDEST[1]} and later, not for {code}"
            if code.startswith("compute_") and major * 10 + minor >= EXACT:
                return f"Triton writes PTX for later devices up to compute_89, not {code}: name an older one"
        return self.host.target_problem("cpu", ())

    def steps(self, plan: BuildPlan, roots: Mapping[str, str], library: str) -> list[Step]:
        """Returns the steps that compile the kernels in batches, each to a unit that holds its images, and link them.

        The launcher's units are linked with them.
        """
        target = Target.parse(plan.target)
        kernels = [json.loads(text) for _name, text in plan.kernels]
        names = {kernel["source"] for kernel in kernels}
        kernel_files = {
            name: path for name in names for path in plan.sources if _is_source(roots[path.root], path, name)
        }
        pairs = [(number, arch) for arch in archs.resolve_ptx(target.arch) for number in range(len(kernels))]
        count = max(1, -(-len(pairs) // BATCH))
        units, roots = [], {**roots, "build": "."}
        for batch in range(count):
            part = pairs[batch * len(pairs) // count : (batch + 1) * len(pairs) // count]
            units.append(self._batch(plan, roots, batch, target.device, part, kernels, kernel_files))
        for unit in units[:]:
            # The images are missing in the object's own dependency file. Without a unit it is never reused.
            source = RootedPath("build", unit.output)
            units.append(self.host.compile(plan, roots, source, f"{unit.output}.o")._replace(unit=None))
        launcher = (path for path in plan.sources if path not in kernel_files.values())
        units += [self.host.compile(plan, roots, path, f"{os.path.basename(path.path)}.o") for path in launcher]
        return self.host.finish(plan, units, library)

    def _batch(
        self,
        plan: BuildPlan,
        roots: Mapping[str, str],
        number: int,
        device: str,
        pairs: Sequence[tuple[int, str]],
        kernels: Sequence[Mapping[str, Any]],
        kernel_files: Mapping[str, RootedPath],
    ) -> Step:
        """Returns the step that compiles some pairs of (number of a kernel, architecture) to one C++ file."""
        output = f"kernels.{number}.cpp"
        used = sorted({index for index, _arch in pairs})
        declared = [{**kernels[index], **kernel_files[kernels[index]["source"]]._asdict()} for index in used]
        task = {
            "triton": self._folder,
            "output": output,
            "roots": {kernel["root"]: roots[kernel["root"]] for kernel in declared},
            "kernels": declared,
            "images": [[used.index(index), device, arch] for index, arch in pairs],
            "debug": "-g" in plan.compile_flags,
        }
        files = sorted({os.path.join(roots[kernel["root"]], kernel["path"]) for kernel in declared})
        argv = (*self.argv, json.dumps(task, separators=(",", ":")))
        arches = ", ".join(dict.fromkeys(arch for _index, arch in pairs))
        return Step(output, (*files, WORKER), argv, f"compile {len(pairs)} Triton kernels for {arches}", output + ".d")

    def _probe(self) -> probe.CompilerInfo:
        package = self.package
        with open(os.path.join(package, "__init__.py"), encoding="utf-8") as file:
            match = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", file.read())
        version = match[1] if match else ""
        record = os.path.join(self._folder, f"triton-{version}.dist-info", "RECORD")
        if os.path.exists(record):
            # The wheel's RECORD holds the digest of every file: otherwise half a gigabyte would be read.
            with open(record, encoding="utf-8") as file:
                lines = sorted(line for line in file if line.startswith("triton/") and ",sha256=" in line)
            contents, watched = hashlib.sha256("".join(lines).encode()).hexdigest(), [record]
        else:
            watched = sorted(_code_files(package))
            contents = key_of([[os.path.relpath(path, package), self._disk.digest(path)] for path in watched])
        watched += [os.path.join(package, "__init__.py"), WORKER]
        return {
            "identity": {"version": version, "contents": contents, "worker": self._disk.digest(WORKER) or ""},
            "stamps": {path: list(self._disk.stamp(path) or ()) for path in watched},
            "absent": [],
        }


def _is_source(root: str, path: RootedPath, name: str) -> bool:
    """Returns whether `path`, below the folder `root`, is the source of this name: a path below it, or absolute."""
    return os.path.normpath(os.path.join(root, name)) == os.path.normpath(os.path.join(root, path.path))


def find() -> str:
    """Returns the folder that holds the package `triton`, without importing it. Raises ToolchainNotFoundError."""
    folder = package_folder("triton")
    if folder is None:
        searched = ["the package triton, in this Python's environment"]
        raise ToolchainNotFoundError("Triton", searched, ADVICE, f"not installed: {INSTALL}")
    return os.path.dirname(os.path.realpath(folder))


def _code_files(package: str) -> list[str]:
    """Returns the files that decide what Triton compiles, of a Triton that was not installed from a wheel."""
    return [
        os.path.join(folder, name)
        for folder, _folders, names in os.walk(package)
        for name in names
        if name.endswith((".py", ".so", ".bc")) or os.path.basename(folder) == "bin"
    ]
