"""Triton: kernels in Python, for NVIDIA's and AMD's GPUs, compiled ahead of time; the host's compiler links the library."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from opforge.builders.plan import BuildPlan, Step
from opforge.cache.disk import Disk
from opforge.cache.inputs import Located
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout, write_file
from opforge.errors import ToolchainNotFoundError

from .host import HostToolchain

FORMAT = 1
WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "triton_worker.py")
ADVICE = "Install it (pip install 'opforge[triton]'), or use a library that was built elsewhere: build-ops --out."
BATCH = 16
"""Images that one process compiles: importing Triton takes as long as four of them."""
LAUNCHER = tuple(f"launcher/{name}.cpp" for name in ("launch", "open", "cuda_driver", "hip_driver"))
"""The launcher's units, below opforge's own kernel root."""
OLDEST_SM = 75
TEXT_SM = 89
"""From sm_90 on Triton writes for one architecture alone, in PTX too; text for later devices is made for this or older."""
IMAGE = {"cuda": re.compile(r"sm_(\d+)[af]?$"), "hip": re.compile(r"gfx[0-9a-f]+$")}


class TritonToolchain:
    """The Triton that this Python would import, with the host's compiler. Raises ToolchainNotFoundError without one."""

    def __init__(self, layout: Layout, disk: Disk) -> None:
        self._folder = _find()
        self._layout, self._disk = layout, disk
        self.host = HostToolchain(layout, disk)
        self.argv = (sys.executable, "-I", WORKER)
        self._known: dict[str, Any] | None = None

    @property
    def _facts(self) -> dict[str, Any]:
        if self._known is None:
            self._known = _facts(self._folder, self._layout, self._disk)
        return self._known

    def identity(self) -> tuple[tuple[str, str], ...]:
        own: Mapping[str, str] = self._facts["identity"]
        return tuple(sorted([*own.items(), *((f"host {name}", value) for name, value in self.host.identity())]))

    def programs(self) -> Mapping[str, list[int]]:
        return {**self._facts["stamps"], **self.host.programs()}

    def objection(self, device: str, arch: Sequence[str]) -> str | None:
        if device not in IMAGE:
            return f"Triton compiles for {' and '.join(IMAGE)}, not for {device}"
        if not arch:
            example = "cuda:sm_90" if device == "cuda" else "hip:gfx942"
            return f"no architecture is named and there is no {device} device here: name one, such as {example}"
        for one in arch:
            found = IMAGE[device].match(one)
            if found is None and not (device == "cuda" and one == "ptx"):
                return f"Triton does not know the architecture {one!r} of {device}"
            if found and device == "cuda" and int(found[1]) < OLDEST_SM:
                return f"Triton compiles for sm_{OLDEST_SM} and later, not for {one}"
        return self.host.objection("cpu", ())

    def environment(self) -> tuple[tuple[str, str], ...]:
        return self.host.environment()

    def flags(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.host.flags()

    def target_flags(self, device: str, arch: Sequence[str]) -> tuple[str, ...]:
        return self.host.target_flags("cpu", ())

    def search_folders(self) -> tuple[str, ...]:
        return self.host.search_folders()

    def steps(self, plan: BuildPlan, roots: Mapping[str, str], library: str) -> list[Step]:
        """Compile the kernels in batches, each to a unit that holds its images; link those with the launcher."""
        device, _, arches = plan.target.partition(":")
        wanted = _images(device, arches.split("+"))
        told = [json.loads(text) for _name, text in plan.kernels]
        sources = {one["source"]: one for one in told}
        located = {name: where for name in sources for where in plan.sources if _is(where, name)}
        pairs = [(number, arch) for arch in wanted for number in range(len(told))]
        count = max(1, -(-len(pairs) // BATCH))
        steps, units = [], []
        for batch in range(count):
            part = pairs[batch * len(pairs) // count : (batch + 1) * len(pairs) // count]
            steps.append(self._batch(plan, roots, batch, device, part, told, located))
            units.append(Located("build", steps[-1].output))
        launcher = tuple(where for where in plan.sources if where not in located.values())
        host_plan = plan._replace(sources=(*launcher, *units))
        for step in self.host.steps(host_plan, {**roots, "build": "."}, library):
            # What a unit of images was made from is not in its own dependency file: it is compiled anew each time.
            steps.append(step._replace(unit=None) if step.unit in units else step)
        return steps

    def _batch(
        self,
        plan: BuildPlan,
        roots: Mapping[str, str],
        number: int,
        device: str,
        pairs: Sequence[tuple[int, str]],
        told: Sequence[Mapping[str, Any]],
        located: Mapping[str, Located],
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


def _is(where: Located, name: str) -> bool:
    """Whether a source was located from this name: below a root, or by its own absolute path."""
    return os.path.normpath(name) in (where.path, os.sep + where.path)


def _images(device: str, arches: Sequence[str]) -> list[str]:
    """The architectures to compile for; `ptx` becomes text that the drivers of later devices compile."""
    named = list(dict.fromkeys(arch for arch in arches if arch != "ptx"))
    if device == "cuda" and "ptx" in arches:
        portable = [number for one in named if (number := int(re.findall(r"\d+", one)[0])) <= TEXT_SM]
        named.append(f"ptx_{max(portable, default=80)}")
    return named


def _find() -> str:
    """The folder that holds the package `triton`, without importing it."""
    loaded = sys.modules.get("triton")
    origin = getattr(loaded, "__file__", None)
    if origin is None:
        spec = importlib.util.find_spec("triton")
        origin = spec.origin if spec else None
    if origin is None:
        raise ToolchainNotFoundError("Triton", ["the package triton, in this Python's environment"], ADVICE)
    return os.path.dirname(os.path.dirname(os.path.realpath(origin)))


def _facts(folder: str, layout: Layout, disk: Disk) -> dict[str, Any]:
    """Who this Triton is, remembered in the store under the stamps of the files that were asked."""
    file = layout.path("toolchains", key_of([FORMAT, "triton", folder]) + ".json")
    try:
        with open(file, "rb") as opened:
            record = json.load(opened)
        stamps: Mapping[str, list[int]] = record["stamps"]
        if record["format"] == FORMAT and all(list(disk.stamp(path) or ()) == stamp for path, stamp in stamps.items()):
            return {"stamps": stamps, "identity": dict(record["identity"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # never asked, or the record is damaged
    asked = _ask(folder, disk)
    try:
        write_file(file, json.dumps({"format": FORMAT, **asked}).encode())
    except OSError:
        pass  # there is no store before the first build
    return asked


def _ask(folder: str, disk: Disk) -> dict[str, Any]:
    package = os.path.join(folder, "triton")
    with open(os.path.join(package, "__init__.py"), encoding="utf-8") as opened:
        version = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", opened.read())
    record = os.path.join(folder, f"triton-{version[1] if version else ''}.dist-info", "RECORD")
    if os.path.exists(record):
        # The wheel's own list holds the digest of every file in it, which saves reading half a gigabyte.
        with open(record, encoding="utf-8") as opened:
            lines = sorted(line for line in opened if line.startswith("triton/") and ",sha256=" in line)
        contents = hashlib.sha256("".join(lines).encode()).hexdigest()
        watched = [record]
    else:
        watched = sorted(_code(package))
        contents = key_of([[os.path.relpath(path, package), disk.digest(path)] for path in watched])
    watched.append(os.path.join(package, "__init__.py"))
    return {
        "identity": {
            "version": f"Triton {version[1]}" if version else "",
            "contents": contents,
            "worker": disk.digest(WORKER) or "",
        },
        "stamps": {path: list(disk.stamp(path) or ()) for path in (*watched, WORKER)},
    }


def _code(package: str) -> list[str]:
    """The files of a Triton that was not installed from a wheel which decide what it compiles."""
    return [
        os.path.join(place, name)
        for place, _folders, names in os.walk(package)
        for name in names
        if name.endswith((".py", ".so", ".bc")) or os.path.basename(place) == "bin"
    ]
