"""The ops that a project puts into its wheel: the table [tool.opforge], and the build of a package's layer.

What builds the wheel may be setuptools (`setuptools.py`), or another backend (`opforge.backend`).
"""

from __future__ import annotations

import importlib.util
import json
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
KNOWN = frozenset({"ops", "targets", "portable", "variants"})
EXPECTED = (
    'expected ops = ["package.module:Class", ...] and, optionally, targets = ["cpu:x86-64-v3", ...], portable, variants'
)
VARIANTS_EXPECTED = (
    'expected true, or a table of labels = { "cuda:sm_90" = "hopper" }, plain = "all" or "null", partial = false'
)
BACKEND = "backend"
"""The key of the table that names the backend which `opforge.backend` wraps."""
KERNELS = "kernels"
"""The table of the kernel packages that a project requires: `opforge lock` reads it, and no build does."""
TORCH_IS_ABSENT = (
    '\nhint: torch is not in this build environment. Add "torch>=2.10" to `requires` of [build-system], or build'
    " without isolation, with the torch that is installed: pip wheel --no-build-isolation (uv: --no-build-isolation),"
    " python -m build --no-isolation"
)


class VariantsConfig(NamedTuple):
    """How a project's wheel becomes wheel variants: `backend/split.py` says what each value does."""

    labels: Mapping[str, str] = {}
    plain: str = "all"
    partial: bool = False


class OpsConfig(NamedTuple):
    """The ops that a project puts into its wheel."""

    ops: tuple[str, ...]
    """Builders, each as package.module:Class."""
    targets: tuple[str, ...] = ()
    portable: bool = False
    package: str = ""
    """The package that gets the ops; by default each op's own. If it is set, no `ops` means all that are offered."""
    variants: VariantsConfig | None = None

    def by_package(self) -> dict[str, list[str]]:
        """Returns the top-level packages that get ops, each with its ops."""
        if self.package:
            return {self.package: list(self.ops)}
        packages: dict[str, list[str]] = {}
        for op in self.ops:
            packages.setdefault(op.partition(":")[0].partition(".")[0], []).append(op)
        return packages


def config_problem(ops: object, targets: object, portable: object, package: str) -> str | None:
    """Returns the problem of the configuration, or None."""
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
    """Returns the problem of the keys of a table, or None."""
    unknown = sorted(set(table) - KNOWN) if isinstance(table, dict) else ["no table"]
    return f"[tool.opforge] has {', '.join(unknown)}, which is unknown" if unknown else None


def config_of(table: Mapping[str, Any]) -> OpsConfig:
    """Returns the configuration in a table [tool.opforge]. Raises ValueError."""
    problem = unknown_keys(table)
    values = {"ops": (), "targets": (), "portable": False, **table}
    problem = problem or config_problem(values["ops"], values["targets"], values["portable"], "")
    if problem:
        raise ValueError(f"{problem}; {EXPECTED}")
    variants = _variants_of(values.get("variants", False))
    return OpsConfig(tuple(values["ops"]), tuple(values["targets"]), values["portable"], variants=variants)


def _variants_of(value: object) -> VariantsConfig | None:
    """Returns the value of `variants`. Raises ValueError."""
    if isinstance(value, bool):
        return VariantsConfig() if value else None
    if isinstance(value, dict) and not set(value) - set(VariantsConfig._fields):
        config = VariantsConfig(**value)
        labels = config.labels.items() if isinstance(config.labels, dict) else [(None, None)]
        are_texts = all(isinstance(word, str) for pair in labels for word in pair)
        if are_texts and config.plain in ("all", "null") and isinstance(config.partial, bool):
            return config
    raise ValueError(f"variants={value!r}: {VARIANTS_EXPECTED}")


def default_targets() -> tuple[str, ...]:
    """Returns the targets that are built for if none is named. Raises ValueError on a machine without a default."""
    machine = platform.machine()
    if machine not in LEVELS:
        raise ValueError(f"there are no default targets for {machine}: set `targets`")
    return LEVELS[machine]


def planned_targets(ops: Sequence[str], folder: str, targets: Sequence[str], portable: bool) -> dict[str, list[str]]:
    """Returns the targets that each op would be built for, without building it. The arguments are `build_layer`'s.

    Raises ValueError with the reason if an op cannot be built.
    """
    command = [*_build_ops(ops, targets, portable), "--dry-run", "--json"]
    process = subprocess.run(command, cwd=folder, env=_environment(), stdout=subprocess.PIPE, text=True)
    try:
        plans = json.loads(process.stdout)["ops"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{', '.join(ops) or 'the ops'} cannot be planned; see the lines above") from error
    found: dict[str, list[str]] = {}
    for plan in plans:
        if plan["state"] == "failed":
            raise ValueError(f"{plan['name']} for {plan['target']}: {plan['reason']}")
        found.setdefault(plan["name"], []).append(plan["target"])
    return found


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
    command = [*_build_ops(ops, targets, portable), "--out", layer, *(["--jobs", jobs] if jobs else [])]
    process = subprocess.run(command, cwd=folder, env=_environment())
    if not process.returncode:
        return ""
    hint = "" if importlib.util.find_spec("torch") else TORCH_IS_ABSENT
    return f"building {', '.join(ops) or 'the ops'} failed; see the lines above{hint}"


def _build_ops(ops: Sequence[str], targets: Sequence[str], portable: bool) -> list[str]:
    command = [sys.executable, "-m", "opforge", "build-ops", *ops]
    command += [word for target in targets for word in ("--target", target)]
    return [*command, *(["--portable"] if portable else [])]


def _environment() -> dict[str, str]:
    # Python imports from the working folder first. Without PYTHONDONTWRITEBYTECODE the wheel would hold the bytecode of
    # what is imported here.
    return {"OPFORGE_PREBUILT": "ignore", **os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
