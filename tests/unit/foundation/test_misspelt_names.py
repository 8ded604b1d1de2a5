"""A name that the user gives is found, or is an error with the nearest one: each place, with each letter swapped."""

from __future__ import annotations

import getpass
import types

import pytest
from support import sample_ops

import opforge
from opforge import errors
from opforge.accelerator import get_accelerator
from opforge.foundation import settings
from opforge.foundation.settings import misspelt
from opforge.models import OWN_KERNELS, LayerKernel

nn = pytest.importorskip("torch.nn", reason="pip install torch")


class RMSNorm(nn.Module):
    def forward(self, x):
        return x


class Kernel(nn.Module):
    def forward(self, x):
        return x * 2


def layer_of_a_mapping(name):
    opforge.kernels_for(nn.Sequential(RMSNorm()), {name: LayerKernel(Kernel)}).__enter__()


def device_of_a_kernel(name):
    opforge.kernels_for(nn.Sequential(RMSNorm()), {"RMSNorm": LayerKernel(Kernel, device=name)})


def builder_of_deepspeed(name):
    from opforge.compat.deepspeed.builders import check_names

    check_names(get_accelerator(), types.SimpleNamespace(get_op_builder=lambda _name: None), [name])


def builder_of_the_variable(name):
    from unittest import mock

    from opforge.compat import deepspeed, deepspeed_import

    with mock.patch.object(deepspeed, "install", builder_of_deepspeed_from), mock.patch.dict("os.environ"):
        import os

        os.environ["OPFORGE_DEEPSPEED"] = name
        deepspeed_import._install()


def builder_of_deepspeed_from(names):
    builder_of_deepspeed(*names)


def signature_of_a_function(name, folder=[]):  # noqa: B006 - built once
    import ctypes
    import tempfile

    folder.append(folder[0] if folder else tempfile.mkdtemp())
    sample_ops.plain_op(folder[0], signatures={name: (ctypes.c_int, [])})().load()


def op_of_the_accelerator(name):
    get_accelerator().load_op(name)


PLACES = [
    (layer_of_a_mapping, "RMSNorm", errors.KernelMappingError),
    (device_of_a_kernel, "cuda", errors.KernelMappingError),
    (builder_of_deepspeed, "CPULionBuilder", errors.BuilderError),
    (builder_of_the_variable, "CPULionBuilder", errors.SettingError),
    (signature_of_a_function, "value", errors.BuilderError),
    (op_of_the_accelerator, "CPULionBuilder", errors.OpNotFoundError),
]


@pytest.mark.parametrize(("use", "name", "error"), PLACES, ids=[place[0].__name__ for place in PLACES])
def test_a_name_with_two_letters_swapped_is_an_error_that_names_the_right_one(use, name, error):
    """A mapping, a device, a builder, a function: what is misspelt must never do nothing."""
    at = len(name) // 2 - 1
    for wrong in {name[:at] + name[at + 1] + name[at] + name[at + 2 :], name[:at] + name[at + 1 :]} - {name}:
        with pytest.raises(error) as caught:
            use(wrong)
        assert wrong in str(caught.value) and name in str(caught.value)


def test_a_trusted_owner_that_the_system_does_not_have_is_named(monkeypatch):
    name = getpass.getuser()
    monkeypatch.setenv("OPFORGE_TRUSTED_OWNERS", f"{name}x,{name},12345")
    lines = [line for line in misspelt.problems() if "user" in line]
    assert lines == [
        f"OPFORGE_TRUSTED_OWNERS names the user '{name}x', and this system has no such user. Did you mean {name}?"
    ]
    assert settings.trusted_owners() == (f"{name}x", name, "12345")


def test_a_class_is_a_key_of_a_mapping():
    model = nn.Sequential(RMSNorm())
    with opforge.kernels_for(model, {RMSNorm: LayerKernel(Kernel)}):
        assert opforge.explain_kernels(model)[0].kernel == "Kernel"
    with pytest.raises(errors.KernelMappingError, match="7: it names no class"):
        opforge.kernels_for(model, {7: LayerKernel(Kernel)})


def test_a_layer_kernel_takes_what_a_mapping_takes():
    kernel = LayerKernel("acme/norms@2:RMSNorm", device="cuda")
    assert (kernel.package, kernel.version, kernel.layer) == ("acme/norms", "2", "RMSNorm")
    assert str(kernel) == "acme/norms@2:RMSNorm"


def test_an_architecture_that_there_is_none_of_is_an_error():
    entry = LayerKernel(Kernel, architectures=("sm90",))
    with pytest.raises(errors.KernelMappingError, match=r"architectures names 'sm90'.*did you mean 'sm_90'"):
        opforge.kernels_for(nn.Sequential(RMSNorm()), {"RMSNorm": entry})


def test_a_mapping_for_several_models_says_once_what_this_one_does_not_have(caplog):
    model, kernel = nn.Sequential(RMSNorm()), LayerKernel(Kernel)
    for _ in range(2):
        with opforge.kernels_for(model, {"RMSNorm": kernel, "Attention": kernel}):
            pass
    assert [record.getMessage() for record in caplog.records] == ["kernels_for: the model Sequential has no Attention"]
    with pytest.raises(errors.KernelMappingError, match="the model Sequential has no such class"):
        opforge.kernels_for(model, {"Attention": kernel}).__enter__()
    with opforge.kernels_for(model, OWN_KERNELS):
        pass
