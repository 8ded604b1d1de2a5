"""`hub_layers.install()`: code that calls `kernels` gets what opforge has installed."""

from __future__ import annotations

import logging
import os

import pytest

kernels = pytest.importorskip("kernels", reason="not run: needs the hub's loader: pip install kernels==0.17.2")
import torch  # noqa: E402
from support.kernels.registries import Registry  # noqa: E402
from torch import nn  # noqa: E402

from opforge.compat import hub_layers  # noqa: E402
from opforge.errors import HubLoaderError, KernelLockError  # noqa: E402
from opforge.packages.load import get_kernel as loading  # noqa: E402

DOUBLES = """\
import torch

class Double(torch.nn.Module):
    def forward(self, x):
        return @FACTOR@ * x

class layers:
    Double = Double
"""


@kernels.use_kernel_forward_from_hub("Double")
class Layer(nn.Module):
    """A library's layer that kernels may replace."""

    def forward(self, x):
        return x


class Registered(Registry):
    """A registry with a package of layers."""

    def installed(self, version="1", factor=2, name="acme/layers"):
        """Publishes and installs a version whose layer multiplies by a factor."""
        self.publish(name, version, text=DOUBLES.replace("@FACTOR@", str(factor)))
        return self.install(name, numbers=version)


@pytest.fixture
def registry(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    registry = Registered(tmp_path)
    monkeypatch.setenv("OPFORGE_KERNEL_PATH", registry.root.path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    loading.reset()
    hub_layers.install()
    yield registry
    hub_layers.uninstall()


def kernelized(use_fallback=False, **repository):
    """Returns what a model gives whose layer is mapped to a repository of the hub."""
    repository = {"repo_id": "Acme/Layers", "layer_name": "Double", "version": 1, **repository}
    model = nn.Sequential(Layer())
    with kernels.use_kernel_mapping({"Double": {"cpu": kernels.LayerRepository(**repository)}}):
        kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cpu", use_fallback=use_fallback)
    return model(torch.ones(1)).item()


def test_a_layer_gets_its_kernel_from_what_is_installed(registry):
    registry.installed()
    assert kernelized() == 2.0
    assert kernels.get_kernel("Acme/Layers", version=1).layers.Double is not None


def test_the_version_that_is_requested_is_loaded(registry):
    registry.installed("1.1", 2)
    registry.installed("2", 3)
    assert (kernelized(), kernelized(version=2)) == (2.0, 3.0)
    assert kernels.has_kernel("Acme/Layers", version=2) and not kernels.has_kernel("Acme/Layers", version=3)


def test_what_is_not_installed_is_an_error_or_the_librarys_own_layer_with_a_warning(registry, caplog):
    with pytest.raises(FileNotFoundError, match=r"The kernel acme/layers 1 was not found(.|\n)*opforge install"):
        kernelized()
    with caplog.at_level(logging.WARNING, "opforge.kernels"):
        assert kernelized(use_fallback=kernels.KernelizeFallback.ALL) == 1.0
    assert "Acme/Layers v1 was not loaded: The kernel acme/layers 1 was not found" in caplog.text


def test_a_file_that_was_changed_is_not_loaded(registry):
    release = registry.installed()
    path = f"{release.variants[0].folder}/__init__.py"
    os.chmod(path, 0o644)
    with open(path, "a") as file:
        file.write("# changed\n")
    with pytest.raises(FileNotFoundError, match="it was changed after it was installed"):
        kernelized()


def test_a_folder_is_read_and_its_digests_compared(registry):
    folder = registry.packed("acme/layers", text=DOUBLES.replace("@FACTOR@", "5"))
    repository = kernels.LocalLayerRepository(folder, layer_name="Double")
    assert repository.load() is not None
    with open(f"{folder}/build/torch-universal/__init__.py", "a") as file:
        file.write("# changed\n")
    loading.reset()
    with pytest.raises(FileNotFoundError, match=r"File hash mismatch for __init__\.py"):
        kernels.get_local_kernel(folder)


def test_a_folder_that_the_loaders_variable_names_comes_first(registry, monkeypatch):
    registry.installed()
    folder = registry.packed("acme/layers", text=DOUBLES.replace("@FACTOR@", "5"))
    monkeypatch.setenv("LOCAL_KERNELS", f"Acme/Layers={folder}")
    assert kernelized() == 5.0


@pytest.mark.parametrize(
    ("installed", "version", "problem"),
    [
        ("1", 1, ""),
        ("1.1", 1, r"Install it with: opforge install 'acme/layers@==1\.0'"),
        ("1", 2, "it has acme/layers 1, and version 2 is requested"),
    ],
)
def test_only_what_a_lock_file_has_is_loaded(registry, tmp_path, installed, version, problem):
    release = registry.installed(installed)
    lock = tmp_path / "opforge.lock"
    text = f'format = 2\n\n[[kernel]]\nname = "acme/layers"\nversion = "1"\ndigest = "{release.digest}"\n'
    lock.write_text(text)
    hub_layers.install(lock=lock)
    if not problem:
        assert kernelized(version=version) == 2.0
        return
    with pytest.raises((FileNotFoundError, KernelLockError), match=problem):
        kernelized(version=version)


def test_a_kernel_that_the_lock_file_lacks_is_an_error(registry, tmp_path):
    registry.installed()
    (tmp_path / "opforge.lock").write_text("format = 2\n")
    hub_layers.install(lock=tmp_path / "opforge.lock")
    with pytest.raises(KernelLockError, match=r"acme/layers is not in it\nAdd it to the project's kernels"):
        kernelized()


def test_a_backend_cannot_be_requested(registry):
    with pytest.raises(ValueError, match=r"backend='cpu' cannot be used\. Expected None: opforge takes the variant"):
        kernels.get_kernel("Acme/Layers", version=1, backend="cpu")


def test_the_loaders_own_functions_are_restored(registry):
    registry.installed()
    assert kernelized() == 2.0
    hub_layers.uninstall()
    with pytest.raises(ValueError, match="not available in the local cache"):
        kernelized()


def test_a_loader_of_another_interface_or_none_is_an_error(registry, monkeypatch):
    hub_layers.uninstall()
    monkeypatch.delattr("kernels.load.has_kernel")
    with pytest.raises(HubLoaderError, match="unsupported interface"):
        hub_layers.install()
