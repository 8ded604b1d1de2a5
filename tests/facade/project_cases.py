"""Calls of public projects' libraries: `python project_cases.py PROJECT FOLDER OUT` records their outcomes.

It needs nothing but torch, so that it runs in an environment with another torch as well.
"""

# Each function is called before its loop goes on.
# ruff: noqa: B023
import importlib.util
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch

sys.path.insert(0, str(Path(__file__).parent))
from outcomes import Outcome, of_call, of_gradients

Cases = Iterator[tuple[str, Outcome]]


def module(folder: Path, name: str) -> ModuleType:
    """Returns the extension module that was built as `name`."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.so")
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def scatter(folder: Path) -> Cases:
    for name in ("_version_cpu", "_scatter_cpu", "_segment_csr_cpu", "_segment_coo_cpu"):
        torch.ops.load_library(str(folder / f"{name}.so"))
    ops = torch.ops.torch_scatter
    yield "cuda_version", of_call(ops.cuda_version)
    for dtype, dim in itertools.product(
        (torch.float, torch.double, torch.half, torch.bfloat16, torch.int, torch.long), (0, 1, -1)
    ):
        source = (torch.randn(6, 5) * 4).to(dtype)
        index = torch.tensor([0, 2, 1, 2, 0, 3])[:, None].expand(6, 5) if dim == 0 else torch.randint(0, 4, (6, 5))
        for name in ("sum", "mul", "mean", "min", "max"):
            op = getattr(ops, f"scatter_{name}")
            for size in (None, 5):
                yield f"scatter_{name} {dtype} {dim} {size}", of_call(lambda: op(source, index, dim, None, size))
            yield (
                f"scatter_{name} out {dtype} {dim}",
                of_call(lambda: op(source, index, dim, torch.ones(6, 5).to(dtype), None)),
            )
            if dtype.is_floating_point:
                yield (
                    f"gradient of scatter_{name} {dtype} {dim}",
                    of_gradients(lambda x: op(x, index, dim, None, None), source),
                )
    pointers, sorted_index = torch.tensor([0, 2, 5, 5, 6]), torch.tensor([0, 0, 1, 1, 1, 3])
    for dtype in (torch.float, torch.double, torch.half, torch.long):
        source = (torch.randn(6, 3) * 4).to(dtype)
        for name in ("sum", "mean", "min", "max"):
            csr, coo = getattr(ops, f"segment_{name}_csr"), getattr(ops, f"segment_{name}_coo")
            yield f"segment_{name}_csr {dtype}", of_call(lambda: csr(source, pointers, None))
            yield f"segment_{name}_coo {dtype}", of_call(lambda: coo(source, sorted_index, None, 5))
            if dtype.is_floating_point:
                yield f"gradient of segment_{name}_csr {dtype}", of_gradients(lambda x: csr(x, pointers, None), source)
                yield (
                    f"gradient of segment_{name}_coo {dtype}",
                    of_gradients(lambda x: coo(x, sorted_index, None, 4), source),
                )
        yield f"gather_csr {dtype}", of_call(lambda: ops.gather_csr(source[:4], pointers, None))
        yield f"gather_coo {dtype}", of_call(lambda: ops.gather_coo(source[:4], sorted_index, None))
    yield "no elements", of_call(lambda: ops.scatter_sum(torch.ones(0, 3), torch.ones(0, 3).long(), 0, None, 4))
    x = torch.randn(4, 3, dtype=torch.double, requires_grad=True)
    index = torch.tensor([0, 1, 0, 2])[:, None].expand(4, 3)
    yield "gradcheck", of_call(lambda: torch.autograd.gradcheck(lambda v: ops.scatter_mean(v, index, 0, None, None), x))
    yield (
        "gradgradcheck",
        of_call(lambda: torch.autograd.gradgradcheck(lambda v: ops.scatter_sum(v, index, 0, None, None), x)),
    )
    yield "script", of_call(lambda: torch.jit.script(lambda_of_scatter)(x, index))


def lambda_of_scatter(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.ops.torch_scatter.scatter_sum(x, index, 0, None, None)


def spline_conv(folder: Path) -> Cases:
    for name in ("_version_cpu", "_basis_cpu", "_weighting_cpu"):
        torch.ops.load_library(str(folder / f"{name}.so"))
    ops = torch.ops.torch_spline_conv
    for dtype, degree in itertools.product((torch.float, torch.double), (1, 2, 3)):
        pseudo = torch.rand(7, 2).to(dtype)
        size, is_open = torch.tensor([5, 5]), torch.tensor([1, 0], dtype=torch.uint8)
        yield f"basis {dtype} {degree}", of_call(lambda: ops.spline_basis(pseudo, size, is_open, degree))
        yield (
            f"gradient of basis {dtype} {degree}",
            of_gradients(lambda p: ops.spline_basis(p, size, is_open, degree), pseudo),
        )
        basis, weight_index = ops.spline_basis(pseudo, size, is_open, degree)
        x, weight = torch.randn(7, 4).to(dtype), torch.randn(25, 4, 3).to(dtype)
        yield f"weighting {dtype} {degree}", of_call(lambda: ops.spline_weighting(x, weight, basis, weight_index))
        yield (
            f"gradient of weighting {dtype} {degree}",
            of_gradients(lambda a, b, c: ops.spline_weighting(a, b, c, weight_index), x, weight, basis),
        )


def sort(folder: Path) -> Cases:
    built = module(folder, "isotonic_cpu")
    for dtype in (torch.float, torch.double, torch.half):
        y, w = torch.randn(3, 8).to(dtype), torch.randn(3, 8).sort(-1, True).values.to(dtype)
        s = y.float().softmax(-1).to(dtype)
        yield f"isotonic_l2 {dtype}", of_call(lambda: built.isotonic_l2(y))
        yield f"isotonic_kl {dtype}", of_call(lambda: built.isotonic_kl(y, w))
        yield f"isotonic_l2_backward {dtype}", of_call(lambda: built.isotonic_l2_backward(s, built.isotonic_l2(y), y))
        yield (
            f"isotonic_kl_backward {dtype}",
            of_call(lambda: built.isotonic_kl_backward(s, built.isotonic_kl(s, w), w, y)),
        )
    for arguments in ((None,), (1,), (), (torch.ones(3),), (torch.ones(2, 3, dtype=torch.int),)):
        yield f"isotonic_l2{arguments}", of_call(lambda: built.isotonic_l2(*arguments))
    yield "documentation", of_call(lambda: built.isotonic_l2.__doc__)


def lpc(folder: Path) -> Cases:
    torch.ops.load_library(str(folder / "_C.so"))
    ops = torch.ops.torchlpc
    for dtype in (torch.float, torch.double, torch.complex64, torch.complex128):
        x, a, zi = (
            torch.randn(2, 9, dtype=dtype),
            torch.randn(2, 9, 3, dtype=dtype) * 0.2,
            torch.randn(2, 3, dtype=dtype),
        )
        yield f"lpc {dtype}", of_call(lambda: ops.lpc(x, a, zi))
        yield f"scan {dtype}", of_call(lambda: ops.scan(x, torch.rand(2, 9).to(dtype), torch.randn(2, dtype=dtype)))
    yield "half", of_call(lambda: ops.lpc(torch.ones(2, 3).half(), torch.ones(2, 3, 1).half(), torch.ones(2, 1).half()))
    yield "a wrong shape", of_call(lambda: ops.lpc(torch.ones(2, 3), torch.ones(2, 1), torch.ones(2, 1)))


def ac(folder: Path) -> Cases:
    built = module(folder, "torchac_backend")
    rows = torch.tensor([0, 9000, 20000, 41000, 0]).to(torch.int16)
    cdf = rows.repeat(40, 1)
    symbols = torch.randint(0, 4, (40,), dtype=torch.int16)
    yield "encode", of_call(lambda: built.encode_cdf(cdf, symbols))
    stream = built.encode_cdf(cdf, symbols)
    yield "decode", of_call(lambda: built.decode_cdf(cdf, stream))
    yield "round trip", of_call(lambda: torch.equal(built.decode_cdf(cdf, stream), symbols))
    yield "a wrong type", of_call(lambda: built.decode_cdf(cdf, 3))
    yield "none", of_call(lambda: built.encode_cdf(None, symbols))
    yield "documentation", of_call(lambda: built.encode_cdf.__doc__)


def fast_transformers(folder: Path) -> Cases:
    hashing, causal, local = (
        module(folder, "hash_cpu"),
        module(folder, "causal_product_cpu"),
        module(folder, "local_product_cpu"),
    )
    aggregate = module(folder, "aggregate_cpu")
    hashes = torch.zeros(10, dtype=torch.int64)
    hashing.compute_hashes(torch.randn(10, 6), torch.randn(8, 7), hashes)
    yield "hashes", of_call(lambda: hashes)
    q, k, v = torch.randn(2, 3, 8, 4), torch.randn(2, 3, 8, 4), torch.randn(2, 3, 8, 5)
    product = torch.zeros(2, 3, 8, 5)
    causal.causal_dot_product(q, k, v, product)
    yield "causal product", of_call(lambda: product)
    grads = [torch.zeros_like(part) for part in (q, k, v)]
    causal.causal_dot_backward(q, k, v, torch.ones_like(product), *grads)
    yield "causal product's gradients", of_call(lambda: grads)
    mask, lengths = torch.zeros(8, 8), torch.full((2,), 8, dtype=torch.int64)
    yield "local product", of_call(lambda: local.local_dot_product(q, k, mask, lengths, 4))
    weights = torch.rand(2, 3, 8, 4)
    yield "local average", of_call(lambda: local.local_weighted_average(weights, v))
    groups, factors = torch.randint(0, 3, (2, 3, 8), dtype=torch.int32), torch.rand(2, 3, 3)
    result = torch.zeros(2, 3, 3, 4)
    yield "aggregate", of_call(lambda: (aggregate.aggregate(q, groups, factors, result), result))
    yield "a wrong dtype", of_call(lambda: causal.causal_dot_product(q.double(), k, v, product))


def quantizers(folder: Path) -> Cases:
    built = module(folder, "quant_cpu")
    x = torch.cat(
        [torch.randn(3, 40) * 3, torch.tensor([0.0, -0.0, 1e-8, 1e8, torch.inf]).expand(3, 5)], 1
    ).contiguous()
    yield "names", of_call(lambda: sorted(name for name in dir(built) if not name.startswith("__")))
    for bits, fraction, symmetric in itertools.product((4, 8), (2, 5), (True, False)):
        arguments = (x, bits, fraction, symmetric)
        yield f"nearest mask {arguments[1:]}", of_call(lambda: built.fixed_point_quantize_nearest_mask(*arguments))
        for rounding in ("nearest", "stochastic"):
            function = getattr(built, f"fixed_point_quantize_{rounding}")
            torch.manual_seed(3)
            yield f"fixed {rounding} {arguments[1:]}", of_call(lambda: function(x, bits, fraction, True, symmetric))
        torch.manual_seed(3)
        yield (
            f"stochastic mask {arguments[1:]}",
            of_call(lambda: built.fixed_point_quantize_stochastic_mask(*arguments)),
        )
    for bits, dim in itertools.product((3, 8), (-1, 0, 1)):
        yield f"block {bits} {dim}", of_call(lambda: built.block_quantize_nearest(x[:, :40].contiguous(), bits, dim))
    for mantissa, exponent in itertools.product((2, 7), (2, 5)):
        yield f"float {mantissa} {exponent}", of_call(lambda: built.float_quantize_nearest(x, mantissa, exponent))
    for name in ("posit_quantize_nearest", "posit_sigmoid", "posit_tanh", "posit_tanh_enhanced"):
        if hasattr(built, name):
            for size, scale in itertools.product((6, 8, 16), (1.0, 2.0)):
                yield f"{name} {size} {scale}", of_call(lambda: getattr(built, name)(x, size, 1, scale))
    for name in ("new_format_quantize", "act_format_quantize"):
        if hasattr(built, name):
            yield name, of_call(lambda: getattr(built, name)(x, 1.5))
    if hasattr(built, "configurable_table_quantize"):
        table = torch.tensor([0.0, 0.25, 0.5, 1.0, 2.0])
        yield "table", of_call(lambda: built.configurable_table_quantize(x, table, 1.0))
    wrong = {
        "dtype": (x.double(), 8, 4, True),
        "strides": (x[:, ::2], 8, 4, True),
        "none": (None, 8, 4, True),
        "float": (x, 8.0, 4, True),
        "few": (x,),
    }
    for name, given in wrong.items():
        yield f"wrong: {name}", of_call(lambda: built.fixed_point_quantize_nearest_mask(*given))
    yield "documentation", of_call(lambda: built.fixed_point_quantize_nearest.__doc__)


def quadrangles(folder: Path) -> Cases:
    torch.ops.load_library(str(folder / "lanms.so"))
    merge = torch.ops.lanms.merge_quadrangle_n9
    yield "schema", of_call(lambda: str(merge.default._schema))
    square = torch.tensor([0, 0, 100, 0, 100, 100, 0, 100]).double()
    for count, threshold in itertools.product((1, 4, 12), (0.1, 0.3, 0.8)):
        boxes = square + (torch.rand(count, 1) * 80).round().double()
        given = torch.cat([boxes, torch.rand(count, 1).double() + 0.1], 1)
        # Its result is a copy of memory that its own vector holds until then.
        yield f"merge {count} {threshold}", of_call(lambda: merge(given, threshold))
    yield "a wrong shape", of_call(lambda: merge(square, 0.3))
    yield "a wrong dtype", of_call(lambda: merge(torch.ones(2, 9), 0.3))


def fake_quantizer(folder: Path) -> Cases:
    # Numbers with tensors, and the sum of a gradient over what was broadcast.
    library = module(folder, "quantized_functions_cpu")

    def backward(*arguments: object) -> list[object]:
        input_, low, span = library.Quantize_backward(*arguments)
        # Without a lower bound its gradient is memory that nothing has written.
        return [input_, low if arguments[-1] else (low.shape, low.dtype, low.requires_grad), span]

    for dtype, shape in itertools.product((torch.float, torch.double, torch.half), ((1,), (1, 3, 1), (4, 3, 5))):
        x = (torch.randn(4, 3, 5) * 3).to(dtype)
        low, span = (-torch.rand(shape) - 0.5).to(dtype), (torch.rand(shape) * 3 + 1).to(dtype)
        for levels in (2, 16, 256):
            yield (
                f"forward {dtype} {shape} {levels}",
                of_call(lambda: library.Quantize_forward(x, low, span, levels)),
            )
            for is_asymmetric in (False, True):
                grad, few = torch.randn(4, 3, 5).to(dtype), -levels // 2
                yield (
                    f"backward {dtype} {shape} {levels} {is_asymmetric}",
                    of_call(lambda: backward(grad, x, low, span, levels, few, levels - 1, is_asymmetric)),
                )
    yield "other dimensions", of_call(lambda: library.Quantize_forward(x, low[0], span, 4))
    yield "other sizes", of_call(lambda: library.Quantize_forward(x, low[:1], span, 4))
    yield "integers", of_call(lambda: library.Quantize_forward(x.long(), low.long(), span.long(), 4))


def projectors(folder: Path) -> Cases:
    torch.set_num_threads(1)  # threads add to one memory in any order
    torch.ops.load_library(str(folder / "torch_projectors.so"))
    ops = torch.ops.torch_projectors
    for name in ("project_2d", "backproject_2d", "project_3d_to_2d", "backproject_2d_to_3d"):
        yield f"schema {name}", of_call(lambda: str(getattr(ops, f"{name}_forw").default._schema))
    angle = torch.rand(1, 3) * 3
    flat = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).view(1, 3, 2, 2)
    solid = torch.linalg.qr(torch.randn(1, 3, 3, 3))[0]
    for dtype, way, cutoff in itertools.product((torch.float, torch.double), ("linear", "cubic"), (None, 3.0)):
        kind = torch.complex64 if dtype == torch.float else torch.complex128
        images = torch.randn(1, 3, 8, 5, dtype=kind)
        shifts, weights = torch.randn(1, 3, 2, dtype=dtype), torch.rand(1, 3, 8, 5, dtype=dtype)
        case = f"{dtype} {way} {cutoff}"
        for name, from_, rotations in (
            ("project_2d", torch.randn(1, 8, 5, dtype=kind), flat.to(dtype)),
            ("project_3d_to_2d", torch.randn(1, 8, 8, 5, dtype=kind), solid.to(dtype)),
        ):
            forw, back = getattr(ops, f"{name}_forw"), getattr(ops, f"{name}_back")
            for moved in (None, shifts):
                yield (
                    f"{name} {case} {moved is None}",
                    of_call(lambda: forw(from_, rotations, moved, [8, 8], way, 1.0, cutoff)),
                )
                yield (
                    f"{name} back {case} {moved is None}",
                    of_call(lambda: back(images, from_, rotations, moved, way, 1.0, cutoff)),
                )
        for name, rotations in (("backproject_2d", flat.to(dtype)), ("backproject_2d_to_3d", solid.to(dtype))):
            forw = getattr(ops, f"{name}_forw")
            for weight in (None, weights):
                yield (
                    f"{name} {case} {weight is None}",
                    of_call(lambda: forw(images, weight, rotations, shifts, way, 1.0, cutoff)),
                )
    yield (
        "an unknown interpolation",
        of_call(
            lambda: ops.project_2d_forw(
                torch.randn(1, 8, 5, dtype=kind), flat.to(dtype), None, [8, 8], "none", 1.0, None
            )
        ),
    )


def mutual_information(folder: Path) -> Cases:
    m = module(folder, "_fast_rnnt")
    yield "with_cuda", of_call(m.with_cuda)
    bounds = torch.tensor([[0, 0, 3, 4], [1, 1, 2, 3]])
    for dtype, columns, some in itertools.product((torch.float, torch.double), (4, 5), (None, bounds)):
        px, py = torch.randn(2, 3, columns, dtype=dtype), torch.randn(2, 4, 4, dtype=dtype)
        case, p = f"{dtype} {columns} {some is None}", torch.zeros(2, 4, 5, dtype=dtype)
        yield f"forward {case}", of_call(lambda: (m.mutual_information_forward(px, py, some, p), p))
        yield (
            f"backward {case}",
            of_call(lambda: m.mutual_information_backward(px, py, some, p, torch.ones(2, dtype=dtype))),
        )
    yield "flat", of_call(lambda: m.mutual_information_forward(px[0], py, None, p))
    yield "other bounds", of_call(lambda: m.mutual_information_forward(px, py, bounds[:, :2], p))
    yield "integers", of_call(lambda: m.mutual_information_forward(px.long(), py.long(), None, p.long()))
    yield "two dtypes", of_call(lambda: m.mutual_information_forward(px, py.float(), None, p))
    yield "no tensor", of_call(lambda: m.mutual_information_forward(None, py, None, p))


PROJECTS = {
    "fast_rnnt": mutual_information,
    "nncf": fake_quantizer,
    "torch_projectors": projectors,
    "qtorch": quantizers,
    "qtorch_plus": quantizers,
    "lanms-pytorch": quadrangles,
    "torch-scatter": scatter,
    "torch-spline-conv": spline_conv,
    "torchsort": sort,
    "torchlpc": lpc,
    "torchac": ac,
    "pytorch-fast-transformers": fast_transformers,
}


def main(project: str, folder: str, out: str) -> None:
    torch.manual_seed(7)
    torch.set_num_threads(2)
    recorded = dict(PROJECTS[project](Path(folder)))
    Path(out).write_text(json.dumps({"torch": torch.__version__, "outcomes": recorded}))


if __name__ == "__main__":
    main(*sys.argv[1:])
