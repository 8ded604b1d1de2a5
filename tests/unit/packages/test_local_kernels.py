"""`get_local_kernel`: a package in a folder, in each form that the hub's loader knows."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from support.kernels.projects import python_project
from support.text_files import write

import opforge
from opforge.errors import KernelFormatError, KernelIncompatibleError
from opforge.packages.form import digests
from opforge.packages.load import get_kernel as loading
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading

LABEL = "torch-universal"


@pytest.fixture
def folder(tmp_path):
    python_project(tmp_path / "plain", text="VALUE = 5\n")
    pack(reading.read(str(tmp_path / "plain")), str(tmp_path / "plain"), Options(tried=False))
    loading.reset()
    return tmp_path / "plain"


def stated(folder, **changes):
    """Changes the metadata of a variant that opforge has packed."""
    path = folder / "build" / LABEL / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("path", ["", "build", f"build/{LABEL}"])
def test_each_form_of_a_folder_is_read(folder, path):
    module = opforge.get_local_kernel(folder / path)
    assert module.VALUE == 5 and opforge.get_local_kernel(str(folder / path)) is module


@pytest.mark.parametrize("is_named", [False, True])
def test_one_that_was_packed_again_in_a_running_process_is_another_module(folder, is_named, monkeypatch):
    def load():
        return opforge.get_kernel("acme/plain") if is_named else opforge.get_local_kernel(folder)

    monkeypatch.setenv("OPFORGE_KERNELS", f"acme/plain={folder}")
    first = load()
    os.utime(folder / "build" / LABEL / "__init__.py", (1, 1))
    assert load() is first and first.VALUE == 5
    python_project(folder, text="VALUE = 6\n")
    pack(reading.read(str(folder)), str(folder), Options(tried=False))
    assert (load().VALUE, first.VALUE) == (6, 5) and load() is load()


def test_the_packages_name_is_taken_as_the_hubs_loader_takes_it(folder):
    module = opforge.get_local_kernel(folder)
    assert opforge.get_local_kernel(folder, "plain") is module
    assert opforge.get_local_kernel(folder, package_name="plain") is module
    assert opforge.get_local_kernel(folder, LABEL, package_name="plain") is module
    for arguments in ({"package_name": "plian"}, {"variant": LABEL, "package_name": "plian"}):
        with pytest.raises(KernelIncompatibleError, match=r"its package is .*plain, not plian"):
            opforge.get_local_kernel(folder, **arguments)
    with pytest.raises(KernelIncompatibleError, match="plian"):
        opforge.get_local_kernel(folder, "plian")


def test_the_folder_that_older_builders_wrote_is_read(folder):
    variant = folder / "build" / LABEL
    inner = variant / "plain"
    inner.mkdir()
    for name in ("__init__.py", "_ops.py"):
        shutil.move(variant / name, inner / name)
    stated(folder, digest=None)
    assert opforge.get_local_kernel(folder).VALUE == 5


def test_a_file_that_differs_from_its_digest_is_not_imported(folder):
    write(folder / "build" / LABEL, "__init__.py", "VALUE = 6\n")
    with pytest.raises(KernelIncompatibleError, match=r"File hash mismatch for __init__\.py"):
        opforge.get_local_kernel(folder)


def test_a_variant_that_is_there_twice_is_an_error(folder):
    shutil.copytree(folder / "build" / LABEL, folder / LABEL)
    with pytest.raises(KernelFormatError, match=rf"are both the variant {LABEL}\. Expected each variant once"):
        opforge.get_local_kernel(folder)


def test_an_id_that_other_content_has_is_an_error(folder, tmp_path):
    """Its ops would be the other's: torch knows them by the id."""
    first = opforge.get_local_kernel(folder)
    again, other = shutil.copytree(folder, tmp_path / "again"), shutil.copytree(folder, tmp_path / "other")
    assert opforge.get_local_kernel(again).VALUE == 5
    write(other / "build" / LABEL, "__init__.py", "VALUE = 6\n")
    stated(other, digest={"algorithm": "sha256", "files": digests.of_folder(other / "build" / LABEL)})
    text = r"its id \w+ is that of .*, which is loaded and has other files: two builds must not share an id"
    with pytest.raises(KernelIncompatibleError, match=text):
        opforge.get_local_kernel(other)
    assert opforge.get_local_kernel(folder) is first


@pytest.mark.parametrize(("minver", "is_loaded"), [("0.17.2", True), ("0.9.99", True), ("0.18.0", False)])
def test_a_variant_for_a_newer_loader_is_not_loaded(folder, minver, is_loaded):
    stated(folder, **{"kernels-minver": minver})
    if is_loaded:
        assert opforge.get_local_kernel(folder).VALUE == 5
        return
    with pytest.raises(KernelIncompatibleError, match=r"it needs the hub's loader 0\.18\.0 or newer, and this opforge"):
        opforge.get_local_kernel(folder)


def test_a_label_is_taken_or_the_others_say_that_it_is_requested(folder):
    assert opforge.get_local_kernel(folder, LABEL).VALUE == 5
    with pytest.raises(KernelIncompatibleError, match="torch-cuda is requested"):
        opforge.get_local_kernel(folder, "torch-cuda")


def test_a_folder_without_a_variant_says_so(tmp_path):
    with pytest.raises(KernelIncompatibleError, match="which each variant has: run opforge pack there, or download"):
        opforge.get_local_kernel(tmp_path)
    assert not os.listdir(tmp_path)
