"""These tests need an accelerator; without it they are skipped, with what is missing."""

from __future__ import annotations

import importlib
import os

import pytest

LAYERS = os.environ.get("OPFORGE_CACHE_LAYERS")
HERE = os.path.dirname(os.path.abspath(__file__))


def pytest_configure(config):
    """An unknown torch may warn of what it likes: where these tests alone are asked for, not even an import fails."""
    asked = [os.path.abspath(str(one).partition("::")[0]) for one in config.args]
    if all(one == HERE or one.startswith(HERE + os.sep) for one in asked):
        config.addinivalue_line("filterwarnings", "default")


def pytest_collection_modifyitems(items):
    for item in items:
        if "/device/" in item.path.as_posix():
            item.add_marker(pytest.mark.device)
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(autouse=True)
def brought_along(own_store, monkeypatch):
    """Ops that were built elsewhere: the one setting of the machine's that these tests keep. Gives the variable."""
    if LAYERS:
        monkeypatch.setenv("OPFORGE_CACHE_LAYERS", LAYERS)
    return LAYERS


@pytest.fixture(scope="session")
def cuda_op():
    """Loads one of the CUDA ops by its builder's name, for the GPU that is here; skips where it cannot be had."""
    torch = pytest.importorskip("torch")
    from opforge.builders.cuda import BUILDERS
    from opforge.builders.toolchains import nvcc
    from opforge.errors import ToolchainNotFoundError

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU and a torch built for it: torch.cuda.is_available() is False")
    if not LAYERS:
        try:
            nvcc.find()
        except ToolchainNotFoundError as error:
            pytest.skip(f"needs built ops in OPFORGE_CACHE_LAYERS, or nvcc: {error}")
    major, minor = torch.cuda.get_device_capability()
    loaded = {}

    def load(name):
        if name not in loaded:
            module, _, attribute = BUILDERS[name].partition(":")
            loaded[name] = getattr(importlib.import_module(module), attribute)(target=f"cuda:sm_{major}{minor}").load()
        return loaded[name]

    return load
