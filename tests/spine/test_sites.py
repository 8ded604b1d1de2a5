"""`opforge mirror cache:`: what one site has built reaches another one without a network, signed and checked."""

from __future__ import annotations

import os

import pytest
from support import child_processes, sample_ops

pytestmark = pytest.mark.compile
pytest.importorskip("cryptography", reason="needs cryptography: pip install opforge[sign]")
LOAD = "from plain_ops import Plain; op = Plain().load(); print(op.value(), op.origin)"


@pytest.fixture
def disk(tmp_path):
    """The folder that is carried to the other site."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.fixture
def built(folder, declared, tmp_path):
    """The op, whose library makes a file `ran` when it is loaded; its cache is that of the first site."""
    source = "#include <fstream>\n" + sample_ops.PLAIN_SOURCE
    source += f'static int ran = (std::ofstream("{tmp_path}/ran") << "ran", 1);\n'
    (folder / "plain.cpp").write_text(source)
    assert child_processes.run_python(LOAD, env=declared) == "1 built\n"
    (tmp_path / "ran").unlink()


def run(*words, **variables):
    done = child_processes.run_command(*words, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_site_without_network_and_compiler_loads_what_another_has_signed(built, declared, disk, tmp_path):
    public = run("key", "new", "lab")
    assert run("mirror", "cache:", f"file://{disk}").startswith("1 statement copied")
    assert not (tmp_path / "ran").exists(), "nothing of it is run"
    homes = {name: str(tmp_path / "other" / name) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")}
    other = {**homes, "OPFORGE_CACHE_DIR": str(tmp_path / "other" / "cache"), "PATH": str(tmp_path)}
    run("key", "trust", public, "--for", "op:plain", **other)
    other["OPFORGE_REMOTES"] = f"file://{disk}"
    assert child_processes.run_python(LOAD, env={**declared, **other}) == f"1 file://{disk}\n"
    assert (tmp_path / "ran").exists()


def test_without_a_key_nothing_is_written(built, disk):
    done = child_processes.run_command("mirror", "cache:", f"file://{disk}")
    assert done.returncode == 1 and done.stderr.startswith("error: No signing key is configured: expected a key")
    assert os.listdir(disk) == []
