"""For every test: a cache of the run's own, and a driver to run on."""

from __future__ import annotations

import os

import pytest
from opforge_opencl.devices import driver_problem


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """An empty cache for this run, unless the environment names one."""
    if "OPFORGE_CACHE_DIR" not in os.environ:
        os.environ["OPFORGE_CACHE_DIR"] = str(tmp_path_factory.mktemp("opforge"))


@pytest.fixture(scope="session")
def accelerator():
    """The accelerator, selected by its name for the rest of the session."""
    if problem := driver_problem():
        pytest.skip(f"{problem}; apt install pocl-opencl-icd")
    if not os.path.exists("/usr/include/CL/cl.h"):
        pytest.skip("there are no OpenCL headers: apt install ocl-icd-opencl-dev")
    from opforge import get_accelerator, set_accelerator

    set_accelerator("opencl")
    return get_accelerator()
