"""These tests need an accelerator. Without it they are skipped, and the reason says what is missing."""

from __future__ import annotations

import importlib
import os

import pytest

LAYERS = os.environ.get("OPFORGE_CACHE_LAYERS")
HERE = os.path.dirname(os.path.abspath(__file__))


def pytest_configure(config):
    """Keeps warnings from being errors if only these tests are run: the machine's torch may warn at import."""
    paths = [os.path.abspath(str(argument).partition("::")[0]) for argument in config.args]
    if all(path == HERE or path.startswith(HERE + os.sep) for path in paths):
        config.addinivalue_line("filterwarnings", "default")


def pytest_collection_modifyitems(items):
    for item in items:
        if "/device/" in item.path.as_posix():
            item.add_marker(pytest.mark.device)
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(autouse=True)
def layers_of_machine(own_store, monkeypatch):
    """OPFORGE_CACHE_LAYERS, which may name ops built elsewhere: the only variable of the machine that is kept."""
    if LAYERS:
        monkeypatch.setenv("OPFORGE_CACHE_LAYERS", LAYERS)
    return LAYERS


@pytest.fixture(scope="session")
def cuda_op():
    """Loads a CUDA op by its builder's name, for the GPU of this machine; skips the test if there is none."""
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
