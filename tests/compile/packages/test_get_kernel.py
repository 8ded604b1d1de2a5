"""get_kernel with real libraries: from checkouts and installed, one module for a release, and every refusal."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading

import pytest
import torch
from support import child_processes
from support.kernels.projects import SOURCE, python_project
from support.text_files import write

import opforge
from opforge.errors import (
    KernelFormatError,
    KernelIncompatibleError,
    KernelLoadError,
    KernelNotFoundError,
    SettingError,
)
from opforge.packages.form import version
from opforge.packages.installed import add, remove
from opforge.packages.installed.layout import Root
from opforge.packages.load import get_kernel as loading
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading

pytestmark = [pytest.mark.compile, pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux")]
X = torch.tensor([1.0, -2.0])


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    loading.reset()
    yield
    loading.reset()


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_KERNEL_PATH", str(tmp_path / "kernels"))
    return Root(str(tmp_path / "kernels"), "folder")


def install(root, folder, name="acme/scale"):
    build = os.path.join(folder, "build")
    folders = [os.path.join(build, label) for label in os.listdir(build) if not label.endswith(".json")]
    return add.from_folders(root, name, folders)


def plain(tmp_path, text, number="1"):
    folder = python_project(tmp_path / f"plain-{number}", "acme/plain", number, text)
    pack(reading.read(folder), folder, Options(tried=False))
    return folder


def test_a_module_has_its_packages_version_also_in_another_process(tmp_path, root, monkeypatch):
    install(root, plain(tmp_path, "VALUE = 1\n", "2.3"), "acme/plain")
    assert opforge.get_kernel("acme/plain").__version__ == "2.3"
    text = "import torch, opforge; print(opforge.get_kernel('acme/plain').__version__)"
    for _ in range(2):  # the second one remembers
        assert child_processes.run_with_torch(text).strip() == "2.3"


def test_a_package_that_states_its_own_version_keeps_it(tmp_path, root):
    install(root, plain(tmp_path, "__version__ = 'own'\n", "4"), "acme/plain")
    assert opforge.get_kernel("acme/plain").__version__ == "own"


def test_the_error_for_a_version_that_is_not_here_names_those_that_are(tmp_path, root):
    install(root, plain(tmp_path, "VALUE = 1\n", "1"), "acme/plain")
    install(root, plain(tmp_path, "VALUE = 2\n", "1.2"), "acme/plain")
    with pytest.raises(
        KernelNotFoundError, match=r"Installed: 1\.2 in \S+, 1 in \S+\. Install it with: opforge install"
    ):
        opforge.get_kernel("acme/plain", version=2)


class TestCheckout:
    @pytest.mark.parametrize("below", ["", "build", "variant"])
    def test_a_folder_its_build_and_a_variant_itself_can_be_named(self, scale_releases, monkeypatch, below):
        folder = scale_releases["2.3"]
        if below:
            folder = os.path.join(folder, "build")
        if below == "variant":
            folder = os.path.join(folder, next(name for name in os.listdir(folder) if name != "checks.json"))
        monkeypatch.setenv("OPFORGE_KERNELS", f"acme/scale={folder}")
        assert opforge.get_kernel("acme/scale", 2).scale(X).tolist() == [2.0, -4.0]

    def test_another_version_is_refused(self, scale_releases, monkeypatch):
        monkeypatch.setenv("OPFORGE_KERNELS", f"acme/scale={scale_releases['2.3']}")
        with pytest.raises(KernelIncompatibleError, match=r"it is version 2\.3, and 4 is requested"):
            opforge.get_kernel("acme/scale", 4)

    def test_a_file_that_differs_from_its_digest_is_not_loaded(self, scale_releases, monkeypatch, tmp_path):
        folder = shutil.copytree(scale_releases["2.3"], tmp_path / "copy")
        label = next(name for name in os.listdir(folder / "build") if name != "checks.json")
        write(folder / "build" / label, "__init__.py", "raise SystemExit\n")
        monkeypatch.setenv("OPFORGE_KERNELS", f"acme/scale={folder}")
        with pytest.raises(KernelIncompatibleError, match=r"File hash mismatch for __init__.py.*pack it again"):
            opforge.get_kernel("acme/scale")

    def test_an_empty_folder_says_what_to_do(self, monkeypatch, tmp_path):
        monkeypatch.setenv("OPFORGE_KERNELS", f"acme/scale={tmp_path}")
        with pytest.raises(KernelIncompatibleError, match="which each variant has: run opforge pack there, or"):
            opforge.get_kernel("acme/scale")

    @pytest.mark.parametrize("value", ["acme/scale", "acme/scale="])
    def test_a_wrong_variable_is_refused(self, monkeypatch, value):
        monkeypatch.setenv("OPFORGE_KERNELS", value)
        with pytest.raises(SettingError, match="ORG/NAME=FOLDER"):
            opforge.get_kernel("acme/scale")

    def test_a_wrong_name_in_the_variable_is_refused(self, monkeypatch):
        monkeypatch.setenv("OPFORGE_KERNELS", "../x=/tmp")
        with pytest.raises(KernelFormatError, match=r"OPFORGE_KERNELS: '\.\./x' is not a name"):
            opforge.get_kernel("acme/scale")


class TestInstalled:
    def test_it_is_loaded_and_again_is_the_same_module(self, scale_releases, root):
        install(root, scale_releases["2.3"])
        module = opforge.get_kernel("acme/scale", version=2)
        assert module.scale(X).tolist() == [2.0, -4.0]
        assert opforge.get_kernel("acme/scale", version=2) is module
        loading.reset()
        assert opforge.get_kernel("acme/scale", "2.3") is module

    def test_two_versions_lie_side_by_side_and_share_nothing(self, scale_releases, root):
        install(root, scale_releases["2.3"])
        install(root, scale_releases["3"])
        two, three = opforge.get_kernel("acme/scale", 2), opforge.get_kernel("acme/scale", 3)
        assert (two.scale(X).tolist(), three.scale(X).tolist()) == ([2.0, -4.0], [3.0, -6.0])
        assert two.ops is not three.ops and two.__name__ != three.__name__
        assert opforge.get_kernel("acme/scale") is three, "the newest, if none is named"

    def test_installing_again_leaves_every_stamp_of_the_tree(self, scale_releases, root):
        """Otherwise processes that have read the earlier receipt hash the tree."""
        before, after = install(root, scale_releases["3"]), install(root, scale_releases["3"])
        assert [part.receipt for part in after.variants] == [part.receipt for part in before.variants]

    def test_what_is_not_installed_says_the_command(self, root):
        with pytest.raises(KernelNotFoundError) as error:
            opforge.get_kernel("acme/scale", ">=2,<3")
        assert f"{root.path}/kernels/names/acme/scale (folder)" in str(error.value)
        assert "Install it with: opforge install 'acme/scale@>=2,<3'" in str(error.value)

    def test_a_file_that_was_changed_is_not_loaded(self, scale_releases, root):
        (part,) = install(root, scale_releases["2.3"]).variants
        library = next(path for path in part.files if path.endswith(".so"))
        os.chmod(os.path.join(part.folder, library), 0o755)
        with open(os.path.join(part.folder, library), "r+b") as file:
            file.seek(2000)
            file.write(b"\xff\xff")
        with pytest.raises(KernelIncompatibleError, match=r"it was changed after it was installed .*: install it"):
            opforge.get_kernel("acme/scale")

    def test_a_file_that_was_added_is_noticed(self, scale_releases, root):
        (part,) = install(root, scale_releases["2.3"]).variants
        os.chmod(part.folder, 0o755)
        write(part.folder, "torch.py", "raise SystemExit\n")
        with pytest.raises(KernelIncompatibleError, match=r"Unknown file: torch\.py"):
            opforge.get_kernel("acme/scale")

    def test_a_copied_environment_has_other_stamps_and_still_loads(self, scale_releases, root, tmp_path, monkeypatch):
        install(root, scale_releases["2.3"])
        shutil.copytree(root.path, tmp_path / "copy")
        monkeypatch.setenv("OPFORGE_KERNEL_PATH", str(tmp_path / "copy"))
        assert opforge.get_kernel("acme/scale").scale(X).tolist() == [2.0, -4.0]

    def test_a_folder_that_others_can_write_is_not_used(self, scale_releases, root):
        (part,) = install(root, scale_releases["2.3"]).variants
        record = os.path.dirname(root.release("acme/scale", "2.3"))
        for folder in (root.path, root.join(), root.join("names"), record, root.join("trees"), part.folder):
            mode = stat.S_IMODE(os.stat(folder).st_mode)
            os.chmod(folder, 0o777)
            with pytest.raises(KernelIncompatibleError, match=f"{folder} can be written by everybody: Run: chmod go-w"):
                opforge.get_kernel("acme/scale")
            os.chmod(folder, mode)
        assert opforge.get_kernel("acme/scale").scale(X).tolist() == [2.0, -4.0]

    def test_a_variant_can_be_named(self, scale_releases, root):
        (part,) = install(root, scale_releases["2.3"]).variants
        assert opforge.get_kernel("acme/scale", 2, part.candidate.label).scale(X).tolist() == [2.0, -4.0]
        with pytest.raises(KernelIncompatibleError, match="torch-cuda is requested"):
            opforge.get_kernel("acme/scale", 2, "torch-cuda")

    def test_a_library_that_cannot_be_opened_is_reported_and_not_left_half_loaded(self, root, tmp_path):
        folder = plain(tmp_path, "import ctypes\nctypes.CDLL('/nowhere/lib.so')\n")
        install(root, folder, "acme/plain")
        before = set(sys.modules)
        with pytest.raises(KernelIncompatibleError, match=r"/nowhere/lib\.so: cannot open shared object file"):
            opforge.get_kernel("acme/plain")
        assert not {name for name in set(sys.modules) - before if name.startswith("_plain")}

    def test_an_import_that_fails_leaves_nothing_and_can_be_repeated(self, root, tmp_path, monkeypatch):
        text = (
            "from . import _ops\nimport os\nif os.environ.get('FAILS'):\n    raise ValueError('not yet')\nVALUE = 7\n"
        )
        install(root, plain(tmp_path, text), "acme/plain")
        monkeypatch.setenv("FAILS", "1")
        before = set(sys.modules)
        with pytest.raises(KernelLoadError, match="importing it failed: ValueError: not yet"):
            opforge.get_kernel("acme/plain")
        new = {name for name in set(sys.modules) - before if not name.startswith("opforge")}
        assert new == set()
        monkeypatch.delenv("FAILS")
        assert opforge.get_kernel("acme/plain").VALUE == 7

    def test_a_package_that_another_needs_and_that_was_removed_is_named_and_nobodys_fault(self, root, tmp_path):
        needs = "import opforge\nbase = opforge.get_kernel('acme/base', version=2)\n"
        install(root, plain(tmp_path, needs), "acme/plain")
        with pytest.raises(KernelLoadError, match="acme/base 2 was not found") as error:
            opforge.get_kernel("acme/plain")
        assert str(error.value).endswith("opforge install 'acme/base@2'. acme/plain 1 needs it")

    def test_an_import_that_failed_after_its_ops_were_registered_can_be_repeated(self, root, tmp_path, scale_releases):
        folder = shutil.copytree(scale_releases["3"], tmp_path / "copy")
        write(
            folder / "python" / "scale", "__init__.py", "import os\nfrom ._ops import ops\nos.environ['SCALE_READY']\n"
        )
        pack(reading.read(str(folder)), str(folder), Options(tried=False))
        install(root, str(folder))
        with pytest.raises(KernelLoadError, match="SCALE_READY"):
            opforge.get_kernel("acme/scale")
        os.environ["SCALE_READY"] = "1"
        try:
            assert opforge.get_kernel("acme/scale").ops.scale(X).tolist() == [3.0, -6.0]
        finally:
            del os.environ["SCALE_READY"]

    def test_eight_threads_get_one_module(self, root, tmp_path):
        text = "import time\nCOUNT = []\nCOUNT.append(time.sleep(0.05))\n"
        install(root, plain(tmp_path, text, "5"), "acme/plain")
        barrier, modules = threading.Barrier(8), []

        def load():
            barrier.wait()
            modules.append(opforge.get_kernel("acme/plain", 5))

        threads = [threading.Thread(target=load) for _number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(module) for module in modules}) == 1 and len(modules[0].COUNT) == 1

    def test_a_requirement_that_is_not_met_says_what_to_install(self, root, tmp_path):
        folder = python_project(tmp_path / "needs", "acme/plain", "6")
        text = (tmp_path / "needs" / "kernel.toml").read_text() + 'python-depends = ["no-such-package-x>=2"]\n'
        write(folder, "kernel.toml", text)
        pack(reading.read(folder), folder, Options(tried=False))
        install(root, folder, "acme/plain")
        with pytest.raises(KernelIncompatibleError, match="it needs no-such-package-x>=2, which is not installed"):
            opforge.get_kernel("acme/plain", 6)


class TestLoad:
    def test_the_library_of_an_installed_package_is_found_by_its_builder(self, root, tmp_path, monkeypatch):
        source = SOURCE.replace("@NAME@", "scale_found").replace("@FACTOR@", "5")
        write(tmp_path / "mine", "scale.cpp", source)
        text = 'from opforge import OpBuilder\nclass B(OpBuilder):\n    name, sources = "scale_found", ["scale.cpp"]\n'
        write(tmp_path / "mine", "scale_found_ops.py", text)
        monkeypatch.syspath_prepend(str(tmp_path / "mine"))
        described = reading.read("scale_found_ops:B", "acme/scale-found", "1")
        pack(described, str(tmp_path / "out"), Options(tried=False))
        installed = install(root, str(tmp_path / "out"), "acme/scale-found")
        monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "empty"))
        monkeypatch.setenv("OPFORGE_PREBUILT", "require")
        import scale_found_ops

        op = scale_found_ops.B().load()
        assert (op.scale(X).tolist(), op.origin) == ([5.0, -10.0], root.path)
        assert opforge.get_kernel("acme/scale-found").scale(X).tolist() == [5.0, -10.0], "both may be loaded at once"
        remove.remove(root, "acme/scale-found", version.ANY)
        assert os.listdir(os.path.join(root.path, "v2", "entries")) == []
        assert installed.variants and not os.path.exists(installed.variants[0].folder)


class TestCallersLock:
    @pytest.mark.parametrize("place", ["beside", "metadata"])
    def test_a_package_gets_the_version_that_it_has_locked(self, scale_releases, root, tmp_path, monkeypatch, place):
        install(root, scale_releases["2.3"])
        install(root, scale_releases["3"])
        name = f"user_of_scale_{place}"
        text = "import opforge\ndef kernel(**more):\n    return opforge.get_kernel('acme/scale', **more)\n"
        write(tmp_path / "site" / name, "__init__.py", text)
        digest = "a" * 64
        lock = f'format = 2\n[[kernel]]\nname = "acme/scale"\nversion = "2.3"\ndigest = "{digest}"\n'
        folder = tmp_path / "site" / (name if place == "beside" else f"{name}-1.dist-info")
        write(folder, "opforge.lock", lock)
        write(folder, "RECORD", f"{name}/__init__.py,,\n")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        module = __import__(name)
        with pytest.raises(KernelIncompatibleError) as error:
            module.kernel()
        assert "opforge.lock says 2.3" in str(error.value), "3 is newer, and not what is locked"
        assert "has another digest for 2.3" in str(error.value), "installed from a folder, and not from the registry"
        write(folder, "opforge.lock", lock.replace(digest, "0" * 64))
        assert module.kernel(version=3).scale(X).tolist() == [3.0, -6.0], "who names a version gets it"


QUIET = """
import builtins, socket, sys
import torch, opforge
def no_network(*arguments, **more):
    raise SystemExit("the network was used")
socket.socket.connect = no_network
socket.getaddrinfo = no_network
before = set(sys.modules)
module = opforge.get_kernel("acme/scale", 2)
new = {name.partition(".")[0] for name in set(sys.modules) - before}
heavy = {"resolvelib", "tomlkit", "tomllib", "cryptography", "backports", "packaging", "click", "rich"}
print(module.scale(torch.ones(1)).tolist(), sorted(new & heavy), any("opforge.remote" in name for name in sys.modules))
"""


def test_an_installed_kernel_is_loaded_without_network_message_or_further_libraries(scale_releases, root):
    install(root, scale_releases["2.3"])
    environment = child_processes.environment()
    done = subprocess.run([sys.executable, "-c", QUIET], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[2.0] [] False\n", "")
