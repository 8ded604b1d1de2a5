"""Triton: kernels in Python for NVIDIA's and AMD's GPUs, compiled ahead of time and linked by the host's compiler."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opforge.accelerator import archs
from opforge.accelerator.target import Target
from opforge.builders.spec.build_plan import BuildPlan, Step
from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout
from opforge.cache.records.inputs import RootedPath
from opforge.errors import ToolchainNotFoundError

from . import probe
from .host import HostToolchain
from .toolchain import Toolchain

if TYPE_CHECKING:
    from opforge.builders.spec.op_spec import OpSpec

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "triton_worker.py")
INSTALL = "pip install 'opforge[triton]'"
ADVICE = f"Install it ({INSTALL}), or use a library that was built elsewhere: build-ops --out."
BATCH = 16
"""Images that one process compiles: importing Triton takes as long as a few of them."""
LAUNCHER = tuple(f"launcher/{name}.cpp" for name in ("launch", "open", "cuda_driver", "hip_driver"))
"""The launcher's units, below opforge's own kernel root."""
DEVICES = ("cuda", "hip")
OLDEST = (7, 5)
EXACT = 90
"""From sm_90 on Triton compiles for one architecture alone, in PTX too; PTX that later devices take is older than
that."""
PORTABLE = "compute_80"


def exact(arch: Sequence[str]) -> tuple[str, ...]:
    """The architectures of a CUDA target as Triton compiles for them: sm_90 is sm_90a, and PTX that of an older one."""
    found = []
    for one in arch:
        if one.startswith("sm_"):
            major, minor, _letter = archs.numbers(one)
            one = f"sm_{major}{minor}a" if major * 10 + minor >= EXACT else f"sm_{major}{minor}"
        found.append(one)
    plain = [one for one in found if one.startswith("sm_") and not one.endswith("a")]
    newest = archs.virtual(archs.newest_portable(plain)) if plain else PORTABLE
    return archs.canonical("cuda", [newest if one == "ptx" else one for one in found])


class TritonToolchain(Toolchain):
    """The Triton that this Python would import, with `host` or the host's compiler. Raises ToolchainNotFoundError."""

    root = "triton"
    """Whose version the report shows, as a device compiler's root does."""

    def __init__(self, layout: Layout, disk: Disk, host: HostToolchain | None = None) -> None:
        self._folder = find()
        self.package = os.path.join(self._folder, "triton")
        self._layout, self._disk = layout, disk
        self.host = host or HostToolchain(layout, disk)
        self.argv = (sys.executable, "-I", WORKER)
        self._cached_info: probe.CompilerInfo | None = None

    @classmethod
    def find(cls, spec: OpSpec, layout: Layout, disk: Disk) -> TritonToolchain:
        """Returns Triton with the host's compiler, or with the one for portable libraries."""
        machine = Target("cpu", (os.uname().machine.replace("_", "-"),))
        return cls(layout, disk, HostToolchain.find(spec._replace(target=machine), layout, disk))

    @property
    def _info(self) -> probe.CompilerInfo:
        """Who this Triton is, checked once for this object."""
        if self._cached_info is None:
            name = ("triton", self._folder)
            self._cached_info = probe.cached_info(name, {}, self._layout, self._disk, self._probe)
        return self._cached_info

    def identity(self) -> tuple[tuple[str, str], ...]:
        own = [(f"triton {name}", value) for name, value in self._info["identity"].items()]
        return tuple(sorted([*self.host.identity(), *own]))

    def programs(self) -> Mapping[str, list[int]]:
        return {**self.host.programs(), **self._info["stamps"]}

    def target_problem(self, device: str, arch: Sequence[str]) -> str | None:
        if device not in DEVICES:
            return f"Triton compiles for {' and '.join(DEVICES)}, not for {device}"
        if not arch:
            return f"no architecture of {device} is named, and there is no such device here"
        for one in archs.resolve_ptx(arch) if device == "cuda" else ():
            major, minor, _letter = archs.numbers(one)
            if (major, minor) < OLDEST:
                return f"Triton compiles for sm_{OLDEST[0]}{OLDEST[1]} and later, not for {one}"
            if one.startswith("compute_") and major * 10 + minor >= EXACT:
                return f"Triton writes PTX for later devices up to compute_89, not {one}: name an older one"
        return self.host.target_problem("cpu", ())

    def environment(self) -> tuple[tuple[str, str], ...]:
        return self.host.environment()

    def flags(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.host.flags()

    def target_flags(self, device: str, arch: Sequence[str]) -> tuple[str, ...]:
        return self.host.target_flags("cpu", ())

    def search_folders(self) -> tuple[str, ...]:
        return self.host.search_folders()

    def root_paths(self) -> Mapping[str, str]:
        return self.host.root_paths()

    def trusted_roots(self) -> Mapping[str, str]:
        return self.host.trusted_roots()

    def steps(self, plan: BuildPlan, roots: Mapping[str, str], library: str) -> list[Step]:
        """Compile the kernels in batches, each to a unit that holds its images; link those with the launcher."""
        device, _, text = plan.target.partition(":")
        told = [json.loads(text) for _name, text in plan.kernels]
        names = {one["source"] for one in told}
        located = {name: where for name in names for where in plan.sources if _is(where, name)}
        arches = archs.resolve_ptx(text.split("+")) if device == "cuda" else Target.parse(plan.target).arch
        pairs = [(number, arch) for arch in arches for number in range(len(told))]
        count = max(1, -(-len(pairs) // BATCH))
        units, roots = [], {**roots, "build": "."}
        for batch in range(count):
            part = pairs[batch * len(pairs) // count : (batch + 1) * len(pairs) // count]
            units.append(self._batch(plan, roots, batch, device, part, told, located))
        for made in units[:]:
            # What a unit of images was made from is not in its own dependency file: it is never taken from the store.
            source = RootedPath("build", made.output)
            units.append(self.host.compile(plan, roots, source, f"{made.output}.o")._replace(unit=None))
        launcher = (where for where in plan.sources if where not in located.values())
        units += [self.host.compile(plan, roots, where, f"{os.path.basename(where.path)}.o") for where in launcher]
        return self.host.finish(plan, units, library)

    def _batch(
        self,
        plan: BuildPlan,
        roots: Mapping[str, str],
        number: int,
        device: str,
        pairs: Sequence[tuple[int, str]],
        told: Sequence[Mapping[str, Any]],
        located: Mapping[str, RootedPath],
    ) -> Step:
        output = f"kernels.{number}.cpp"
        used = sorted({index for index, _arch in pairs})
        kernels = [{**told[index], **located[told[index]["source"]]._asdict()} for index in used]
        task = {
            "triton": self._folder,
            "output": output,
            "roots": {one["root"]: roots[one["root"]] for one in kernels},
            "kernels": kernels,
            "images": [[used.index(index), device, arch] for index, arch in pairs],
            "debug": "-g" in plan.compile_flags,
        }
        files = sorted({os.path.join(roots[one["root"]], one["path"]) for one in kernels})
        argv = (*self.argv, json.dumps(task, separators=(",", ":")))
        arches = ", ".join(dict.fromkeys(arch for _index, arch in pairs))
        return Step(output, (*files, WORKER), argv, f"compile {len(pairs)} Triton kernels for {arches}", output + ".d")

    def _probe(self) -> probe.CompilerInfo:
        package = self.package
        with open(os.path.join(package, "__init__.py"), encoding="utf-8") as opened:
            found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", opened.read())
        version = found[1] if found else ""
        record = os.path.join(self._folder, f"triton-{version}.dist-info", "RECORD")
        if os.path.exists(record):
            # The wheel's own list holds the digest of every file in it, which saves reading half a gigabyte.
            with open(record, encoding="utf-8") as opened:
                lines = sorted(line for line in opened if line.startswith("triton/") and ",sha256=" in line)
            contents, watched = hashlib.sha256("".join(lines).encode()).hexdigest(), [record]
        else:
            watched = sorted(_code(package))
            contents = key_of([[os.path.relpath(path, package), self._disk.digest(path)] for path in watched])
        watched += [os.path.join(package, "__init__.py"), WORKER]
        return {
            "identity": {"version": version, "contents": contents, "worker": self._disk.digest(WORKER) or ""},
            "stamps": {path: list(self._disk.stamp(path) or ()) for path in watched},
            "absent": [],
        }


def _is(where: RootedPath, name: str) -> bool:
    """Whether a source was located from this name: below a root, or by its own absolute path."""
    return os.path.normpath(name) in (where.path, os.sep + where.path)


def find() -> str:
    """The folder that holds the package `triton`, without importing it. Raises ToolchainNotFoundError."""
    loaded = sys.modules.get("triton")
    origin = getattr(loaded, "__file__", None)
    if origin is None:
        try:
            spec = importlib.util.find_spec("triton")
        except (ImportError, ValueError):
            spec = None  # something in this process forbids it
        origin = spec.origin if spec else None
    if origin is None:
        where = ["the package triton, in this Python's environment"]
        raise ToolchainNotFoundError("Triton", where, ADVICE, f"not installed: {INSTALL}")
    return os.path.dirname(os.path.dirname(os.path.realpath(origin)))


def _code(package: str) -> list[str]:
    """The files of a Triton that was not installed from a wheel which decide what it compiles."""
    return [
        os.path.join(place, name)
        for place, _folders, names in os.walk(package)
        for name in names
        if name.endswith((".py", ".so", ".bc")) or os.path.basename(place) == "bin"
    ]
