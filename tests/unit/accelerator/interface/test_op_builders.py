"""How an accelerator finds and makes its op builders."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys

import pytest

from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.devices.null import NullAccelerator
from opforge.accelerator.interface import deepspeed_names
from opforge.accelerator.interface.accelerator import target_for
from opforge.accelerator.interface.builder_protocol import create
from opforge.accelerator.target import Target
from opforge.builders.base import OpBuilder
from opforge.errors import BuilderError, OpNotFoundError

OPS = """
class Compatibility:
    def __init__(self, *reasons):
        self.reasons = reasons
    def __bool__(self):
        return not self.reasons
class QuickBuilder:
    name, reasons = "quick", ()
    def __init__(self, *, target):
        self.target = target
    def is_compatible(self):
        return Compatibility(*self.reasons)
    def load(self, verbose=False):
        return (self.name, verbose)
class PickyBuilder(QuickBuilder):
    name, reasons = "picky", ("needs AVX-512", "needs 8 GiB")
"""
TABLE = """
BUILDERS = {
    "QuickBuilder": "fake_ops.ops:QuickBuilder",
    "PickyBuilder": "fake_ops.ops:PickyBuilder",
    "BrokenBuilder": "fake_ops.broken:BrokenBuilder",
    "WrongBuilder": "fake_ops.ops.WrongBuilder",
}
"""


class FakeOps(NullAccelerator):
    """An accelerator with the builder package of the fixture `package`."""

    def op_builder_dir(self) -> str:
        return "fake_ops"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The folder of a builder package with a good, a picky, a broken and a wrongly declared builder."""
    folder = tmp_path / "fake_ops"
    folder.mkdir()
    (folder / "__init__.py").write_text(TABLE)
    (folder / "ops.py").write_text(OPS)
    (folder / "broken.py").write_text("import a_package_that_is_not_installed")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for module in [module for module in sys.modules if module.partition(".")[0] == "fake_ops"]:
        del sys.modules[module]


def test_a_builder_is_made_once_for_the_accelerators_target(package):
    accelerator = FakeOps()
    builder = accelerator.create_op_builder("QuickBuilder")
    assert builder.target == Target("null")
    assert accelerator.create_op_builder("QuickBuilder") is builder
    assert type(builder) is accelerator.get_op_builder("QuickBuilder")
    assert accelerator.load_op("QuickBuilder", verbose=True) == ("quick", True)


def test_builders_are_not_shared_between_accelerators(package):
    assert FakeOps().create_op_builder("QuickBuilder") is not FakeOps().create_op_builder("QuickBuilder")


def test_an_unknown_op_is_none(package):
    assert FakeOps().create_op_builder("NoSuchBuilder") is None
    assert FakeOps().get_op_builder("NoSuchBuilder") is None


def test_loading_an_unknown_op_is_an_error_that_lists_every_op_with_its_reason(package):
    with pytest.raises(OpNotFoundError) as raised:
        FakeOps().load_op("QuikBuilder")
    text = str(raised.value)
    assert text.startswith("The accelerator 'null' offers no op builder 'QuikBuilder'. Did you mean 'QuickBuilder'")
    assert "\n  - PickyBuilder: needs AVX-512; needs 8 GiB" in text
    assert "\n  - QuickBuilder: ready to build" in text
    assert "\n  - BrokenBuilder: broken: ModuleNotFoundError: No module named 'a_package_that_is_not_installed'" in text


def test_an_accelerator_without_a_builder_package_offers_the_hosts_ops():
    accelerator = NullAccelerator()
    assert accelerator.op_builder_dir() == "opforge.builders.null"
    assert accelerator.create_op_builder("NoSuchBuilder") is None
    assert set(accelerator.op_builders().values()) == {"cpu"}
    with pytest.raises(OpNotFoundError, match=r"'null' offers no op builder 'CPUAdm'. Did you mean 'CPUAdamBuilder'"):
        accelerator.load_op("CPUAdm")


class FakeCuda(NullAccelerator):
    """An accelerator with another target than the host's, and the builder package of the fixture `package`."""

    name = "cuda"

    def op_builder_dir(self) -> str:
        return "fake_ops"

    def _find_target(self) -> Target:
        return Target("cuda", ("sm_90",))


def test_an_op_for_the_host_is_made_for_the_host_under_any_accelerator(package):
    accelerator = FakeCuda()
    builder = accelerator.create_op_builder("CPUAdamBuilder")
    assert type(builder) is CPUAccelerator().get_op_builder("CPUAdamBuilder")
    assert builder.target == CPUAccelerator().target()
    assert accelerator.create_op_builder("CPUAdamBuilder") is builder
    assert accelerator.create_op_builder("QuickBuilder").target == Target("cuda", ("sm_90",))
    assert accelerator.op_builders()["CPUAdamBuilder"] == "cpu"
    assert accelerator.op_builders()["QuickBuilder"] == "cuda"


def test_an_accelerators_own_op_is_preferred_to_the_hosts_of_that_name(package):
    (package / "__init__.py").write_text('BUILDERS = {"CPUAdamBuilder": "fake_ops.ops:QuickBuilder"}')
    accelerator = FakeCuda()
    assert accelerator.create_op_builder("CPUAdamBuilder").name == "quick"
    assert accelerator.op_builders()["CPUAdamBuilder"] == "cuda"


@pytest.mark.parametrize(
    ("devices", "target"),
    [
        (("cpu",), None),
        (("cuda",), "cuda:sm_90"),
        (("cpu", "cuda"), "cuda:sm_90"),
        (("xpu",), "cuda:sm_90"),
        (None, "cuda:sm_90"),
    ],
)
def test_the_target_of_a_builder_depends_on_its_devices(devices, target):
    builder_class = type("Builder", (), {} if devices is None else {"devices": devices})
    builder_target = target_for(builder_class, Target("cuda", ("sm_90",)))
    assert (builder_target and str(builder_target)) == target


class Relu(OpBuilder):
    """A builder in DeepSpeed's form: its constructor takes no target, and its sources are a method."""

    NAME, BUILD_VAR, devices = "relu", "DS_BUILD_RELU", ("cuda",)

    def __init__(self):
        super().__init__(name=self.NAME)

    def sources(self):
        return ["relu.cpp", "relu.cu"]


class NamedRelu(Relu):
    """One whose constructor takes a name."""

    def __init__(self, name=None):
        OpBuilder.__init__(self, name=name or self.NAME)


class AnyRelu(OpBuilder):
    """One whose constructor passes everything on."""

    name, sources, devices = "relu", ["relu.cu"], ("cuda",)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize("kind", [Relu, NamedRelu, AnyRelu])
def test_a_builder_whose_constructor_takes_no_target_gets_it_all_the_same(kind):
    builder = create(kind, Target("cuda", ("sm_90",)), debug=True)
    assert (builder.name, str(builder.target), builder.debug) == ("relu", "cuda:sm_90", True)
    assert "<bound method" not in repr(builder) and "relu.cu" in repr(builder)


def test_a_constructor_that_fails_is_not_called_again():
    class Failing(OpBuilder):
        def __init__(self, target=None):
            raise TypeError("no target today")

    with pytest.raises(TypeError, match="no target today"):
        create(Failing, None)


def test_the_accelerator_creates_builders_in_deepspeeds_form(package):
    (package / "ops.py").write_text(
        "from opforge import OpBuilder\n"
        "class QuickBuilder(OpBuilder):\n"
        "    NAME, devices = 'quick', ('null',)\n"
        "    def __init__(self, name=None):\n"
        "        super().__init__(name=self.NAME)\n"
        "    def sources(self):\n"
        "        return ['quick.cu']\n"
    )
    builder = FakeOps().create_op_builder("QuickBuilder")
    assert builder.spec().name == "quick" and builder.target == FakeOps().target()
    assert repr(builder).splitlines()[1] == "  quick.cu"


def test_an_import_that_fails_inside_a_builder_is_not_hidden(package):
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_installed"):
        FakeOps().create_op_builder("BrokenBuilder")


def test_an_import_that_fails_inside_the_package_is_not_hidden(package):
    (package / "__init__.py").write_text("import a_package_that_is_not_installed")
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_installed"):
        FakeOps().create_op_builder("QuickBuilder")


def test_a_package_without_a_table_is_an_error(package):
    (package / "__init__.py").write_text("")
    with pytest.raises(BuilderError) as raised:
        FakeOps().create_op_builder("QuickBuilder")
    assert str(raised.value) == (
        "the builder package fake_ops: it has no table of builders."
        " Add BUILDERS, a dict from class name to 'module:Class'."
    )


def test_a_table_entry_that_names_no_class_is_an_error(package):
    with pytest.raises(
        BuilderError,
        match=r"fake_ops.BUILDERS\['WrongBuilder'\]: 'fake_ops.ops.WrongBuilder' names no class",
    ):
        FakeOps().get_op_builder("WrongBuilder")


@pytest.mark.parametrize("name", ["DeepCompile", "InferenceCutlass", "FlashAttention", "GDS"])
def test_a_builder_that_is_not_made_says_why_and_what_to_use(name):
    reason, use = deepspeed_names.NOT_MADE[f"{name}Builder"]
    for spelling in (name, f"{name}Builder"):
        with pytest.raises(OpNotFoundError) as raised:
            CPUAccelerator().load_op(spelling)
        said = f"offers no op builder '{spelling}'. opforge does not make it: {reason}. Instead, {use}. DeepSpeed's own"
        assert said in str(raised.value)


@pytest.mark.test_all("needs deepspeed")
def test_every_builder_of_deepspeed_is_offered_or_has_what_serves_it():
    spec = importlib.util.find_spec("deepspeed")
    if spec is None:
        pytest.skip("pip install deepspeed")
    folder = pathlib.Path(spec.submodule_search_locations[0], "ops", "op_builder")
    sources = "\n".join(path.read_text() for path in folder.glob("*.py"))
    names = set(re.findall(r"^class (\w+Builder)\(", sources, re.MULTILINE)) - {"OpBuilder", "CUDAOpBuilder"}
    others = {name for name in names if CPUAccelerator().create_op_builder(name) is None}
    gpu = {"FusedAdamBuilder", "FusedLambBuilder", "FusedLionBuilder", "QuantizerBuilder"}
    assert len(names) > 15 and {name for name in others - gpu if not deepspeed_names.served_by(name)} == set()


def test_an_op_that_is_loaded_is_not_called_ready_to_build(package, monkeypatch):
    monkeypatch.setattr("opforge.fast_path.library.loaded_ops", lambda: {"key": "quick"})
    with pytest.raises(OpNotFoundError) as raised:
        FakeOps().load_op("QuikBuilder")
    assert "\n  - QuickBuilder: loaded\n" in f"{raised.value}\n"
