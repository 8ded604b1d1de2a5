"""opforge's own wheel without built ops, made from the sdist where opforge is installed, as a release makes it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile

import pytest
from support.paths import CHECKOUT

pytestmark = pytest.mark.timeout(300)


def test_a_wheel_that_is_made_from_the_sdist_has_every_module_of_the_sdist(tmp_path):
    def build(kind: str, source: str) -> None:
        command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", kind, "--outdir", "."]
        done = subprocess.run([*command, source], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    build("--sdist", CHECKOUT)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    build("--wheel", str(unpacked))
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.endswith(".py")}
    parts = ("accelerator", "builders", "cache", "ops", "packages", "remote")
    expected = {f"opforge/{file.relative_to(unpacked)}" for part in parts for file in (unpacked / part).rglob("*.py")}
    expected |= {os.fspath(file.relative_to(unpacked / "src")) for file in (unpacked / "src").rglob("*.py")}
    assert len(packed) > 500 and packed == expected
