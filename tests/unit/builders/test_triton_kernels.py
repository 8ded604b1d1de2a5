"""Triton kernels as data: declarations and their checks, the kernel for a row, the target that Triton compiles for."""

from __future__ import annotations

import importlib
import struct
import types

import pytest
from support import text_files

from opforge.accelerator.target import Target
from opforge.builders.declaration.description import describe
from opforge.builders.toolchains import triton
from opforge.builders.toolchains.triton import compiled_archs
from opforge.builders.toolchains.triton_worker import BYTES, hidden_parameters, unsupported_feature
from opforge.builders.triton import TRITON_BUILDERS, Kernel, TritonOpBuilder
from opforge.builders.triton_op_builder.kernel import SCALARS, check_kernels
from opforge.builders.triton_op_builder.launching import TritonOp
from opforge.builders.triton_op_builder.rows import BACKWARD, FORWARD, size_for
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout
from opforge.errors import BuilderError

KERNEL = Kernel("scale", "k.py", "scale", {"x": "*bf16:16", "count": "i64", "by": "fp32"}, {"BLOCK": 64})


def builders() -> list[type[TritonOpBuilder]]:
    classes = []
    for import_path in TRITON_BUILDERS.values():
        module, _, name = import_path.partition(":")
        classes.append(getattr(importlib.import_module(module), name))
    return classes


def test_every_declared_kernel_is_valid_and_every_builder_has_its_own_name():
    names = []
    for builder in builders():
        check_kernels(builder.__name__, builder.kernels)
        assert builder.name.startswith("triton_") and builder.python_functions.startswith("opforge.ops.")
        names.append(builder.name)
    assert len(names) == len(set(names)) == len(TRITON_BUILDERS)


def test_arguments_are_packed_into_slots_of_eight_bytes():
    packed = struct.pack(KERNEL.packing(), 4096, 7, 0.5)
    assert packed == struct.pack("<QqI4x", 4096, 7, 0x3F000000)
    every = KERNEL._replace(arguments={"a": "i1", "b": "i32", "c": "i64", "d": "fp32", "e": "fp64", "f": "*i8"})
    assert struct.calcsize(every.packing()) == 8 * len(every.arguments)


def test_the_text_of_a_kernel_contains_everything_that_determines_its_code():
    texts = {
        KERNEL.text(),
        KERNEL._replace(function="other").text(),
        KERNEL._replace(arguments={**KERNEL.arguments, "by": "fp64"}).text(),
        KERNEL._replace(arguments=dict(reversed(KERNEL.arguments.items()))).text(),
        KERNEL._replace(constants={"BLOCK": 128}).text(),
        KERNEL._replace(constants={"BLOCK": None}).text(),
        KERNEL._replace(warps=8).text(),
        KERNEL._replace(stages=2).text(),
        KERNEL._replace(source="l.py").text(),
    }
    assert len(texts) == 9
    assert KERNEL.text() == KERNEL._replace(arguments=dict(KERNEL.arguments)).text()


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        ([KERNEL, KERNEL], "two kernels are named 'scale'. Give each a different name"),
        ([KERNEL._replace(arguments={"x": "*bf17"})], "scale: x has the type '*bf17'. Expected '*' and one of i1, i8"),
        ([KERNEL._replace(arguments={"x": "bf16"})], "or one of i1, i32, i64, fp32, fp64; then optionally ':16'"),
        ([KERNEL._replace(arguments={"x": "i32:8"})], "scale: x has the type 'i32:8'"),
        ([KERNEL._replace(warps=12)], "scale: warps=12. Expected a power of two, such as 4"),
        ([KERNEL._replace(warps="4")], "scale: warps='4'. Expected a power of two, such as 4"),
        ([KERNEL._replace(arguments={"x": int})], "scale: x has the type <class 'int'>. Expected"),
        ([KERNEL._replace(name="scale fp32")], "a kernel is named 'scale fp32'. Expected letters, digits, '_', '-'"),
        ([KERNEL._replace(name="scale[fp32]")], "a kernel is named 'scale[fp32]'"),  # it would be taken for a config
        (
            [KERNEL._replace(constants={"B": 1j})],
            "scale: B is 1j. Expected a number, a bool, a text or None; of a dtype",
        ),
    ],
)
def test_an_invalid_declaration_is_rejected(kernels, message):
    with pytest.raises(BuilderError) as caught:
        check_kernels("ScaleBuilder", kernels)
    assert message in str(caught.value)


def test_a_builder_without_kernels_is_rejected():
    class Empty(TritonOpBuilder):
        name = "empty"

    for kernels in ((), (kernel for kernel in [KERNEL])):
        Empty.kernels = kernels
        with pytest.raises(BuilderError, match="it declares no kernels"):
            describe(Empty("cuda:sm_90").spec())


def test_a_row_takes_the_smallest_block_that_holds_it():
    chosen = [size_for(FORWARD, columns, True).name for columns in (1, 1024, 1025, 4096, 16384, 16385, 1 << 17)]
    assert chosen == ["1024", "1024", "4096", "4096", "16384", "long", "long"]
    assert size_for(BACKWARD, 8193, True).name == "long"
    assert {size_for(FORWARD, columns, False).name for columns in (1, 5000, 1 << 17)} == {"any"}


@pytest.mark.parametrize(
    ("target", "compiled"),
    [
        ("cuda:sm_80+sm_90+sm_100", "cuda:sm_80+sm_90a+sm_100a"),
        ("cuda:sm_86", "cuda:sm_86"),
        ("cuda:sm_100f", "cuda:sm_100a"),
        ("cuda:sm_80+sm_90+ptx", "cuda:sm_80+sm_90a+ptx"),
        ("cuda:sm_90+ptx", "cuda:sm_90a+compute_80"),
        ("hip:gfx90a+gfx942", "hip:gfx90a+gfx942"),
    ],
)
def test_a_target_names_what_triton_compiles_for(target, compiled):
    builder = builders()[0](target)
    assert str(builder.target) == compiled
    assert Target.parse(compiled) == builder.target
    if target.startswith("cuda"):
        assert compiled_archs(builder.target.arch) == builder.target.arch


def test_kernel_files_are_never_imported_to_declare_or_to_describe_an_op():
    import sys

    for builder in builders():
        describe(builder("cuda:sm_90").spec())
    assert not [name for name in sys.modules if name.startswith("opforge.ops.triton.kernels")]


@pytest.mark.parametrize(
    ("metadata", "feature"),
    [
        ({}, ""),
        ({"num_ctas": 1, "launch_pdl": False, "global_scratch_size": 0}, ""),
        ({"num_ctas": 2}, "clusters of 2 blocks"),
        ({"launch_cooperative_grid": True}, "launch_cooperative_grid=True"),
        ({"launch_pdl": True}, "launch_pdl=True"),
        ({"global_scratch_size": 128}, "global_scratch_size=128"),
    ],
)
def test_a_kernel_that_needs_more_than_a_plain_launch_is_rejected(metadata, feature):
    assert unsupported_feature(types.SimpleNamespace(**metadata)) == feature


def test_code_with_other_parameters_than_declared_is_rejected():
    parameters = [
        ".u64 .ptr .global .align 1 f_param_0",
        ".u8 f_param_1",
        ".f32 f_param_2",
        ".u64 .ptr .global f_param_3",
    ]
    ptx = (
        ".visible .entry f(\n"
        + ",\n".join(f"\t.param {parameter}" for parameter in parameters)
        + "\n)\n.reqntid 128\n{"
    )
    assert hidden_parameters(ptx, ["*fp32:16", "i1", "fp32"]) == 1
    assert hidden_parameters(ptx, ["*fp32:16", "i1", "fp32", "i64"]) == 0
    for kinds in (["*fp32", "i1"], ["*fp32", "i32", "fp32"], ["*fp32", "i1", "fp32", "*i8", "i64"]):
        with pytest.raises(ValueError, match=r"its code takes parameters of \[8, 1, 4, 8\] bytes, and the launcher"):
            hidden_parameters(ptx, kinds)
    assert BYTES.keys() == SCALARS.keys()


def test_a_triton_ops_functions_come_before_its_attributes():
    library = types.SimpleNamespace(__file__="/the/library.so")
    op = TritonOp("scaled", object(), {"path": lambda: "a function"}, "built", library)
    assert (op.path(), op.origin, op.library, op.__file__) == ("a function", "built", library, "/the/library.so")
    assert repr(op) == "<op 'scaled' (built) from /the/library.so\n  path()>"
    assert op.__doc__.startswith("Functions:\n    path()\n")
    assert {"path", "origin", "library"} <= {*dir(op)}
    with pytest.raises(AttributeError, match="the op 'scaled' has no function 'result'; it has: path"):
        op.result


CODE = ("__init__.py", "compiler/code.py", "_C/libtriton.so", "backends/nvidia/lib/libdevice.bc", "backends/bin/ptxas")


def test_each_file_that_decides_what_a_triton_without_a_wheels_list_compiles_is_in_its_identity(tmp_path, monkeypatch):
    monkeypatch.setattr(triton, "find", lambda: str(tmp_path))
    layout, host = Layout(str(tmp_path / "store")), types.SimpleNamespace(identity=lambda: ())

    def contents():
        return dict(triton.TritonToolchain(layout, Disk(), host).identity())["triton contents"]

    for name in (*CODE, "README.md"):
        text_files.write(tmp_path / "triton", name, "")
    seen = [contents()]
    for name in CODE:
        text_files.write(tmp_path / "triton", name, "changed")
        seen.append(contents())
    assert len({*seen}) == len(seen)
    text_files.write(tmp_path / "triton", "README.md", "changed")
    assert contents() == seen[-1]
