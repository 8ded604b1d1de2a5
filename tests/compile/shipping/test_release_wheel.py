"""opforge's own wheel with built ops, as a release has it: loaded without a compiler and with nothing writable."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from support.paths import CHECKOUT

from opforge.builders.cpu import BUILDERS

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for a level of x86-64"),
    pytest.mark.long("compiles all ops by zig, for minutes"),
]
OPS = sorted({*BUILDERS} - {"CCLCommBuilder"})
"""The ops that need nothing but torch: that one is built for an installation of oneCCL."""
SANDBOX = (
    *("unshare", "-Um", "--map-user=1000", "--map-group=1000", "--keep-caps"),
    *("sh", "-c", 'mount -o remount,bind,ro / && exec setpriv --ambient-caps=-all --inh-caps=-all "$@"', "sh"),
)
"""Runs a command as user 1000 on a file system that cannot be written."""
LOAD_EACH = """
import json, os, sys
from opforge import get_accelerator
assert os.getuid() == 1000
try:
    open(os.path.join(sys.argv[1], "file"), "w")
except OSError as error:
    assert error.strerror == "Read-only file system", error
else:
    raise AssertionError("the file system can be written")
print(json.dumps({name: get_accelerator().create_op_builder(name).load().__entry__.origin for name in sys.argv[2:]}))
"""


def test_every_op_of_the_wheel_loads_as_user_1000_without_home_compiler_or_a_writable_file(tmp_path):
    if subprocess.run([*SANDBOX, "/bin/true"], capture_output=True).returncode:
        pytest.skip("this system has no user namespaces, or an older unshare or setpriv")
    env = {name: value for name, value in os.environ.items() if not name.startswith("OPFORGE_")}
    env |= {"OPFORGE_BUILD_OPS": "1", "OPFORGE_BUILD_TARGETS": "cpu:x86-64-v2", "OPFORGE_BUILD_PORTABLE": "1"}
    sdist = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", str(tmp_path), CHECKOUT]
    subprocess.run(sdist, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-compile"]
    pip += ["--target", str(tmp_path / "site"), str(archive)]
    store = {"OPFORGE_CACHE_DIR": str(tmp_path / "store")}
    installed = subprocess.run(pip, env=env | store, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    (tmp_path / "site" / "torch.pth").write_text(os.path.dirname(os.path.dirname(torch.__file__)))
    site = str(tmp_path / "site")
    code = f"import site; site.addsitedir({site!r})\n{LOAD_EACH}"
    bare = {"PATH": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*SANDBOX, "/usr/bin/env", "-i", *map("=".join, bare.items()), sys.executable, "-I", "-S", "-c", code]
    process = subprocess.run([*command, str(tmp_path), *OPS], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    layer = os.path.join(site, "opforge", "_opforge_ops")
    assert json.loads(process.stdout) == dict.fromkeys(OPS, layer)
