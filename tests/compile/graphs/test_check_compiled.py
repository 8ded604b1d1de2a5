"""A torch that opforge does not know: tried by `opforge check compiled`, and then used, or refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support import child_processes, text_files

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.compile, pytest.mark.timeout(900)]
SCOPE = "import opforge\nwith opforge.compiled('x') as graphs: pass\nprint(graphs.problem)"

ASKED = "from opforge.torch_internals import inductor\nprint(inductor.version_problem('2.99.0'))"
"""What a scope asks before it does anything; torch is not imported for it."""


class UnknownTorch:
    """The installed torch under another version, with files that are changed."""

    def __init__(self, folder, **changed):
        self.folder = folder / "site" / "torch"
        self.folder.mkdir(parents=True)
        self._link(os.path.dirname(torch.__file__), "", ("version.py", *changed))
        text_files.write(self.folder, "version.py", "__version__ = '2.99.0'\ncuda = hip = xpu = git_version = None\n")
        self.env = {
            "PYTHONPATH": f"{self.folder.parent}:{child_processes.environment()['PYTHONPATH']}",
            "OPFORGE_CACHE_DIR": str(folder / "store"),
            "XDG_CACHE_HOME": str(folder / "caches"),
        }
        for path, change in changed.items():
            with open(os.path.join(os.path.dirname(torch.__file__), path)) as file:
                text_files.write(self.folder, path, change(file.read()))

    def _link(self, source, below, changed):
        """Links what lies in a folder of torch, but makes the folders of changed files."""
        for name in os.listdir(os.path.join(source, below)):
            path = os.path.join(below, name)
            if any(each.startswith(path + "/") for each in changed):
                (self.folder / path).mkdir()
                self._link(source, path, changed)
            elif path not in changed:
                (self.folder / path).symlink_to(os.path.join(source, path))

    def check(self):
        """Runs the command; returns its exit status and what it printed."""
        command = [sys.executable, "-m", "opforge", "check", "compiled", "--json"]
        env = child_processes.environment(**self.env)
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout)

    def problem(self):
        """Returns why a scope does nothing."""
        return child_processes.run_python(SCOPE, env=self.env).strip()


@pytest.mark.long("six processes that import another torch; unit/check has what follows from what has passed")
def test_one_that_passes_is_used_from_then_on(tmp_path):
    unknown = UnknownTorch(tmp_path)
    assert unknown.problem().endswith("or another that has passed `opforge check compiled`")
    status, printed = unknown.check()
    assert (status, printed["torch"], printed["known"], printed["passed"]) == (0, "2.99.0", False, True), printed
    assert unknown.problem() == ""
    text_files.write(unknown.folder, "version.py", "__version__ = '2.99.0'\ncuda = hip = xpu = git_version = None\n#\n")
    assert unknown.problem()  # another build of the same version


def test_one_that_no_longer_calls_what_is_wrapped_does_not_pass(tmp_path):
    def renamed(text):
        """Returns a file in which another function lowers graphs; the one that is wrapped is there still."""
        return text.replace("fx_codegen_and_compile(", "_lower(") + "\nfx_codegen_and_compile = _lower\n"

    unknown = UnknownTorch(tmp_path, **{"_inductor/compile_fx.py": renamed})
    status, printed = unknown.check()
    first, *others = printed["steps"]
    assert (status, printed["passed"], first["state"]) == (1, False, "failed")
    assert "guarded: its graph was found, and not compiled, expected the other" in first["reason"]
    assert [step["state"] for step in others] == ["skipped", "skipped"]
    assert child_processes.run_python(ASKED, env=unknown.env).strip(), "what has failed is not remembered"
