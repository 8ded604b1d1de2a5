"""Triton ops are compiled ahead of time without a GPU: hits, keys, errors of kernels, declarations and targets."""

from __future__ import annotations

import os
import py_compile
import sys
import sysconfig
import venv

import pytest
from support import text_files
from support.devices import vendor_modules
from support.gpu import triton_parts

from opforge.accelerator import use_accelerator
from opforge.builders.declaration.description import description_key
from opforge.builders.inspection.examine import examine
from opforge.builders.planner import make_plan
from opforge.builders.toolchains import find_toolchain
from opforge.builders.triton import Kernel
from opforge.errors import BuilderError, CompileError, OpIncompatibleError

pytestmark = [pytest.mark.compile, triton_parts.needs_triton]

AUTOTUNED = '@triton.autotune([triton.Config({"BLOCK": 64})], key=["count"])\n@triton.jit'


def test_an_unchanged_op_is_a_hit_and_an_edited_imported_file_is_not(tmp_path):
    builder = triton_parts.scale_op(tmp_path / "op")
    first = builder("cuda:sm_80").build()
    shown = [(kernel["name"], kernel["launched"]) for kernel in examine(first.library)["kernels"]]
    assert sorted(shown) == [("scale", kernel.name) for kernel in sorted(builder.kernels)]
    assert builder("cuda:sm_80").build().origin == "cache"
    text_files.write(tmp_path / "op", "factor.py", triton_parts.FACTOR.replace("value * by", "value + by"))
    second = builder("cuda:sm_80").build()
    assert second.origin == "built" and second.key != first.key
    inputs = {path for root, path, *_ in second.build()["inputs"]["files"] if root == "own"}
    assert inputs == {"kernels.py", "factor.py"}


@pytest.mark.parametrize("at", ["op/factor.py", "other/factor.py"], ids=["of its package", "of another package"])
def test_each_environment_gets_the_code_of_the_files_that_it_imports(tmp_path, monkeypatch, at):
    """Packages that are installed in place, from two checkouts, in two environments with one store."""
    text = triton_parts.KERNELS.replace("from .factor", f"from {os.path.dirname(at)}.factor")
    keys = []
    for name, change in (("here", "value * by"), ("there", "value + by"), ("here", "value * by")):
        checkout = tmp_path / name
        builder = triton_parts.scale_op((checkout if at.startswith("op") else tmp_path) / "op/kernels")
        builder.kernels = builder.kernels[:1]
        for file in ("op/kernels/kernels.py", "op/kernels/__init__.py", "op/__init__.py", "other/__init__.py"):
            where = checkout if at.startswith("op") or file.startswith("other") else tmp_path
            text_files.write(where, file, text if file.endswith("kernels.py") else "")
        text_files.write(checkout, at, triton_parts.FACTOR.replace("value * by", change))
        with monkeypatch.context() as inside:
            use_environment(inside, tmp_path / f"environment_{name}", checkout)
            keys.append(builder("cuda:compute_80").build().record["sha256"])
    assert keys[0] == keys[2] != keys[1]


def use_environment(patch, folder, checkout):
    """Makes this process seem to run in a new environment, with the packages of a checkout and those of this one."""
    original = sysconfig.get_path
    venv.create(folder)
    site = original("purelib", vars={"base": str(folder)})
    text_files.write(site, "checkout.pth", f"{checkout}\n{original('purelib')}\n")
    patch.setattr(sys, "executable", str(folder / "bin/python"))
    patch.setattr(sysconfig, "get_path", lambda name, *rest: site if name == "purelib" else original(name, *rest))


def test_bytecode_of_an_older_source_is_not_compiled(tmp_path):
    """Python would take it for a source of the same size and second."""
    builder = triton_parts.scale_op(tmp_path / "op")
    path, times = tmp_path / "op" / "factor.py", (10**9, 10**9)
    os.utime(path, times)
    py_compile.compile(str(path), doraise=True)
    text_files.write(tmp_path / "op", "factor.py", triton_parts.FACTOR.replace("import triton", "import trixon"))
    os.utime(path, times)
    with pytest.raises(CompileError, match="trixon"):
        builder("cuda:sm_80").build()


def test_the_library_does_not_depend_on_the_folder(tmp_path, monkeypatch):
    """Nor does the name of a function that is not inlined, which is in its PTX."""
    results, call = [], "times(tl.load(x + at, mask=here), by)"
    for name in ("here", "there"):
        monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / f"store_{name}"))
        builder = triton_parts.scale_op(tmp_path / name)
        kernels = triton_parts.KERNELS.replace(call, "tl.load(x + at, mask=here) * times(by, by)")
        text_files.write(tmp_path / name, "kernels.py", kernels)
        factor = triton_parts.FACTOR.replace("@triton.jit", "@triton.jit(noinline=True)")
        text_files.write(tmp_path / name, "factor.py", factor)
        entry = builder("cuda:compute_80").build()
        results.append((entry.key, entry.record["sha256"]))
    assert results[0] == results[1]


def test_a_kernels_declaration_is_part_of_the_keys(tmp_path):
    builder = triton_parts.scale_op(tmp_path / "op")
    original = builder("cuda:sm_80")
    plan = make_plan(original.spec(), find_toolchain(original.spec(), _store()))
    description = description_key(original.spec())
    kernel = builder.kernels[0]
    for other in (
        kernel._replace(warps=8),
        kernel._replace(stages=3),
        kernel._replace(constants={"BLOCK": 2048}),
        kernel._replace(arguments={**kernel.arguments, "by": "fp64"}),
    ):
        builder.kernels = [other, *builder.kernels[1:]]
        changed = builder("cuda:sm_80")
        assert make_plan(changed.spec(), find_toolchain(changed.spec(), _store())).key != plan.key
        assert description_key(changed.spec()) != description


def _store():
    from opforge.cache.current_store import current_store

    return current_store()


def test_an_error_in_a_kernel_names_its_file_and_line(tmp_path):
    builder = triton_parts.scale_op(tmp_path / "op")
    tuned = triton_parts.KERNELS.replace("@triton.jit", AUTOTUNED)
    text_files.write(tmp_path / "op", "kernels.py", tuned.replace("tl.load(x", "tl.lode(x"))
    with pytest.raises(CompileError) as caught:
        builder("cuda:sm_80").build()
    assert "kernels.py:12: error: " in str(caught.value) and "lode" in str(caught.value)
    assert ">   12 |     tl.store(y + at, times(tl.lode(x" in str(caught.value)
    text_files.write(tmp_path / "op", "kernels.py", triton_parts.KERNELS)
    text_files.write(tmp_path / "op", "factor.py", triton_parts.FACTOR.replace("value * by", "value * bye"))
    with pytest.raises(CompileError, match=r"factor\.py:6: error: .*bye is not defined"):
        builder("cuda:sm_80").build()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"function": "half"}, "there is no @triton.jit function 'half' in it"),
        ({"constants": {}}, "the kernel's declaration and the function differ in: BLOCK"),
        (
            {"arguments": {"y": "*fp32", "x": "*fp32", "count": "i64", "by": "fp32"}},
            "the run-time arguments must be declared in the function's order: x, y, count, by",
        ),
    ],
)
def test_a_declaration_that_does_not_match_its_function_is_rejected(tmp_path, change, message):
    builder = triton_parts.scale_op(tmp_path / "op")
    builder.kernels = [builder.kernels[0]._replace(**change)]
    with pytest.raises(CompileError, match=r"kernels\.py:[0-9]+: error") as caught:
        builder("cuda:sm_80").build()
    assert message in str(caught.value)


def test_an_invalid_declaration_is_rejected_by_the_build(tmp_path):
    builder = triton_parts.scale_op(tmp_path / "op")
    builder.kernels = [builder.kernels[0]._replace(warps=3)]
    with pytest.raises(BuilderError, match=r"warps=3. Expected a power of two"):
        builder("cuda:sm_80").build()


def test_targets_without_support_in_triton_are_rejected(tmp_path):
    builder = triton_parts.scale_op(tmp_path / "op")
    for target, reason in (
        ("cuda:sm_70", "Triton compiles for sm_75 and later, not for sm_70"),
        ("cuda:sm_80+compute_90", "Triton writes PTX for later devices up to compute_89, not compute_90"),
    ):
        with pytest.raises(OpIncompatibleError) as caught:
            builder(target).build()
        assert reason in str(caught.value)


@pytest.mark.long("compiles for 20 s what test_compiled_kernels.py compiles for another architecture")
def test_one_signature_of_every_kernel_of_ours_compiles_for_each_kind_of_target(tmp_path):
    """Only kernels for bfloat16, which use most of the compiler: all kernels would take a minute."""
    import importlib

    from opforge.builders.triton import TRITON_BUILDERS, TritonOpBuilder
    from opforge.builders.triton_op_builder.builder import KERNELS

    chosen = {}
    for import_path in TRITON_BUILDERS.values():
        module, _, attribute = import_path.partition(":")
        builder = getattr(importlib.import_module(module), attribute)
        for kernel in builder.kernels:
            if "bf16" in kernel.name or kernel.name == "trust":
                constants = {name: value for name, value in kernel.constants.items() if value is None or value is True}
                chosen.setdefault((builder.name, kernel.function, str(constants)), kernel)
    kernels = [kernel._replace(name=f"k{number}") for number, kernel in enumerate(chosen.values())]

    class Every(TritonOpBuilder):
        name = "every"
        folder = KERNELS.path

    Every.kernels = kernels
    entry = Every("cuda:sm_90").build()
    assert len(kernels) > 25 and entry.record["exports"] == ["opforge_find", "opforge_kernels", "opforge_launch"]
    compiled = examine(entry.library)["kernels"]
    assert len(compiled) == len(kernels) and [kernel for kernel in compiled if kernel["spills"]] == []
    Every.kernels = kernels[::8]
    assert os.path.getsize(Every("hip:gfx942").build().library) > 4096


def test_a_source_may_be_an_absolute_path_and_its_function_below_triton_autotune(tmp_path):
    builder = triton_parts.scale_op(tmp_path / "op")
    text_files.write(tmp_path / "op", "kernels.py", triton_parts.KERNELS.replace("@triton.jit", AUTOTUNED))
    builder.kernels = [builder.kernels[0]._replace(source=str(tmp_path / "op" / "kernels.py"))]
    assert [image["kernel"] for image in builder("cuda:sm_80").load().kernels.images()] == ["scale_512"]


def test_a_damaged_library_is_built_again(tmp_path):
    builder = triton_parts.scale_op(tmp_path / "op")
    entry = builder("cuda:sm_80").build()
    os.chmod(entry.library, 0o700)
    with open(entry.library, "r+b") as file:
        file.seek(2000)
        file.write(b"\xff" * 16)
    assert builder("cuda:sm_80").load().origin == "built"


def test_the_default_target_is_that_of_the_accelerators_gpus(tmp_path, monkeypatch):
    builder = triton_parts.scale_op(tmp_path / "op")
    accelerator, device = vendor_modules.install("cuda", monkeypatch, tmp_path)
    device.capability = (8, 6)
    with use_accelerator(accelerator):
        assert str(builder().target) == "cuda:sm_86"
    with use_accelerator("cpu"):
        assert str(builder("cuda:sm_80").target) == "cuda:sm_80"


PRODUCT = """\
import triton
import triton.language as tl


@triton.jit
def product(x, y, SIZE: tl.constexpr):
    row, column = tl.arange(0, 64), tl.arange(0, SIZE)
    left = tl.load(x + row[:, None] * SIZE + column[None, :])
    right = tl.load(y + column[:, None] * 64 + row[None, :])
    tl.store(x + row[:, None] * 64 + row[None, :], tl.dot(left, right).to(tl.float16))
"""


def test_a_kernel_that_needs_more_shared_memory_than_an_architecture_has_is_left_out_with_a_warning(
    tmp_path, warnings_of_the_cache
):
    builder = triton_parts.scale_op(tmp_path / "op")
    text_files.write(tmp_path / "op", "product.py", PRODUCT)
    pointers = {"x": "*fp16:16", "y": "*fp16:16"}
    large = Kernel("product", "product.py", "product", pointers, {"SIZE": 512}, configs=[{"SIZE": 1024}])
    builder.kernels = [large]
    op = builder("cuda:sm_89").load()
    (message,) = warnings_of_the_cache()
    assert "product is left out for sm_89: it needs " in message
    assert "bytes of shared memory a block, and sm_89 has 101376; declare smaller tiles or fewer stages" in message
    assert op.kernels.images() == [], "a library without any kernel can be linked, and says what is missing"
