"""`opforge pack --on`: workers build the variants, and what is packed is what packing here gives."""

from __future__ import annotations

import json
import os
import sys

import pytest
from click.testing import CliRunner
from support.kernels.projects import scale_project
from support.text_files import write

from opforge.cli import group
from opforge.errors import PackError, SettingError
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading
from opforge.remote.signatures import keys, trust_file

pytestmark = [pytest.mark.compile, pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux")]
POOL = "from concurrent.futures import ThreadPoolExecutor\ndef pool():\n    return ThreadPoolExecutor(1)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch, builds_are_shared):
    """A project, a remote, a key, and a module that makes an executor."""
    os.mkdir(tmp_path / "remote")
    trust_file.write(trust_file.read()._replace(keys=(trust_file.TrustedKey(keys.create("ci"), ("op:*",)),)))
    monkeypatch.setenv("OPFORGE_REMOTES", f"file://{tmp_path}/remote?push=1")
    write(tmp_path, "pack_pool.py", POOL)
    monkeypatch.syspath_prepend(str(tmp_path))
    scale_project(tmp_path / "project")
    return tmp_path / "project"


def test_a_variant_that_a_worker_built_is_the_one_that_is_packed_here(folder, tmp_path, monkeypatch):
    elsewhere = CliRunner().invoke(
        group, ["pack", str(folder), "--on", "pack_pool:pool", "--out", str(tmp_path / "a"), "--no-try", "--json"]
    )
    assert elsewhere.exit_code == 0, elsewhere.output
    (variant,) = json.loads(elsewhere.stdout)["variants"]
    assert any((tmp_path / "remote" / "v1" / "blobs").rglob("*")) and os.path.isdir(variant["folder"])
    monkeypatch.delenv("OPFORGE_REMOTES")
    (here,) = pack(reading.read(str(folder)), str(tmp_path / "b"), Options(tried=False))
    assert here.digest == variant["digest"]


def test_a_failure_of_a_worker_packs_nothing(folder, tmp_path):
    for path in folder.rglob("*.cpp"):
        path.write_text("this is no C++;\n")
    with pytest.raises(PackError, match="Nothing was packed"):
        pack(reading.read(str(folder)), str(tmp_path / "out"), Options(tried=False, on="pack_pool:pool"))
    assert not (tmp_path / "out" / "build").exists()


def test_a_package_is_not_built_elsewhere_without_a_remote(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("OPFORGE_REMOTES")
    with pytest.raises(SettingError, match="a remote with push=1"):
        pack(reading.read(str(folder)), str(tmp_path / "out"), Options(tried=False, on="pack_pool:pool"))


def test_what_is_compared_is_packed_here(folder):
    done = CliRunner().invoke(group, ["pack", str(folder), "--on", "pack_pool:pool", "--check"])
    assert done.exit_code == 2 and "packs copies of the project" in done.output
