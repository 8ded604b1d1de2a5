"""The ops that a project puts into its wheel: the table [tool.opforge], and the build of a package's layer.

What builds the wheel may be setuptools (`setuptools.py`), or another backend (`opforge.backend`).
"""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LEVELS = {
    "x86_64": ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4"),
    "aarch64": ("cpu:aarch64",),
}
"""Machine -> the default targets. The highest level that the processor has is chosen when the op is loaded."""
KNOWN = frozenset({"ops", "targets", "portable"})
EXPECTED = 'expected ops = ["package.module:Class", ...] and, optionally, targets = ["cpu:x86-64-v3", ...], portable'
BACKEND = "backend"
"""The key of the table that names the backend which `opforge.backend` wraps."""
KERNELS = "kernels"
"""The table of the kernel packages that a project requires: `opforge lock` reads it, and no build does."""
TORCH_IS_ABSENT = (
    '\nhint: torch is not in this build environment. Add "torch>=2.10" to `requires` of [build-system], or build'
    " without isolation, with the torch that is installed: pip wheel --no-build-isolation (uv: --no-build-isolation),"
    " python -m build --no-isolation"
)


class OpsConfig(NamedTuple):
    """The ops that a project puts into its wheel."""

    ops: tuple[str, ...]
    """Builders, each as package.module:Class."""
    targets: tuple[str, ...] = ()
    portable: bool = False
    package: str = ""
    """The package that gets the ops; by default each op's own. If it is set, no `ops` means all that are offered."""

    def by_package(self) -> dict[str, list[str]]:
        """Returns the top-level packages that get ops, each with its ops."""
        if self.package:
            return {self.package: list(self.ops)}
        packages: dict[str, list[str]] = {}
        for op in self.ops:
            packages.setdefault(op.partition(":")[0].partition(".")[0], []).append(op)
        return packages


def config_problem(ops: object, targets: object, portable: object, package: str) -> str | None:
    """Returns what is wrong with the configuration, or None."""
    for name, value in (("ops", ops), ("targets", targets)):
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            return f"{name}={value!r} is not a list of names"
    assert isinstance(ops, (list, tuple))
    wrong = None if package else next((op for op in ops if not all(op.partition(":")[::2])), None)
    if wrong is not None:
        return f"{wrong!r} names no builder"
    if not isinstance(portable, bool):
        return f"portable={portable!r} is neither true nor false"
    return None if ops or package else "no op is named"


def unknown_keys(table: object) -> str | None:
    """Returns what is wrong with the keys of a table, or None."""
    unknown = sorted(set(table) - KNOWN) if isinstance(table, dict) else ["no table"]
    return f"[tool.opforge] has {', '.join(unknown)}, which is unknown" if unknown else None


def config_of(table: Mapping[str, Any]) -> OpsConfig:
    """Returns the configuration in a table [tool.opforge]. Raises ValueError."""
    problem = unknown_keys(table)
    values = {"ops": (), "targets": (), "portable": False, **table}
    problem = problem or config_problem(values["ops"], values["targets"], values["portable"], "")
    if problem:
        raise ValueError(f"{problem}; {EXPECTED}")
    return OpsConfig(tuple(values["ops"]), tuple(values["targets"]), values["portable"])


def default_targets() -> tuple[str, ...]:
    """Returns the targets that are built for if none is named. Raises ValueError on a machine without a default."""
    machine = platform.machine()
    if machine not in LEVELS:
        raise ValueError(f"there are no default targets for {machine}: set `targets`")
    return LEVELS[machine]


def build_layer(
    ops: Sequence[str], layer: str, folder: str, targets: Sequence[str], portable: bool, jobs: str = ""
) -> str:
    """Builds ops into a layer, in another process. Returns an empty text, or what failed with a hint.

    Args:
        ops: The builders.
        layer: The folder of the layer.
        folder: From where the builders are imported: it has what the wheel will hold, so that a source that the wheel
            lacks fails the build.
        targets: The targets.
        portable: Whether older systems load the libraries too.
        jobs: How many compilers may run at once; empty for as many as there is memory for.
    """
    command = [sys.executable, "-m", "opforge", "build-ops", *ops, "--out", layer]
    command += [word for target in targets for word in ("--target", target)]
    command += ["--jobs", jobs] if jobs else []
    command += ["--portable"] if portable else []
    # Python imports from the working folder first. Without PYTHONDONTWRITEBYTECODE the wheel would hold the bytecode of
    # what is imported here.
    env = {"OPFORGE_PREBUILT": "ignore", **os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.run(command, cwd=folder, env=env)
    if not process.returncode:
        return ""
    hint = "" if importlib.util.find_spec("torch") else TORCH_IS_ABSENT
    return f"building {', '.join(ops) or 'the ops'} failed; see the lines above{hint}"
