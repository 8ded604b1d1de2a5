"""opforge's builders and ops for DeepSpeed, tested without DeepSpeed."""

from __future__ import annotations

import abc
import importlib.metadata
import os
import types

import pytest
import torch

from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.entry_points import EntryPoint
from opforge.accelerator.interface import external_builders
from opforge.accelerator.target import Target
from opforge.builders.base import OpBuilder
from opforge.builders.cpu.lion import CPULionBuilder as OurLionBuilder
from opforge.compat import deepspeed
from opforge.compat.deepspeed.accelerator import make_adapter
from opforge.compat.deepspeed.builders import DROP_IN, replacement_builders
from opforge.errors import BuilderError, DeepSpeedError, SettingError
from opforge.foundation import settings


def test_the_host_offers_the_drop_in_builders():
    from opforge.builders.cpu import BUILDERS

    assert set(DROP_IN) <= set(BUILDERS)


def test_without_deepspeed_the_error_says_what_to_install(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(DeepSpeedError) as caught:
        deepspeed.install()
    assert str(caught.value) == (
        "DeepSpeed cannot be run on opforge: it is not installed. opforge was tested with DeepSpeed==0.19.8."
        " Install that after torch, with: pip install --no-build-isolation 'deepspeed==0.19.8'"
    )
    assert isinstance(caught.value, ImportError)


def accelerator_offering(monkeypatch, **import_paths):
    """Returns the CPU accelerator with builders of another package: the import paths of its entry points by class."""
    points = [
        EntryPoint(external_builders.GROUP, f"cpu.{name}", path, "quick 2.0") for name, path in import_paths.items()
    ]
    monkeypatch.setattr(external_builders, "entry_points", lambda group: points)
    return CPUAccelerator()


def deepspeeds_accelerator(**builders):
    """Returns a stand-in for DeepSpeed's accelerator that has these builders."""
    return types.SimpleNamespace(get_op_builder=builders.get)


def test_a_broken_builder_of_another_package_is_left_out_and_logged(monkeypatch, caplog):
    ours = accelerator_offering(monkeypatch, QuickBuilder="no_such_module:QuickBuilder")
    builders = replacement_builders(
        ours, deepspeeds_accelerator(), ["QuickBuilder", "FusedAdamBuilder", "UnknownBuilder"]
    )
    assert list(builders) == ["FusedAdamBuilder"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("QuickBuilder is DeepSpeed's, not opforge's: ") and "no_such_module" in message


class FakeGPU(CPUAccelerator):
    """An accelerator with another device's name and target. It counts the calls of target(), which open a device."""

    def __init__(self, name, target=None):
        self.name, self.fake_target, self.target_calls = name, target, 0
        super().__init__()

    def target(self):
        self.target_calls += 1
        return self.fake_target


def test_a_builder_is_for_the_accelerators_target_and_creating_it_opens_no_device():
    gpu = FakeGPU("cuda", Target("hip", ("gfx942",)))
    builders = replacement_builders(gpu, deepspeeds_accelerator(), ["FusedAdamBuilder", "CPUAdamBuilder"])
    fused, host = builders["FusedAdamBuilder"](), builders["CPUAdamBuilder"]()
    requested = builders["FusedAdamBuilder"]("cuda:sm_90")
    assert gpu.target_calls == 0
    assert [str(builder.target) for builder in (fused, requested)] == ["hip:gfx942", "cuda:sm_90"]
    assert host.target.device == "cpu"
    assert gpu.target_calls == 1


def test_the_hosts_op_does_not_replace_one_that_gets_a_devices_tensors():
    names = ["FusedAdamBuilder", "FusedLionBuilder", "QuantizerBuilder", "CPUAdamBuilder"]
    assert list(replacement_builders(FakeGPU("xpu"), deepspeeds_accelerator(), names)) == ["CPUAdamBuilder"]


def test_an_op_that_lacks_functions_on_a_gpu_stays_deepspeeds_there():
    gpu = FakeGPU("cuda", Target("hip", ("gfx942",)))
    names = ["InferenceBuilder", "InferenceCoreBuilder", "RaggedOpsBuilder", "RandomLTDBuilder"]
    names += ["SpatialInferenceBuilder"]
    assert list(replacement_builders(gpu, deepspeeds_accelerator(), names)) == names[2:]
    assert list(replacement_builders(CPUAccelerator(), deepspeeds_accelerator(), names)) == names


def test_an_op_that_no_gpu_has_measured_replaces_deepspeeds_there_only_if_it_is_named():
    gpu = FakeGPU("cuda", Target("hip", ("gfx942",)))
    names = {"EvoformerAttnBuilder", "RaggedOpsBuilder"}
    assert not names & replacement_builders(gpu, deepspeeds_accelerator(), DROP_IN).keys()
    assert replacement_builders(gpu, deepspeeds_accelerator(), names).keys() == names
    assert names <= replacement_builders(CPUAccelerator(), deepspeeds_accelerator(), DROP_IN).keys()


class DeepSpeedsBase(abc.ABC):
    """A stand-in for the class from which DeepSpeed's builders inherit."""

    @abc.abstractmethod
    def absolute_name(self):
        """Returns the name of the installed op's module."""


class CPULionBuilder(DeepSpeedsBase):
    """A stand-in for DeepSpeed's builder."""

    NAME, BUILD_VAR = "cpu_lion", "DS_BUILD_CPU_LION"

    def absolute_name(self):
        return f"deepspeed.ops.lion.{self.NAME}_op"

    def simd_width(self):
        return "-D__AVX256__"

    def include_paths(self):
        return ["no/such/folder"]

    def cxx_args(self):
        return ["-no-such-flag"]


def joint_builder():
    """Returns the class that replaces DeepSpeed's CPULionBuilder."""
    theirs = deepspeeds_accelerator(CPULionBuilder=CPULionBuilder)
    return replacement_builders(CPUAccelerator(), theirs, ["CPULionBuilder"])["CPULionBuilder"]


def test_a_builder_has_what_deepspeeds_callers_read():
    kind = joint_builder()
    assert (kind.NAME, kind.BUILD_VAR) == ("cpu_lion", "DS_BUILD_CPU_LION")
    assert kind().absolute_name() == "deepspeed.ops.lion.cpu_lion_op"
    assert kind().simd_width() == "-D__AVX256__"
    assert isinstance(kind(), CPULionBuilder) and issubclass(kind, DeepSpeedsBase)
    for name in ("no_such_attribute", "_private"):
        assert not hasattr(kind(), name)


def test_deepspeeds_flags_are_not_those_of_opforges_op():
    builder = joint_builder()()
    builder.jit_mode = True  # as DeepSpeed's launchers of builds set it
    assert builder.spec()._replace(builder="") == OurLionBuilder().spec()._replace(builder="")


def test_deepspeeds_methods_return_what_opforges_op_is_built_from():
    builder = joint_builder()()
    (source, *_others) = builder.sources()
    assert os.path.isfile(source) and source.endswith(".cpp")
    folders = builder.include_paths()
    assert folders and all(map(os.path.isdir, folders)) and "no/such/folder" not in folders
    spec = OurLionBuilder().spec()
    assert builder.cxx_args() == [*spec.cxx_flags] and joint_builder()(debug=True).cxx_args()[0] == "-g"
    assert (builder.nvcc_args(), builder.extra_ldflags(), builder.libraries_args()) == ([], [*spec.link_flags], [])


def test_jit_load_loads_opforges_op(monkeypatch):
    monkeypatch.setattr(OpBuilder, "load", lambda self, verbose=False: f"opforge's {self.name}")
    monkeypatch.setattr("opforge.compat.deepspeed.builders._loaded", {})
    assert joint_builder()().jit_load() == "opforge's cpu_lion"


def test_an_extension_for_deepspeeds_setup_script_is_refused_with_the_command_to_use():
    with pytest.raises(BuilderError) as raised:
        joint_builder()().builder()
    assert str(raised.value) == (
        "CPULionBuilder: builder() describes an extension for DeepSpeed's setup script, and this op is opforge's."
        " Build it ahead of time by `build-ops CPULionBuilder`"
    )


def test_a_builder_that_deepspeed_lacks_has_no_attributes_of_it():
    ours = replacement_builders(CPUAccelerator(), deepspeeds_accelerator(), ["CPULionBuilder"])["CPULionBuilder"]
    assert not hasattr(ours, "NAME") and not hasattr(ours(), "absolute_name")


def test_an_op_is_loaded_once_in_a_process_whatever_was_installed_anew(monkeypatch):
    loads = []

    def load(self, verbose=False):
        loads.append(str(self.target))
        return types.SimpleNamespace()

    monkeypatch.setattr(OpBuilder, "load", load)
    monkeypatch.setattr("opforge.compat.deepspeed.builders._loaded", {})
    kind = joint_builder()
    op = kind().load()
    assert kind().load() is op and joint_builder()().load() is op
    builder = kind()
    assert builder.spec() and builder.load() is op
    assert kind("cpu:x86-64-v2").load() is not op
    assert len(loads) == 2 and loads[1] == "cpu:x86-64-v2"


@pytest.mark.parametrize(
    ("value", "builders"),
    [
        ("", None),
        ("0", None),
        ("off", None),
        ("1", ()),
        ("True", ()),
        ("CPUAdamBuilder, CPULionBuilder", ("CPUAdamBuilder", "CPULionBuilder")),
    ],
)
def test_the_variable_names_the_builders(monkeypatch, value, builders):
    monkeypatch.setenv("OPFORGE_DEEPSPEED", value)
    assert settings.deepspeed() == builders


@pytest.mark.parametrize("value", ["2", "CPUAdam", "CPUAdamBuilder,", "a b Builder"])
def test_a_wrong_value_of_the_variable_is_an_error(monkeypatch, value):
    monkeypatch.setenv("OPFORGE_DEEPSPEED", value)
    with pytest.raises(SettingError, match="expected 1, 0, or builders such as CPUAdamBuilder,CPULionBuilder"):
        settings.deepspeed()


class DeepSpeedsInterface:
    """A stand-in for DeepSpeed's abstract class of accelerators."""

    def is_pinned(self, tensor):
        return "counted"


class DeepSpeedsCPU(DeepSpeedsInterface):
    """A stand-in for DeepSpeed's accelerator for the CPU."""

    _name, class_dict = "cpu", None

    def device(self, device_index=None):
        return None

    def is_pinned(self, tensor):
        return "not counted"

    def communication_backend_version(self):
        return 3


def test_the_device_is_deepspeeds_and_so_are_the_methods_that_only_its_accelerator_has():
    adapter = make_adapter(CPUAccelerator(), DeepSpeedsCPU(), DeepSpeedsInterface, {})
    assert adapter.device(0) is None and adapter.is_pinned(torch.ones(1)) == "not counted"
    assert adapter.communication_backend_version() == 3 and not hasattr(adapter, "class_dict")
    assert adapter.current_device_name() == "cpu"


def test_the_device_of_an_accelerator_that_deepspeed_does_not_know_is_a_torch_device():
    adapter = make_adapter(FakeGPU("quick"), DeepSpeedsCPU(), DeepSpeedsInterface, {})
    assert adapter.device(1) == torch.device("cpu") and adapter.is_pinned(torch.ones(1)) == "counted"
    assert not hasattr(adapter, "communication_backend_version")


class DeepSpeedAccelerator(DeepSpeedsInterface):
    """A stand-in for DeepSpeed's abstract class, with a default."""

    def is_fp64_supported(self):
        return False


class StockCPU(DeepSpeedAccelerator):
    """A stand-in for DeepSpeed's own accelerator for the CPU."""

    __module__, _name, Stream = "deepspeed.accelerator.cpu_accelerator", "cpu", None

    def device(self, device_index=None):
        return None

    def current_device(self):
        return "0"

    def get_op_builder(self, class_name):
        return {"TheirBuilder": CPULionBuilder}.get(class_name, type("NotImplementedBuilder", (), {}))


class ChangedCPU(StockCPU):
    """An accelerator that a user derived from DeepSpeed's."""

    def device_count(self):
        return 7

    def on_tuesdays(self):
        return "never"

    @property
    def Event(self):
        return "an event"


class AcmeAccelerator(DeepSpeedAccelerator):
    """One for a device that neither DeepSpeed nor opforge has."""

    _name = "acme"

    def is_synchronized_device(self):
        return True

    def device_name(self, device_index=None):
        return "meta"

    def device(self, device_index=None):
        return torch.device("meta")

    def device_count(self):
        return 2

    def current_device(self):
        return 0

    def get_op_builder(self, class_name):
        return None


@pytest.fixture
def in_use():
    """Sets the accelerator in use, and returns what is then in use."""
    from opforge.accelerator import get_accelerator, select, set_accelerator

    def use(accelerator):
        set_accelerator(accelerator)
        return get_accelerator()

    select.reset()
    yield use
    select.reset()


def test_an_accelerator_derived_from_deepspeeds_is_used_for_what_it_defines_and_opforges_for_the_rest(in_use):
    accelerator = in_use(ChangedCPU())
    assert isinstance(accelerator, CPUAccelerator) and accelerator.name == "cpu"
    assert (accelerator.device_count(), accelerator.on_tuesdays(), accelerator.Event) == (7, "never", "an event")
    assert type(accelerator.current_device()) is int and accelerator.is_fp64_supported() and accelerator.Stream
    with accelerator.device(1):
        assert accelerator.current_device() == 1


def test_the_builders_of_such_an_accelerator_are_opforges_and_then_its_own(in_use):
    accelerator = in_use(ChangedCPU())
    assert accelerator.get_op_builder("CPULionBuilder") is OurLionBuilder
    assert accelerator.get_op_builder("TheirBuilder") is CPULionBuilder
    assert (
        accelerator.get_op_builder("NoSuchBuilder") is None and accelerator.create_op_builder("NoSuchBuilder") is None
    )


def test_an_accelerator_of_deepspeeds_hierarchy_for_another_device_is_one_of_opforges(in_use):
    accelerator = in_use(AcmeAccelerator())
    assert (accelerator.name, accelerator.torch_device, accelerator.device_count()) == ("acme", "meta", 2)
    assert accelerator.is_synchronized_device() and accelerator.current_device_name() == "meta"
    assert accelerator.Event is not None and accelerator.create_op_builder("CPULionBuilder").target.device == "cpu"


def test_what_is_no_accelerator_is_refused(in_use):
    with pytest.raises(SettingError, match=r"expected an opforge.accelerator.Accelerator, or the name of one"):
        in_use(object())
