"""From an accelerator to its op builders."""

from __future__ import annotations

import sys

import pytest

from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.devices.null import NullAccelerator
from opforge.accelerator.interface.op_builders import target_for
from opforge.accelerator.target import Target
from opforge.errors import BuilderError, OpNotFoundError

OPS = """
class Answer:
    def __init__(self, *reasons):
        self.reasons = reasons
    def __bool__(self):
        return not self.reasons
class QuickBuilder:
    name, reasons = "quick", ()
    def __init__(self, *, target):
        self.target = target
    def is_compatible(self):
        return Answer(*self.reasons)
    def load(self, verbose=False):
        return (self.name, verbose)
class PickyBuilder(QuickBuilder):
    name, reasons = "picky", ("needs AVX-512", "needs 8 GiB")
"""
TABLE = """
BUILDERS = {
    "QuickBuilder": "made_up.ops:QuickBuilder",
    "PickyBuilder": "made_up.ops:PickyBuilder",
    "BrokenBuilder": "made_up.broken:BrokenBuilder",
    "WrongBuilder": "made_up.ops.WrongBuilder",
}
"""


class Other(NullAccelerator):
    def op_builder_dir(self) -> str:
        return "made_up"


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "made_up"
    folder.mkdir()
    (folder / "__init__.py").write_text(TABLE)
    (folder / "ops.py").write_text(OPS)
    (folder / "broken.py").write_text("import a_package_that_is_not_installed")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for module in [module for module in sys.modules if module.partition(".")[0] == "made_up"]:
        del sys.modules[module]


def test_a_builder_is_made_for_the_accelerators_target_and_kept(package):
    accelerator = Other()
    builder = accelerator.create_op_builder("QuickBuilder")
    assert builder.target == Target("null")
    assert accelerator.create_op_builder("QuickBuilder") is builder
    assert type(builder) is accelerator.get_op_builder("QuickBuilder")
    assert accelerator.load_op("QuickBuilder", verbose=True) == ("quick", True)


def test_builders_are_not_shared_between_accelerators(package):
    assert Other().create_op_builder("QuickBuilder") is not Other().create_op_builder("QuickBuilder")


def test_an_unknown_op_is_none(package):
    assert Other().create_op_builder("NoSuchBuilder") is None
    assert Other().get_op_builder("NoSuchBuilder") is None


def test_load_op_lists_every_op_with_its_reason(package):
    with pytest.raises(OpNotFoundError) as refused:
        Other().load_op("QuikBuilder")
    text = str(refused.value)
    assert text.startswith("The accelerator 'null' offers no op builder 'QuikBuilder'. Did you mean 'QuickBuilder'")
    assert "\n  - PickyBuilder: needs AVX-512; needs 8 GiB" in text
    assert "\n  - QuickBuilder: ready to build" in text
    assert "\n  - BrokenBuilder: broken: ModuleNotFoundError: No module named 'a_package_that_is_not_installed'" in text


def test_an_accelerator_whose_builder_package_does_not_exist_offers_the_hosts_ops():
    accelerator = NullAccelerator()
    assert accelerator.op_builder_dir() == "opforge.builders.null"
    assert accelerator.create_op_builder("NoSuchBuilder") is None
    assert set(accelerator.op_builders().values()) == {"cpu"}
    with pytest.raises(OpNotFoundError, match=r"'null' offers no op builder 'CPUAdm'. Did you mean 'CPUAdamBuilder'"):
        accelerator.load_op("CPUAdm")


class MadeUpCUDA(NullAccelerator):
    """As a CUDA device looks from here: another target, its own package of builders."""

    name = "cuda"

    def op_builder_dir(self) -> str:
        return "made_up"

    def _find_target(self) -> Target:
        return Target("cuda", ("sm_90",))


def test_an_op_for_the_host_is_made_for_the_host_under_any_accelerator(package):
    accelerator = MadeUpCUDA()
    builder = accelerator.create_op_builder("CPUAdamBuilder")
    assert type(builder) is CPUAccelerator().get_op_builder("CPUAdamBuilder")
    assert builder.target == CPUAccelerator().target()
    assert accelerator.create_op_builder("CPUAdamBuilder") is builder
    assert accelerator.create_op_builder("QuickBuilder").target == Target("cuda", ("sm_90",))
    assert accelerator.op_builders()["CPUAdamBuilder"] == "cpu"
    assert accelerator.op_builders()["QuickBuilder"] == "cuda"


def test_an_accelerators_own_op_goes_before_the_hosts_of_that_name(package):
    (package / "__init__.py").write_text('BUILDERS = {"CPUAdamBuilder": "made_up.ops:QuickBuilder"}')
    accelerator = MadeUpCUDA()
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
def test_which_target_a_builder_is_made_for(devices, target):
    kind = type("Kind", (), {} if devices is None else {"devices": devices})
    made = target_for(kind, Target("cuda", ("sm_90",)))
    assert (made and str(made)) == target


def test_an_import_that_fails_inside_a_builder_is_not_hidden(package):
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_installed"):
        Other().create_op_builder("BrokenBuilder")


def test_an_import_that_fails_inside_the_package_is_not_hidden(package):
    (package / "__init__.py").write_text("import a_package_that_is_not_installed")
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_installed"):
        Other().create_op_builder("QuickBuilder")


def test_a_package_without_a_table_is_told_what_it_lacks(package):
    (package / "__init__.py").write_text("")
    with pytest.raises(BuilderError) as refused:
        Other().create_op_builder("QuickBuilder")
    assert str(refused.value) == (
        "the builder package made_up: it has no table of builders."
        " Give it BUILDERS, a dict from class name to 'module:Class'."
    )


def test_a_table_entry_that_names_no_class_is_told_so(package):
    with pytest.raises(
        BuilderError, match=r"made_up.BUILDERS\['WrongBuilder'\]: 'made_up.ops.WrongBuilder' names no class"
    ):
        Other().get_op_builder("WrongBuilder")
