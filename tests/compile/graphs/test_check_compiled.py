"""A torch that opforge does not know: tried by `opforge check compiled`, and then used, or refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support import child_processes, text_files
from support.processes import forked_python

from opforge.check import compiled
from opforge.torch_internals import inductor

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.compile, pytest.mark.timeout(900)]
SCOPE = "import opforge\nwith opforge.compiled('x') as graphs: pass\nprint(graphs.problem)"


class UnknownTorch:
    """The installed torch under another version."""

    def __init__(self, folder):
        self.folder = folder / "site" / "torch"
        self.folder.mkdir(parents=True)
        for name in os.listdir(os.path.dirname(torch.__file__)):
            (self.folder / name).symlink_to(os.path.join(os.path.dirname(torch.__file__), name))
        (self.folder / "version.py").unlink()
        text_files.write(self.folder, "version.py", "__version__ = '2.99.0'\ncuda = hip = xpu = git_version = None\n")
        self.env = {
            "PYTHONPATH": f"{self.folder.parent}:{child_processes.environment()['PYTHONPATH']}",
            "OPFORGE_CACHE_DIR": str(folder / "store"),
            "XDG_CACHE_HOME": str(folder / "caches"),
        }

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


ANOTHER = """
import inspect
import torch._inductor.compile_fx as module
text = inspect.getsource(module).replace("fx_codegen_and_compile(", "_lower(")
text += "\\nfx_codegen_and_compile = _lower\\n"
exec(compile(text, module.__file__, "exec"), vars(module))
from opforge.check import graph_steps
graph_steps.main()
"""
"""A step with a torch in which another function lowers graphs; the one that is wrapped is there still."""


def test_one_that_no_longer_calls_what_is_wrapped_does_not_pass(tmp_path, monkeypatch):
    python = os.path.join(forked_python.commands(compiling=True), "python")
    step = text_files.write(tmp_path, "step.py", ANOTHER)
    # The command line is: -P -m opforge.check.graph_steps STEP VERSION
    script = text_files.write_script(tmp_path, "python", f'shift 3\nexec {python} {step} "$@"')
    remembered = []
    monkeypatch.setattr(inductor, "remember", lambda *of: remembered.append(of))
    monkeypatch.setattr(sys, "executable", script)
    _version, (first, *others) = compiled.run(250, lambda _outcome: None)
    assert first.state == "failed"
    assert "guarded: its graph was found, and not compiled, expected the other" in first.reason
    assert [step.state for step in others] == ["skipped", "skipped"]
    assert not remembered, "what has failed is not remembered"
