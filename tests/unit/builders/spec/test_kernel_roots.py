"""Kernel roots of other packages under a prefix of their own: found without an import, in order, read in place."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import child_processes

import opforge
from opforge import OpBuilder, kernel_root
from opforge.builders.spec import kernel_roots
from opforge.builders.spec.description import describe
from opforge.builders.spec.op_spec import root_paths
from opforge.errors import BuilderError, SourceNotFoundError


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Two installed packages that must not be imported, with kernels of one name."""
    site = tmp_path / "site"
    for package in ("kernels_base", "kernels_mine"):
        for folder in ("csrc/includes", "csrc/include"):
            (site / package / folder).mkdir(parents=True)
        (site / package / "__init__.py").write_text("raise AssertionError('it was imported')")
        (site / package / "csrc" / "both.cpp").write_text(f"// {package}\n")
    (site / "kernels_base" / "csrc" / "base.cpp").write_text("")
    monkeypatch.syspath_prepend(str(site))
    return site


def declare(package="kernels_base", prefix="sycl", base=OpBuilder, **more):
    return kernel_root(prefix, package, **more)(
        type("Declared", (base,), {"name": "declared", "sources": ["both.cpp"]})
    )


def test_one_call_gives_both_methods_for_any_prefix(packages):
    cls = declare(prefix="quick", folder="csrc")
    base = str(packages / "kernels_base" / "csrc")
    assert cls.quick_kernel_path("both.cpp") == f"{base}/both.cpp"
    assert cls().quick_kernel_include("includes") == f"{base}/includes"
    assert cls.quick_kernel_path(f"{base}/base.cpp") == f"{base}/base.cpp"
    assert type("Sub", (cls,), {})().quick_kernel_path("./includes/../base.cpp") == f"{base}/base.cpp"
    assert not hasattr(OpBuilder, "quick_kernel_path") and OpBuilder.kernel_roots == ()


def test_a_whole_package_is_a_root_as_intels_extension_has_it(packages):
    cls = declare()
    assert cls.sycl_kernel_path("csrc/both.cpp") == str(packages / "kernels_base" / "csrc" / "both.cpp")
    assert cls.sycl_kernel_include("csrc/includes") == str(packages / "kernels_base" / "csrc" / "includes")


def test_opforges_own_kernels_are_a_package_like_any_other():
    cls = declare("opforge.ops", prefix="cuda", folder="csrc")
    assert cls.cuda_kernel_path("cpu/adam.cpp") == os.path.join(kernel_roots.OPFORGE.path, "cpu", "adam.cpp")


def test_later_roots_override_earlier_ones_of_the_prefix(packages):
    base = declare(folder="csrc")
    over = declare("kernels_mine", base=base, folder="csrc")
    mine = str(packages / "kernels_mine" / "csrc")
    assert over.sycl_kernel_path("both.cpp") == f"{mine}/both.cpp"
    assert over.sycl_kernel_path("base.cpp") == str(packages / "kernels_base" / "csrc" / "base.cpp")
    assert base.sycl_kernel_path("both.cpp") != f"{mine}/both.cpp"
    assert [one.name for one in over.kernel_roots] == ["sycl:kernels_mine/csrc", "sycl:kernels_base/csrc"]
    (source,) = kernel_roots.locate("op", over.sources, over().spec().roots[1:])
    assert source == ("sycl:kernels_mine/csrc", "both.cpp")


def test_a_prefix_sees_its_own_roots_alone(packages):
    both = declare("kernels_mine", prefix="cuda", base=declare(folder="csrc"), folder="csrc")
    assert both.sycl_kernel_path("both.cpp") == str(packages / "kernels_base" / "csrc" / "both.cpp")
    assert both.cuda_kernel_path("both.cpp") == str(packages / "kernels_mine" / "csrc" / "both.cpp")
    with pytest.raises(SourceNotFoundError):
        both.cuda_kernel_path("base.cpp")


def test_what_no_root_has_is_named_with_every_folder(packages):
    over = declare("kernels_mine", base=declare())
    with pytest.raises(SourceNotFoundError) as refused:
        over().sycl_kernel_path("csrc/none.cpp")
    assert str(refused.value) == (
        "The op 'declared' names 'csrc/none.cpp', which does not exist. Looked in:"
        f"\n  - {packages}/kernels_mine\n  - {packages}/kernels_base"
        "\nCorrect the name, or add the folder that holds it."
    )


@pytest.mark.parametrize("package", ["no_such_package", "no_such_package.inner"])
def test_a_package_that_is_not_installed_is_named(package):
    with pytest.raises(SourceNotFoundError, match=f"the package {package} is not installed"):
        declare(package)


def test_a_folder_that_a_package_lacks_is_named(packages):
    with pytest.raises(SourceNotFoundError, match=r"kernels_base/nothing.*\n.*site/kernels_base"):
        declare(folder="nothing")


@pytest.mark.parametrize("prefix", ["", "a b", "a-b", "own", "include", "includes"])
def test_a_prefix_that_cannot_be_one_is_refused(packages, prefix):
    with pytest.raises(BuilderError, match=r"Declared: the kernel root's prefix is .* Expected another word, such as"):
        declare(prefix=prefix)


def test_the_same_root_twice_is_refused(packages):
    with pytest.raises(BuilderError, match="it has the kernel root 'sycl:kernels_base' already"):
        declare(base=declare())


def test_two_folders_of_one_name_are_refused(packages):
    both = [kernel_roots.KernelRoot("one", str(packages / name)) for name in ("kernels_base", "kernels_mine")]
    cls = type("Twice", (OpBuilder,), {"name": "twice", "sources": ["csrc/both.cpp"], "kernel_roots": both})
    with pytest.raises(BuilderError, match=r"are both its kernel root 'one'\. Give each a name of its own"):
        describe(cls().spec())


def test_no_path_of_a_root_is_in_a_key(packages, tmp_path, monkeypatch):
    """A package that is installed elsewhere gives the same description and the same folders in the plan."""
    said = []
    for place in (packages, tmp_path / "elsewhere"):
        if place != packages:
            os.rename(packages, place)
            monkeypatch.syspath_prepend(str(place))
        base = declare()
        cls = type(
            "Spelt",
            (base,),
            {
                "sources": [base.sycl_kernel_path("csrc/both.cpp")],
                "include_dirs": [base.sycl_kernel_include("csrc/includes")],
                "abi": "c",
            },
        )
        builder = cls()
        assert root_paths(builder.spec())["sycl:kernels_base"] == str(place / "kernels_base")
        assert not any(
            name.startswith("include") for name in root_paths(builder.spec())
        )  # it is watched as installed code is
        said.append((describe(builder.spec()), planned_folders(builder)))
    assert said[0] == said[1]
    assert str(tmp_path) not in repr(said)


def planned_folders(builder):
    from opforge.builders import planner

    return planner.include_folders(builder.spec())


def test_kernel_root_is_a_public_name_that_costs_no_torch():
    assert opforge.kernel_root is kernel_root
    code = "import sys, opforge; opforge.kernel_root; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=child_processes.environment(), capture_output=True, text=True
    )
    assert done.stdout.strip() == "False", done.stderr
