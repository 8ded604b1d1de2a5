"""A registry for tests of packages."""

from __future__ import annotations

import pytest
from support.kernels.registries import Registry


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A registry in a folder, with a trusted key, and a folder to install into."""
    pytest.importorskip("cryptography", reason="needs cryptography: pip install opforge[sign]")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("OPFORGE_KERNEL_PATH", str(tmp_path / "installed"))
    from opforge.packages.load import get_kernel

    get_kernel.reset()
    yield Registry(tmp_path)
    get_kernel.reset()
