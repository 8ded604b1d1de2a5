"""What get_kernel remembers of a search: it is used while nothing has changed, and never hides a change."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from support import child_processes
from support.kernels.projects import python_project
from support.processes import forked_python
from support.text_files import write

import opforge
from opforge.errors import KernelIncompatibleError, KernelNotFoundError
from opforge.foundation import opforge_version, remembered_values
from opforge.packages.form import version
from opforge.packages.installed import add, remove
from opforge.packages.installed.layout import Root
from opforge.packages.load import get_kernel as loading
from opforge.packages.load import search
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading

pytestmark = [pytest.mark.compile, pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux")]


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """Installs acme/plain in some version; a call is remembered although it was installed just before."""
    for name, folder in (("XDG_DATA_HOME", "data"), ("XDG_CACHE_HOME", "cache"), ("OPFORGE_KERNEL_PATH", "kernels")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setattr(remembered_values, "RACY_NS", -(10**12))
    root = Root(str(tmp_path / "kernels"), "folder")

    def install(number="1", **more):
        folder = python_project(tmp_path / f"project-{number}", "acme/plain", number, f"VALUE = '{number}'\n")
        if more:
            with open(os.path.join(folder, "kernel.toml"), "a") as file:
                file.writelines(f"{name.replace('_', '-')} = {value}\n" for name, value in more.items())
        pack(reading.read(folder), folder, Options(tried=False))
        return add.from_folders(root, "acme/plain", [os.path.join(folder, "build", "torch-universal")])

    install.root = root
    loading.reset()
    yield install
    loading.reset()


def loaded(name="acme/plain", **more):
    """Returns the version that a new process would get."""
    loading.reset()
    return opforge.get_kernel(name, 1, **more).VALUE


def remembered(monkeypatch):
    """Returns whether a call is answered without a search."""

    def refuse(*arguments, **more):
        raise AssertionError("it was searched")

    with monkeypatch.context() as patch:
        patch.setattr(search, "load", refuse)
        try:
            return bool(loaded())
        except AssertionError:
            return False


def test_the_second_process_does_not_search(kernels, monkeypatch):
    kernels()
    assert not remembered(monkeypatch)
    assert loaded() == "1"
    assert remembered(monkeypatch)


def test_a_newer_release_is_taken(kernels, monkeypatch):
    kernels()
    loaded()
    loaded("Acme/Plain")
    kernels("1.2")
    assert not remembered(monkeypatch)
    assert loaded() == loaded("Acme/Plain") == "1.2"
    remove.remove(kernels.root, "acme/plain", version.parse_range("1.2"))
    assert loaded() == "1"


def test_what_a_better_one_lacks_may_be_there_next_time(kernels, monkeypatch):
    kernels()
    kernels("1.2", python_depends='["opforge-not-there-yet"]')
    assert loaded() == "1" and not remembered(monkeypatch)


def test_one_that_appears_in_a_folder_that_comes_before_is_taken(kernels, monkeypatch, tmp_path):
    kernels()
    first = str(tmp_path / "first")
    monkeypatch.setenv("OPFORGE_KERNEL_PATH", f"{first}:{kernels.root.path}")
    assert loaded() == "1" and remembered(monkeypatch)
    kernels.root = Root(first, "folder")
    folder = python_project(tmp_path / "other", "acme/plain", "1.1", "VALUE = 'first'\n")
    pack(reading.read(folder), folder, Options(tried=False))
    add.from_folders(kernels.root, "acme/plain", [os.path.join(folder, "build", "torch-universal")])
    assert loaded() == "first"


def test_what_was_removed_is_not_there(kernels):
    kernels()
    loaded()
    remove.remove(kernels.root, "acme/plain", version.ANY)
    with pytest.raises(KernelNotFoundError):
        loaded()


def test_a_file_that_was_changed_is_not_loaded(kernels):
    (part,) = kernels().variants
    loaded()
    path = os.path.join(part.folder, "__init__.py")
    os.chmod(path, 0o644)
    write(part.folder, "__init__.py", "VALUE = 'x'\n")
    with pytest.raises(KernelIncompatibleError, match="it was changed after it was installed"):
        loaded()


def test_a_folder_that_others_can_write_is_refused(kernels):
    kernels()
    loaded()
    os.chmod(kernels.root.path, 0o777)
    with pytest.raises(KernelIncompatibleError, match="can be written by everybody"):
        loaded()


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (torch, "__version__", "2.99.0"),
        (loading.machine, "level_here", lambda: "another"),
        (loading.machine, "libstdcxx", lambda: "3.4.99"),
        (opforge_version, "VERSION", "9"),
    ],
)
def test_another_machine_torch_or_opforge_searches(kernels, monkeypatch, owner, name, value):
    kernels()
    loaded()
    monkeypatch.setattr(owner, name, value)
    assert not remembered(monkeypatch)


def test_what_needs_other_packages_is_searched_each_time(kernels, monkeypatch):
    kernels(python_depends='["packaging"]')
    assert loaded() == "1"
    assert not remembered(monkeypatch)


def test_what_has_just_been_installed_is_not_remembered(kernels, monkeypatch):
    monkeypatch.setattr(remembered_values, "RACY_NS", 10**12)
    kernels()
    assert loaded() == "1"
    assert not remembered(monkeypatch)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', "null", '{"format": 1, "key": 1, "stamps": 3}'])
def test_damaged_memory_is_not_used(kernels, monkeypatch, tmp_path, text):
    kernels()
    loaded()
    for parent, _folders, names in os.walk(tmp_path / "cache"):
        for name in names:
            write(parent, name, text)
    assert not remembered(monkeypatch)
    assert loaded() == "1"


CHILD = """
import torch, opforge, sys
print(opforge.get_kernel("acme/plain", 1).VALUE)
print(*sorted(name[len("opforge."):] for name in sys.modules if name.startswith("opforge.")))
"""
MODULES = (
    "fast_path fast_path.machine foundation foundation.environment foundation.file_owners foundation.fork_lock"
    " foundation.formats foundation.opforge_version foundation.remembered_values foundation.settings"
    " foundation.settings.kinds foundation.settings.table packages packages.load packages.load.get_kernel"
    " packages.load.tree"
)


def test_a_process_that_remembers_imports_few_modules(kernels):
    kernels()
    outputs = []
    for seconds in ("0", "1"):
        code = (
            f"from opforge.foundation import remembered_values\nremembered_values.RACY_NS = -(10**12)\n{CHILD}"
            if seconds == "0"
            else CHILD
        )
        done = subprocess.run(
            [forked_python.python(), "-c", code], env=child_processes.environment(), capture_output=True, text=True
        )
        outputs.append((done.stdout + done.stderr).splitlines())
    assert outputs[1] == ["1", MODULES], outputs


def test_without_packages_nothing_of_them_is_imported(tmp_path):
    folders = {name: str(tmp_path / name) for name in ("XDG_DATA_HOME", "OPFORGE_KERNEL_PATH")}
    code = "import torch, opforge, sys; print([name for name in sys.modules if name.startswith('opforge.packages')])"
    assert child_processes.run_python(code, env=folders) == "[]\n"


def test_a_copied_environment_is_hashed_once(kernels, monkeypatch, tmp_path):
    """An image, for one: every stamp differs from the receipt."""
    kernels()
    copy = str(tmp_path / "copy")
    subprocess.run(["cp", "-r", kernels.root.path, copy], check=True)
    monkeypatch.setenv("OPFORGE_KERNEL_PATH", copy)
    assert not remembered(monkeypatch)
    assert loaded() == "1"
    assert remembered(monkeypatch)


@pytest.fixture
def checkout(kernels, monkeypatch, tmp_path):
    """The folder of a packed variant of acme/plain, which OPFORGE_KERNELS names."""
    folder = python_project(tmp_path / "checkout", "acme/plain", "1", "VALUE = 'checkout'\n")
    pack(reading.read(folder), folder, Options(tried=False))
    monkeypatch.setenv("OPFORGE_KERNELS", f"acme/plain={folder}")
    return os.path.join(folder, "build", "torch-universal")


def test_a_checkout_is_hashed_once(checkout, monkeypatch):
    assert not remembered(monkeypatch)
    assert loaded() == "checkout"
    assert remembered(monkeypatch)
    monkeypatch.delenv("OPFORGE_KERNELS")
    assert not remembered(monkeypatch)


def test_a_checkout_that_was_changed_is_refused(checkout):
    loaded()
    write(checkout, "__init__.py", "VALUE = 'changed'\n")
    with pytest.raises(KernelIncompatibleError, match="it does not match its digests"):
        loaded()


def test_another_variant_in_a_checkout_is_judged(checkout, monkeypatch):
    other = os.path.join(os.path.dirname(checkout), "other")
    os.mkdir(other)
    assert loaded() == "checkout" and remembered(monkeypatch)
    write(other, "metadata.json", "{}")
    assert not remembered(monkeypatch)


def test_what_a_link_in_a_checkout_leads_to_is_watched_too(checkout, monkeypatch, tmp_path):
    os.rename(os.path.join(checkout, "__init__.py"), tmp_path / "elsewhere.py")
    os.symlink(tmp_path / "elsewhere.py", tmp_path / "step")
    os.symlink(tmp_path / "step", os.path.join(checkout, "__init__.py"))
    assert loaded() == "checkout" and remembered(monkeypatch)
    write(tmp_path, "elsewhere.py", "VALUE = 'changed'\n")
    with pytest.raises(KernelIncompatibleError, match="it does not match its digests"):
        loaded()


def test_a_checkout_is_one_module_whether_it_is_remembered_or_searched(checkout, monkeypatch):
    loaded()
    loading.reset()
    module = opforge.get_kernel("acme/plain", 1)
    assert opforge.get_kernel("acme/plain", 1, variant="torch-universal") is module


def searched(monkeypatch, call):
    """Returns what a new process would get, and whether it searches."""
    done = []
    loading.reset()
    with monkeypatch.context() as patch:
        real = search.local
        patch.setattr(search, "local", lambda *arguments, **named: done.append(1) or real(*arguments, **named))
        return call().VALUE, bool(done)


def test_a_folder_is_searched_once_and_again_when_it_has_changed(checkout, monkeypatch):
    def call():
        return opforge.get_local_kernel(os.path.dirname(checkout))

    assert searched(monkeypatch, call) == ("checkout", True)
    assert searched(monkeypatch, call) == ("checkout", False)
    write(checkout, "__init__.py", "VALUE = 'changed'\n")
    with pytest.raises(KernelIncompatibleError, match="it does not match its digests"):
        searched(monkeypatch, call)


@pytest.mark.parametrize(("built_for", "is_remembered"), [(None, True), ("13.0", False)])
def test_variants_for_devices_that_torch_is_not_built_for_are_no_reason_to_search(
    kernels, monkeypatch, tmp_path, built_for, is_remembered
):
    folder = python_project(tmp_path / "both", "acme/plain", "1", "VALUE = 'both'\n")
    with open(os.path.join(folder, "kernel.toml"), "a") as file:
        file.write('backends = ["cpu", "cuda"]\n')
    pack(reading.read(folder), folder, Options(tried=False))
    monkeypatch.setattr(torch.version, "cuda", built_for)

    def call():
        return opforge.get_local_kernel(folder)

    assert searched(monkeypatch, call) == ("both", True)
    assert searched(monkeypatch, call) == ("both", not is_remembered)


@pytest.fixture
def hub_cache(checkout, monkeypatch, tmp_path):
    """A download cache with acme/plain as its loader fills it: the files of the state of a branch lead to blobs."""
    monkeypatch.delenv("OPFORGE_KERNELS")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    top = tmp_path / "hub" / "kernels--acme--plain"
    states = {"a" * 40: "VALUE = 'checkout'\n", "b" * 40: "VALUE = 'newer'\n"}
    for commit, text in states.items():
        folder = python_project(tmp_path / commit, "acme/plain", "1", text)
        pack(reading.read(folder), folder, Options(tried=False))
        variant = os.path.join(folder, "build", "torch-universal")
        for name in os.listdir(variant):
            with open(os.path.join(variant, name)) as file:
                blob = write(top, f"blobs/{commit}-{name}", file.read())
            place = top / "snapshots" / commit / "build" / "torch-universal"
            os.makedirs(place, exist_ok=True)
            os.symlink(os.path.relpath(blob, place), place / name)
    write(top, "refs/v1", "a" * 40)
    return top


@pytest.mark.parametrize("change", ["the branch", "a blob", "a redirect"])
def test_a_state_in_the_hubs_cache_is_searched_once_and_again_when_it_has_changed(hub_cache, monkeypatch, change):
    def call():
        return opforge.get_kernel("acme/plain", 1, hub=True)

    assert searched(monkeypatch, call) == ("checkout", True)
    assert searched(monkeypatch, call) == ("checkout", False)
    if change == "the branch":
        write(hub_cache, "refs/v1", "b" * 40)
        assert searched(monkeypatch, call) == ("newer", True)
    elif change == "a blob":
        write(hub_cache, f"blobs/{'a' * 40}-__init__.py", "VALUE = 'changed'\n")
        with pytest.raises(KernelIncompatibleError, match="it does not match its digests"):
            searched(monkeypatch, call)
    else:
        text = f'kind = "redirect"\ndestination = "acme/plain"\nrevision = "{"b" * 40}"\n'
        write(hub_cache, f"snapshots/{'a' * 40}/kernel-status.toml", text)
        assert searched(monkeypatch, call) == ("newer", True)
