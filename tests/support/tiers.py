"""The three tiers of tests: `make test`, `make test-all` and `make test-long`.

A test is of the first tier if it is below a path of `FIRST`, below none of `BUT`, and not marked `test_all`. What is
marked `long` is of the third tier, all else of the second. Without a tier pytest runs what it is asked for, but for
the third.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
TIERS = ("first", "rest", "long")
"""What `--tier` accepts. `rest` is the second without the first: what `make test` has run is not run again."""
FIRST = (
    "spine",
    "unit",
    "contract/test_accelerators.py",
    # What a build reads without a compiler's list of it, and what a layer's entry is compared with.
    "compile/builds/test_beside_a_layer.py",
    "compile/builds/test_inputs.py",
    "compile/builds/test_unlisted_inputs.py",
    # What is loaded a second time in a process is that of what has changed since: the path that most calls take.
    "compile/load/test_second_load.py",
    "compile/load/test_values_that_change_in_place.py",
    # The only tests of what reads and writes remote stores: by servers of the test's own process, in 5 s together.
    "fault/stores/test_bad_servers.py",
    "fault/stores/test_connections.py",
    "fault/stores/test_cut_downloads.py",
    "fault/stores/test_folder_faults.py",
    "fault/stores/test_folder_locks.py",
    "fault/stores/test_mutated_answers.py",
    "fault/stores/test_publishing.py",
    "fault/stores/test_slow_servers.py",
)
"""What `make test` collects, below tests/."""
BUT = {
    "unit/bench/test_page.py": "needs matplotlib",
    "unit/bench/test_picture.py": "needs matplotlib",
    "unit/builders/inspection/test_intact_files.py": "needs msgpack",
    "unit/cache/test_schema.py": "needs jsonschema",
    "unit/compat/test_hub_layers.py": "needs kernels",
    "unit/compat/test_hub_transformers.py": "needs transformers and kernels",
    "unit/packages/project/test_hub_mirror.py": "needs huggingface_hub",
    "unit/packages/project/test_hub_publish.py": "needs huggingface_hub",
    "unit/packages/test_environment_oracle.py": "needs torch-abi-audit",
    "unit/packages/test_hub_signatures.py": "needs sigstore",
    "unit/port/test_runs.py": "imports torch in processes, to run what was ported",
    "unit/port/test_size.py": "reads large programs for seconds",
    "unit/project/test_formats.py": "needs jsonschema",
    "unit/project/test_site.py": "needs Sphinx",
    "unit/remote/farm": "needs distributed; starts the workers of a farm",
    "unit/remote/test_histories.py": "builds for seconds",
}
"""Files and folders below those of `FIRST` which `make test` leaves out, and why."""
_chosen: str | None = None


def choose(tier: str | None) -> None:
    """Sets the tier of this process. conftest.py calls it before the first test file is imported."""
    global _chosen
    _chosen = tier


def is_long() -> bool:
    """Returns whether the third tier runs: full products, each level, thousands of repetitions."""
    return _chosen == "long"


def seed() -> int:
    """Returns the seed of a random test. It is fixed but in the third tier: no change meets the failure of another."""
    return random.SystemRandom().randrange(10**6) if is_long() else 0


def _is_below(name: str, places: object) -> bool:
    return any(name == place or name.startswith(f"{place}/") for place in places)  # type: ignore[attr-defined]


@functools.cache  # of a file, and not of each of its tests
def is_first(path: Path) -> bool:
    """Returns whether `make test` collects a file, or all of a folder."""
    name = path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""
    return _is_below(name, FIRST) and not _is_below(name, BUT)


def _leads_to_first(folder: Path) -> bool:
    name = folder.relative_to(TESTS).as_posix() if folder.is_relative_to(TESTS) else "."
    return name == "." or any(place.startswith(f"{name}/") for place in FIRST)


def is_left_out(path: Path) -> bool:
    """Returns whether the tier has no test of this file or folder. What it says of a file needs no import of it."""
    if _chosen == "first":
        return not is_first(path) and (path.is_file() or not _leads_to_first(path))
    if _chosen == "rest":
        return path.suffix == ".py" and is_first(path) and "mark.test_all(" not in path.read_text()
    return False


def is_of_the_tier(item: pytest.Item) -> bool:
    """Returns whether the tier has this test, whose file it collects."""
    is_first_test = is_first(item.path) and not item.get_closest_marker("test_all")
    return {"first": is_first_test, "rest": not is_first_test}.get(_chosen or "", True)


def without_products(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests without most combinations of stacked parameters, which the third tier tries.

    Each value of each parameter is tried: the first ones together, then the second ones, and so on. A parameter with
    fewer values than another begins again. The last values of all are tried together too.
    """
    tests: dict[tuple[pytest.Item | pytest.Collector | None, str], list[tuple[pytest.Item, list[tuple[int, ...]]]]] = {}
    for item in items:
        if values := _values(item):
            tests.setdefault((item.parent, getattr(item, "originalname", item.name)), []).append((item, values))
    left_out = set()
    for cases in tests.values():
        axes = [[*dict.fromkeys(of_axis)] for of_axis in zip(*(values for _item, values in cases), strict=True)]
        kept = [[axis[at % len(axis)] for axis in axes] for at in range(max(map(len, axes)))]
        kept.append([axis[-1] for axis in axes])
        left_out |= {item for item, values in cases if values not in kept}
    return [item for item in items if item not in left_out]


def _values(item: pytest.Item) -> list[tuple[int, ...]]:
    """Returns what identifies the value that a test has of each stacked parameter; nothing if it has one alone.

    pytest's own numbers (`callspec.indices`) count the combinations, and not the values of each parameter.
    """
    callspec = getattr(item, "callspec", None)
    stacked = [mark.args[0] for mark in item.iter_markers("parametrize")]
    if callspec is None or len(stacked) < 2 or item.get_closest_marker("every_combination"):
        return []
    names = [tuple(re.split(r"[,\s]+", name.strip())) if isinstance(name, str) else tuple(name) for name in stacked]
    return [tuple(id(callspec.params[name]) for name in together) for together in names]
