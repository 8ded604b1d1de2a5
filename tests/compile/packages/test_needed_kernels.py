"""A package of the hub that asks for another one while it is imported."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from support.kernels.projects import hub_project

import opforge
from opforge.errors import KernelDependencyError, KernelLoadError, KernelNotFoundError
from opforge.packages.load import get_kernel as loading
from opforge.packages.load import needed
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading

ASKS = "from kernels import get_kernel_dep\nbase = get_kernel_dep('Acme/Base')\nVALUE = base.VALUE + 1\n"


def packed(folder, name, text, depends=""):
    hub_project(folder, f"Acme/{name.title()}", text, depends)
    pack(reading.read(str(folder)), str(folder), Options(tried=False))
    return folder


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Names the checkouts of packages."""

    def name_them(**folders):
        value = ":".join(f"acme/{name}={folder}" for name, folder in folders.items())
        monkeypatch.setenv("OPFORGE_KERNELS", value)
        loading.reset()

    return name_them


@pytest.mark.parametrize("has_client", [True, False], ids=["with the hub's loader", "without it"])
@pytest.mark.parametrize("stated", ["version = 1", 'revision = "main"'])
def test_it_gets_what_it_needs(tmp_path, named, monkeypatch, has_client, stated):
    if has_client and importlib.util.find_spec("kernels") is None:
        pytest.skip("not run: the hub's loader is missing: pip install kernels==0.17.2")
    if not has_client:
        monkeypatch.delitem(sys.modules, "kernels", raising=False)
        find = importlib.util.find_spec
        monkeypatch.setattr(needed.importlib.util, "find_spec", lambda name: None if name == "kernels" else find(name))
    named(
        top=packed(tmp_path / "top", "top", ASKS, f'{{ repo-id = "Acme/Base", {stated} }}'),
        base=packed(tmp_path / "base", "base", "VALUE = 6\n"),
    )
    before = sys.modules.get("kernels", ...)
    assert opforge.get_kernel("Acme/Top", 1).VALUE == 7
    assert has_client or sys.modules.get("kernels", ...) is before


def test_a_package_that_is_not_there_is_named(tmp_path, named):
    named(top=packed(tmp_path / "top", "top", ASKS, '{ repo-id = "Acme/Base", version = 1 }'))
    with pytest.raises((KernelLoadError, KernelNotFoundError), match="acme/base 1 was not found"):
        opforge.get_kernel("acme/top", 1)


def test_a_revision_that_is_not_installed_is_named(tmp_path, named):
    named(top=packed(tmp_path / "top", "top", ASKS, '{ repo-id = "Acme/Base", revision = "main" }'))
    with pytest.raises((KernelLoadError, KernelNotFoundError), match="acme/base of the revision main was not found"):
        opforge.get_kernel("acme/top", 1)


def test_packages_that_need_each_other_are_an_error(tmp_path, named):
    asks = ASKS.replace("Acme/Base", "Acme/Top")
    named(
        top=packed(tmp_path / "top", "top", ASKS, '{ repo-id = "Acme/Base", version = 1 }'),
        base=packed(tmp_path / "base", "base", asks, '{ repo-id = "Acme/Top", version = 1 }'),
    )
    with pytest.raises(KernelDependencyError, match=r"acme/top needs acme/base needs acme/top"):
        opforge.get_kernel("acme/top", 1)
