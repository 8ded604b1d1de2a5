"""Kernel roots in other packages: located without an import, searched in order, and read in place."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import child_processes

import opforge
from opforge import OpBuilder, kernel_root
from opforge.builders import planner
from opforge.builders.declaration import kernel_roots
from opforge.builders.declaration.description import describe
from opforge.builders.declaration.op_spec import root_paths
from opforge.errors import BuilderError, SourceNotFoundError


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """The site folder of two packages that must not be imported. Both have a kernel both.cpp."""
    site = tmp_path / "site"
    for package in ("kernels_base", "kernels_mine"):
        for folder in ("csrc/includes", "csrc/include"):
            (site / package / folder).mkdir(parents=True)
        (site / package / "__init__.py").write_text("raise AssertionError('it was imported')")
        (site / package / "csrc" / "both.cpp").write_text(f"// {package}\n")
    (site / "kernels_base" / "csrc" / "base.cpp").write_text("")
    monkeypatch.syspath_prepend(str(site))
    return site


def declare_op(package="kernels_base", prefix="sycl", base=OpBuilder, **more):
    return kernel_root(prefix, package, **more)(
        type("Declared", (base,), {"name": "declared", "sources": ["both.cpp"]})
    )


def test_a_decorator_adds_both_methods_for_any_prefix(packages):
    cls = declare_op(prefix="quick", folder="csrc")
    base = str(packages / "kernels_base" / "csrc")
    assert cls.quick_kernel_path("both.cpp") == f"{base}/both.cpp"
    assert cls().quick_kernel_include("includes") == f"{base}/includes"
    assert cls.quick_kernel_path(f"{base}/base.cpp") == f"{base}/base.cpp"
    assert type("Sub", (cls,), {})().quick_kernel_path("./includes/../base.cpp") == f"{base}/base.cpp"
    assert not hasattr(OpBuilder, "quick_kernel_path") and OpBuilder.kernel_roots == ()


def test_a_whole_package_can_be_a_root(packages):
    """Kernels of Intel's extension for PyTorch are declared this way."""
    cls = declare_op()
    assert cls.sycl_kernel_path("csrc/both.cpp") == str(packages / "kernels_base" / "csrc" / "both.cpp")
    assert cls.sycl_kernel_include("csrc/includes") == str(packages / "kernels_base" / "csrc" / "includes")


def test_opforges_kernels_can_be_a_root_of_another_prefix():
    cls = declare_op("opforge.ops", prefix="cuda", folder="csrc")
    assert cls.cuda_kernel_path("adam/adam.cpp") == os.path.join(kernel_roots.OPFORGE.path, "adam", "adam.cpp")


def test_a_later_root_overrides_an_earlier_one_of_its_prefix(packages):
    base = declare_op(folder="csrc")
    over = declare_op("kernels_mine", base=base, folder="csrc")
    mine = str(packages / "kernels_mine" / "csrc")
    assert over.sycl_kernel_path("both.cpp") == f"{mine}/both.cpp"
    assert over.sycl_kernel_path("base.cpp") == str(packages / "kernels_base" / "csrc" / "base.cpp")
    assert base.sycl_kernel_path("both.cpp") != f"{mine}/both.cpp"
    assert [root.name for root in over.kernel_roots] == ["sycl:kernels_mine/csrc", "sycl:kernels_base/csrc"]
    (source,) = kernel_roots.locate("op", over.sources, over().spec().roots[1:])
    assert source == ("sycl:kernels_mine/csrc", "both.cpp")


def test_a_prefix_searches_only_its_own_roots(packages):
    both = declare_op("kernels_mine", prefix="cuda", base=declare_op(folder="csrc"), folder="csrc")
    assert both.sycl_kernel_path("both.cpp") == str(packages / "kernels_base" / "csrc" / "both.cpp")
    assert both.cuda_kernel_path("both.cpp") == str(packages / "kernels_mine" / "csrc" / "both.cpp")
    with pytest.raises(SourceNotFoundError):
        both.cuda_kernel_path("base.cpp")


def test_the_error_for_a_missing_source_lists_every_root(packages):
    over = declare_op("kernels_mine", base=declare_op())
    with pytest.raises(SourceNotFoundError) as caught:
        over().sycl_kernel_path("csrc/none.cpp")
    assert str(caught.value) == (
        "The op 'declared' names 'csrc/none.cpp', which does not exist. Looked in:"
        f"\n  - {packages}/kernels_mine\n  - {packages}/kernels_base"
        "\nCorrect the name, or add the folder that holds it."
    )


@pytest.mark.parametrize("package", ["no_such_package", "no_such_package.inner"])
def test_the_error_for_a_missing_package_names_it(package):
    with pytest.raises(SourceNotFoundError, match=f"the package {package} is not installed"):
        declare_op(package)


def test_the_error_for_a_missing_folder_names_it(packages):
    with pytest.raises(SourceNotFoundError, match=r"kernels_base/nothing.*\n.*site/kernels_base"):
        declare_op(folder="nothing")


@pytest.mark.parametrize("prefix", ["", "a b", "a-b", "own", "include", "includes"])
def test_an_invalid_or_reserved_prefix_is_an_error(packages, prefix):
    with pytest.raises(BuilderError, match=r"Declared: the kernel root's prefix is .* Expected another word, such as"):
        declare_op(prefix=prefix)


def test_declaring_the_same_root_twice_is_an_error(packages):
    with pytest.raises(BuilderError, match="it has the kernel root 'sycl:kernels_base' already"):
        declare_op(base=declare_op())


def test_two_roots_of_the_same_name_are_an_error(packages):
    both = [kernel_roots.KernelRoot("one", str(packages / name)) for name in ("kernels_base", "kernels_mine")]
    cls = type("Twice", (OpBuilder,), {"name": "twice", "sources": ["csrc/both.cpp"], "kernel_roots": both})
    with pytest.raises(BuilderError, match=r"are both its kernel root 'one'\. Give each root a different name"):
        describe(cls().spec())


def test_the_path_of_a_root_is_not_part_of_a_key(packages, tmp_path, monkeypatch):
    """An op has the same description and the same include folders in its plan if the package is installed elsewhere."""
    results = []
    for site in (packages, tmp_path / "elsewhere"):
        if site != packages:
            os.rename(packages, site)
            monkeypatch.syspath_prepend(str(site))
        base = declare_op()
        cls = type(
            "WithPaths",
            (base,),
            {
                "sources": [base.sycl_kernel_path("csrc/both.cpp")],
                "include_dirs": [base.sycl_kernel_include("csrc/includes")],
                "abi": "c",
            },
        )
        builder = cls()
        paths = root_paths(builder.spec())
        assert paths["sycl:kernels_base"] == str(site / "kernels_base")
        # The include folder is in a kernel root, so it is no root of its own.
        assert not any(name.startswith("include") for name in paths)
        results.append((describe(builder.spec()), planner.include_folders(builder.spec(), builder.spec().include_dirs)))
    assert results[0] == results[1]
    assert str(tmp_path) not in repr(results)


def test_kernel_root_is_public_and_does_not_import_torch():
    assert opforge.kernel_root is kernel_root
    code = "import sys, opforge; opforge.kernel_root; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=child_processes.environment(), capture_output=True, text=True
    )
    assert done.stdout.strip() == "False", done.stderr
