"""A new project is installed by pip and by uv, with and without build isolation. Isolated builds copy torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig

import pytest
from support import tiers
from support.paths import CHECKOUT

from opforge.new.project import create

LONG = tiers.is_long()
pytestmark = [
    pytest.mark.compile,
    pytest.mark.timeout(1800),
    pytest.mark.long("installs torch for each isolated build"),
]
IGNORED = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "docs", "tests", "benchmarks")
CODE = """
import torch, my_op
print(my_op.squared_relu(torch.tensor([-1.0, 3.0])).tolist(), my_op.op().origin)
"""


def run(command, folder, **env):
    """Runs a command. Returns its standard output; its whole output explains a failure."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPFORGE_", "PYTHONPATH"))}
    process = subprocess.run(command, cwd=folder, env={**clean, **env}, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A folder with the wheel of this opforge."""
    folder = tmp_path_factory.mktemp("opforge")
    shutil.copytree(CHECKOUT, folder / "tree", symlinks=True, ignore=IGNORED)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", str(folder)]
    run([*pip, "."], folder / "tree")
    return folder


@pytest.fixture(scope="module")
def settings(wheels):
    """The variables by which pip and uv find this opforge, and choose the versions that are tested here."""
    links = " ".join(filter(None, [os.environ.get("PIP_FIND_LINKS"), str(wheels)]))
    constraints = os.path.join(CHECKOUT, "constraints.txt")
    uv = {"UV_FIND_LINKS": links.replace(" ", ","), "UV_BUILD_CONSTRAINT": constraints}
    return {"PIP_FIND_LINKS": links, "PIP_CONSTRAINT": constraints, **uv}


@pytest.fixture
def python(tmp_path, wheels):
    """The Python of a new environment, with this opforge, and with the torch of these tests."""
    run([sys.executable, "-m", "venv", "--without-pip", "venv"], tmp_path)
    path = str(tmp_path / "venv" / "bin" / "python")
    (wheel,) = wheels.glob("*.whl")
    run(
        [sys.executable, "-m", "pip", "--python", path, "install", "-q", "--no-deps", "--no-index", str(wheel)],
        tmp_path,
    )
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = run([path, "-c", query], tmp_path).strip()
    with open(os.path.join(site, "torch.pth"), "w") as file:
        file.write(sysconfig.get_path("purelib") + "\n")
    return path


def installers(python):
    """Returns the command of each installer, for the environment of that Python."""
    return {
        "pip": [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"],
        "uv": [shutil.which("uv") or "", "pip", "install", "-q", "--no-deps", "--python", python],
    }


@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_it_installs_and_its_op_loads_without_a_compiler(installer, isolated, python, settings, tmp_path):
    command = installers(python)[installer]
    if not command[0]:
        pytest.skip("needs uv: pip install uv")
    folder = tmp_path / "my-op"
    create(str(folder), "cpu")
    store = {"OPFORGE_CACHE_DIR": str(tmp_path / "store")}
    run([*command, *(() if isolated else ("--no-build-isolation",)), "."], folder, **settings, **store)
    output = run([python, "-I", "-c", CODE], tmp_path, PATH=str(tmp_path), OPFORGE_CACHE_DIR=str(tmp_path / "empty"))
    assert output.startswith("[0.0, 9.0] ") and output.strip().endswith("my_op/_opforge_ops"), output


@pytest.mark.parametrize(
    "command", [["uv", "build", "--wheel"], [sys.executable, "-m", "build", "--wheel"]], ids=["uv", "build"]
)
def test_it_is_built_by_other_front_ends(command, settings, tmp_path):
    if shutil.which(command[0]) is None:
        pytest.skip("needs uv: pip install uv")
    folder = tmp_path / "my-op"
    create(str(folder), "cpu")
    run(command, folder, **settings, OPFORGE_CACHE_DIR=str(tmp_path / "store"))
    (wheel,) = (folder / "dist").glob("*.whl")
    assert "-py3-none-manylinux_" in wheel.name
