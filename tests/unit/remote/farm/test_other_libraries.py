"""Executors of other libraries, each for real on this machine: submitit, executorlib, mpi4py, Ray.

None is a dependency of the tests: pip install submitit executorlib mpi4py ray.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest
from support import child_processes
from support.remote import farm as farms

pytestmark = [pytest.mark.compile, pytest.mark.timeout(200)]
LIBRARIES = {
    "submitit": """
import submitit
on = submitit.AutoExecutor(folder="jobs", cluster="local")
on.update_parameters(timeout_min=5)
""",
    "executorlib": """
from executorlib import SingleNodeExecutor
on = SingleNodeExecutor(max_workers=2, block_allocation=True)
""",
    "mpi4py": """
from mpi4py.futures import MPIPoolExecutor
on = MPIPoolExecutor(max_workers=2)
""",
    "ray": """
import ray, types
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
call = ray.remote(lambda function, text: function(text))
on = types.SimpleNamespace(submit=lambda function, text: call.remote(function, text).future())
""",
}
"""Library -> code that makes an executor `on`. Ray has no class of executors: its futures are those of Python."""
BUILD = """
import json, os, sys
if __name__ == "__main__":
    {library}
    import library_ops
    from opforge.remote.farm import build_on
    builders = [library_ops.AlphaBuilder(), library_ops.BetaBuilder()]
    for turn in range(2):
        print(json.dumps([outcome._asdict() for outcome in build_on(on, builders)]), flush=True)
    if hasattr(on, "shutdown"):
        on.shutdown()
"""


@pytest.mark.parametrize("name", LIBRARIES)
def test_its_workers_build_and_publish(name, remote, tmp_path):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}: pip install {name}")
    command = [sys.executable, "job.py"]
    if name == "mpi4py":
        if shutil.which("mpirun.openmpi") is None:
            pytest.skip("needs apt install openmpi-bin")
        command = ["mpirun.openmpi", "--oversubscribe", "-n", "3", sys.executable, "-m", "mpi4py.futures", "job.py"]
    farms.ops_module(tmp_path, ["alpha", "beta"], f"// {name}\n", "library_ops")
    (tmp_path / "job.py").write_text(BUILD.format(library=LIBRARIES[name].replace("\n", "\n    ")))
    env = child_processes.environment(
        **remote.asking,
        OPFORGE_CACHE_DIR=str(tmp_path / "cache"),
        XDG_CACHE_HOME=str(tmp_path / "caches"),
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        RAY_AUTH_MODE="disabled",
    )
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert [outcome["state"] for outcome in first] == ["built"] * 2, first
    assert [outcome["state"] for outcome in second] == ["prebuilt"] * 2, second
    assert not remote.claims()
