"""FOR_ALL_BUILDERS: what all builders of a package have in common, in the spec, in the keys, and where it is found."""

from __future__ import annotations

import importlib
import sys

import pytest
from support import text_files

from opforge import OpBuilder
from opforge.accelerator.target import Target
from opforge.builders.declaration.description import description_key
from opforge.builders.declaration.kernel_roots import KernelRoot
from opforge.builders.declaration.op_spec import resolve
from opforge.errors import BuilderError, SourceNotFoundError
from opforge.fast_path import lookup

OP = """
from opforge import OpBuilder
class AcmeOpBuilder(OpBuilder):
    devices = ("acme", "cpu")
class PlainBuilder(AcmeOpBuilder):
    name, sources, abi = "plain", ["plain.cpp"], "c"
"""
OWN_FLAGS = """
class FlagsBuilder(AcmeOpBuilder):
    name, sources, abi = "plain", ["plain.cpp"], "c"
    extra_compile_args, libraries, include_dirs = ["-O1"], ["own"], ["own"]
    define_macros = [("WIDTH", "8"), ("OWN", "1")]
"""
TABLE = {
    "kernel_roots": [("acme", "forall_acme", "csrc")],
    "include_dirs": {"all": ["shared"], "acme": ["device"]},
    "define_macros": {"WIDTH": "4", "ACME": "1"},
    "extra_compile_args": {"cxx": ["-O2", "-fwrapv"], "acme": ["-O3"], "cuda": ["--maxrregcount=32"]},
    "extra_link_args": ["-L/opt/acme/lib"],
    "libraries": ["acme"],
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A function that writes packages of files by name, and imports the last one."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(**files):
        for name, text in files.items():
            path = name.replace("__", "/") + ("/__init__.py" if text.startswith("#package") else ".py")
            text_files.write(tmp_path, path, text)
        importlib.invalidate_caches()
        return importlib.import_module(name.replace("__", "."))

    yield write
    for name in [name for name in sys.modules if name.startswith("forall_")]:
        del sys.modules[name]


@pytest.fixture
def acme(write, tmp_path):
    """A function from a table to the module of a package's builders; the package has the table, if it is not None."""
    for folder in ("csrc/shared", "csrc/device", "csrc/include", "builders/own"):
        (tmp_path / "forall_acme" / folder).mkdir(parents=True)
    text_files.write(tmp_path / "forall_acme/builders", "plain.cpp", 'extern "C" int value() { return 1; }\n')

    def made(table):
        line = "" if table is None else f"FOR_ALL_BUILDERS = {table!r}\n"
        packages = {"forall_acme": "#package", "forall_acme__builders": f"#package\n{line}"}
        return write(**packages, forall_acme__builders__ops=OP + OWN_FLAGS)

    return made


def spec_of(kind, device="acme"):
    return resolve(kind(), Target(device, ("x86-64",) if device == "cpu" else ()))


def test_the_table_is_added_to_what_a_builder_declares(acme, tmp_path):
    spec = spec_of(acme(TABLE).PlainBuilder)
    root = KernelRoot("acme:forall_acme/csrc", str(tmp_path / "forall_acme/csrc"))
    assert spec.declared_roots == (root,)
    assert (spec.include_dirs, spec.defines) == (("shared", "device"), (("ACME", "1"), ("WIDTH", "4")))
    assert (spec.cxx_flags, spec.device_flags) == (("-O2", "-fwrapv"), ("-O3",))
    assert (spec.link_flags, spec.libraries) == (("-L/opt/acme/lib",), ("acme",))


def test_a_builders_own_flags_and_macros_win_and_its_folders_and_libraries_come_first(acme):
    spec = spec_of(acme(TABLE).FlagsBuilder)
    assert spec.cxx_flags == ("-O2", "-fwrapv", "-O1")
    assert (spec.include_dirs, spec.libraries) == (("own", "shared", "device"), ("own", "acme"))
    assert spec.defines == (("ACME", "1"), ("OWN", "1"), ("WIDTH", "8"))


def test_what_is_for_another_device_is_left_out(acme):
    spec = spec_of(acme(TABLE).PlainBuilder, "cpu")
    assert (spec.include_dirs, spec.device_flags) == (("shared",), ())


def test_a_package_without_a_table_adds_nothing_and_its_ops_are_remembered_by_their_declaration(acme):
    kind = acme(None).PlainBuilder
    assert lookup.tables_for_all(kind) == {} and lookup.declaration(kind(), OpBuilder)
    assert spec_of(kind).include_dirs == ()


def test_an_op_with_a_table_is_not_remembered_by_its_declaration_alone(acme):
    assert lookup.declaration(acme(TABLE).PlainBuilder(), OpBuilder) == ""


@pytest.mark.parametrize("name", TABLE)
def test_every_part_of_the_table_is_in_the_key(acme, write, name):
    module = acme({"kernel_roots": TABLE["kernel_roots"]})
    before = description_key(spec_of(module.PlainBuilder))
    table = {"kernel_roots": TABLE["kernel_roots"], name: TABLE[name]} if name != "kernel_roots" else {}
    sys.modules["forall_acme.builders"].FOR_ALL_BUILDERS = table
    assert description_key(spec_of(module.PlainBuilder)) != before


def test_a_builder_of_another_package_gets_the_table_of_its_base_class(acme, write):
    acme(TABLE)
    text = "from forall_acme.builders.ops import PlainBuilder\nclass OtherBuilder(PlainBuilder):\n    version = '2'\n"
    other = write(forall_other="#package\nFOR_ALL_BUILDERS = {'libraries': ['other']}\n", forall_other__ops=text)
    assert [*lookup.tables_for_all(other.OtherBuilder)] == ["forall_other", "forall_acme.builders"]
    assert spec_of(other.OtherBuilder).libraries == ("other", "acme")


def test_the_nearest_package_with_a_table_counts(write):
    files = {"forall_deep": "#package\nFOR_ALL_BUILDERS = {'libraries': ['far']}\n", "forall_deep__a": "#package\n"}
    module = write(**files, forall_deep__a__b="#package\nFOR_ALL_BUILDERS = {}\n", forall_deep__a__b__ops=OP)
    assert lookup.tables_for_all(module.PlainBuilder) == {"forall_deep.a.b": {}}
    assert [*lookup.tables_for_all(write(forall_deep__a__ops=OP).PlainBuilder)] == ["forall_deep"]


def test_opforges_own_builders_have_no_table():
    from opforge.builders.cpu.adam import CPUAdamBuilder

    assert lookup.tables_for_all(CPUAdamBuilder) == {}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"cflags": ["-O1"]},
            "it has the key 'cflags'. Expected some of define_macros, extra_compile_args, extra_link_args, "
            "include_dirs, kernel_roots, libraries",
        ),
        (["-O1"], "it is ['-O1']. Expected a dict with some of define_macros, extra_compile_args"),
        (
            {"kernel_roots": ["csrc"]},
            """kernel_roots has 'csrc'. Expected ("prefix", "package", "folder"), the arguments of kernel_root""",
        ),
        ({"kernel_roots": [("a-b", "forall_acme")]}, "the kernel root's prefix is 'a-b'. Expected another word"),
        ({"libraries": "acme"}, "libraries="),
    ],
)
def test_a_table_that_is_wrong_is_refused_by_its_name(acme, table, message):
    with pytest.raises(BuilderError) as raised:
        spec_of(acme(table).PlainBuilder)
    assert str(raised.value).startswith("forall_acme.builders.FOR_ALL_BUILDERS: ") and message in str(raised.value)


def test_a_kernel_root_whose_folder_is_missing_is_an_error(acme):
    with pytest.raises(SourceNotFoundError, match="forall_acme/kernels"):
        spec_of(acme({"kernel_roots": [("acme", "forall_acme", "kernels")]}).PlainBuilder)
