"""What choosing an accelerator imports, which every cache hit does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import opforge

HEAVY = """
torch importlib.metadata filelock platformdirs click rich subprocess inspect dataclasses packaging
opforge.accelerator.interface.external_builders
""".split()  # noqa: SIM905

CHOOSE = """
import logging, sys
of_python = set(sys.modules)  # from Python 3.14 on logging imports dataclasses, which imports inspect
from opforge.accelerator import get_accelerator, select
assert len(select.DRIVER_FILES) > 5
select.DRIVER_FILES = {{name: ("/dev/no/such/file",) for name in select.DRIVER_FILES}}  # no driver
accelerator = get_accelerator()
accelerator.target()
assert accelerator.create_op_builder("CPUAdamBuilder").name
print(*sorted(set({heavy!r}) & set(sys.modules) - of_python))
"""


def run(code: str, tmp_path) -> str:
    """Runs the code in a new process, with a cache folder of its own, and returns what it printed."""
    environment = dict(os.environ, PYTHONPATH=os.path.dirname(next(iter(opforge.__path__))))
    # The first process would write byte code beside the package, which changes its folder: pip does that at install.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    environment.pop("OPFORGE_ACCELERATOR", None)
    environment.pop("DS_ACCELERATOR", None)
    (tmp_path / "cache").mkdir(mode=0o700, exist_ok=True)
    environment["OPFORGE_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere platformdirs names the cache folder")
def test_choosing_an_accelerator_a_second_time_imports_nothing_heavy(tmp_path):
    run(CHOOSE.format(heavy=HEAVY), tmp_path)
    assert run(CHOOSE.format(heavy=HEAVY), tmp_path) == ""


def test_importing_the_package_imports_no_part_of_it(tmp_path):
    code = "import sys, opforge.accelerator; print(*[m for m in sys.modules if m.startswith('opforge.accelerator.')])"
    assert run(code, tmp_path) == ""


def test_every_public_name_can_be_imported():
    import opforge.accelerator

    for name in opforge.accelerator.__all__:
        assert getattr(opforge.accelerator, name) is not None
    assert callable(opforge.accelerator.candidates)
    assert set(opforge.accelerator.__all__) <= set(dir(opforge.accelerator))
    with pytest.raises(AttributeError, match=r"module 'opforge\.accelerator' has no attribute 'nonsense'"):
        opforge.accelerator.nonsense


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere platformdirs names the cache folder")
def test_another_packages_accelerator_is_chosen_without_a_scan(tmp_path):
    site = tmp_path / "site"
    info = site / "quick-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: quick\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[opforge.accelerators]\nquick = quick_device:Quick\n")
    (site / "quick_device.py").write_text(
        "from opforge.accelerator.devices.null import NullAccelerator\n\n\n"
        "class Quick(NullAccelerator):\n    name = 'quick'\n    interface_version = 1\n"
    )
    # As if the folder had not changed in the last two seconds.
    code = "import time; now = time.time_ns; time.time_ns = lambda: now() + 4 * 10**9\n"
    code += f"import sys; sys.path.insert(0, {str(site)!r}); sys.path.remove('')\n" + CHOOSE.format(heavy=HEAVY)
    code += "print(accelerator.name)"
    assert run(code, tmp_path).endswith("quick")
    assert run(code, tmp_path) == "quick"
