"""The installed torch and Python, found without importing torch."""

from __future__ import annotations

import sys
import sysconfig

from opforge.builders.spec import installed_torch


def test_the_folder_of_pythons_headers_is_the_one_that_sysconfig_names(tmp_path, monkeypatch):
    installed_torch.python_include.cache_clear()
    try:
        assert installed_torch.python_include() == sysconfig.get_path("include")
        installed_torch.python_include.cache_clear()
        monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
        monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / f"its-{name}"))
        assert installed_torch.python_include() == str(tmp_path / "its-include"), "no header is in the usual folder"
    finally:
        installed_torch.python_include.cache_clear()
