"""For every test: a cache of its own, and a driver to run on."""

from __future__ import annotations

import os

import pytest
from opforge_opencl.devices import missing


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """An empty cache for this run, unless the caller chose one."""
    if "OPFORGE_CACHE_DIR" not in os.environ:
        os.environ["OPFORGE_CACHE_DIR"] = str(tmp_path_factory.mktemp("opforge"))


@pytest.fixture(scope="session")
def accelerator():
    """The accelerator, chosen by name; it stays in use."""
    if missing():
        pytest.skip(f"{missing()}; apt install pocl-opencl-icd")
    if not os.path.exists("/usr/include/CL/cl.h"):
        pytest.skip("there are no OpenCL headers: apt install ocl-icd-opencl-dev")
    from opforge import get_accelerator, set_accelerator

    set_accelerator("opencl")
    return get_accelerator()
