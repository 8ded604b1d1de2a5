"""Calls of public projects' own modules, as they are installed: `python row_cases.py PROJECT OUT` records the outcomes.

It needs nothing but torch and the project, so that it runs in an environment with another torch as well.
"""

# Each function is called before its loop goes on.
# ruff: noqa: B023
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from outcomes import Outcome, of_call, of_gradients

Cases = Iterator[tuple[str, Outcome]]
DTYPES = (torch.float, torch.double, torch.half, torch.long)


def scatter() -> Cases:
    module = importlib.import_module("torch_scatter")
    index = torch.tensor([0, 2, 1, 2, 0, 3])
    for dtype in DTYPES:
        x = (torch.randn(6, 5) * 4).to(dtype)
        for reduce in ("sum", "mul", "mean", "min", "max"):
            yield f"scatter {reduce} {dtype}", of_call(lambda: module.scatter(x, index, 0, reduce=reduce))
            if dtype.is_floating_point:
                yield (
                    f"gradient of {reduce} {dtype}",
                    of_gradients(lambda v: module.scatter(v, index, 0, reduce=reduce), x),
                )
        yield f"segment_csr {dtype}", of_call(lambda: module.segment_csr(x, torch.tensor([0, 2, 6]), reduce="mean"))
        yield f"gather_csr {dtype}", of_call(lambda: module.gather_csr(x[:2], torch.tensor([0, 2, 6])))
    yield "softmax", of_call(lambda: module.composite.scatter_softmax(torch.randn(6), index))
    yield "a wrong index", of_call(lambda: module.scatter(torch.ones(6), index.float(), 0))


def cluster() -> Cases:
    module = importlib.import_module("torch_cluster")
    batch = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    for dtype in (torch.float, torch.double):
        x = torch.rand(10, 3).to(dtype)
        yield f"knn {dtype}", of_call(lambda: module.knn(x, x, 3, batch, batch))
        yield f"knn_graph {dtype}", of_call(lambda: module.knn_graph(x, 2, batch, loop=True))
        yield f"radius {dtype}", of_call(lambda: module.radius(x, x, 0.6, batch, batch, 4))
        yield f"fps {dtype}", of_call(lambda: module.fps(x, batch, 0.5, random_start=False))
        yield f"grid {dtype}", of_call(lambda: module.grid_cluster(x, torch.full((3,), 0.3, dtype=dtype)))
        yield f"nearest {dtype}", of_call(lambda: module.nearest(x, x[:4]))
    row, col = torch.tensor([0, 0, 1, 1, 2, 3]), torch.tensor([1, 2, 0, 3, 0, 1])
    torch.manual_seed(3)
    yield "graclus", of_call(lambda: module.graclus_cluster(row, col, torch.rand(6)))
    torch.manual_seed(3)
    yield "random_walk", of_call(lambda: module.random_walk(row, col, torch.tensor([0, 1, 2]), 4))
    yield "a wrong dtype", of_call(lambda: module.knn(torch.ones(3, 2).bool(), torch.ones(3, 2).bool(), 1))


def isotonic() -> Cases:
    module = importlib.import_module("torchsort")
    for dtype in (torch.float, torch.double):
        x = torch.randn(3, 8).to(dtype)
        for regularization in ("l2", "kl"):
            for function in (module.soft_sort, module.soft_rank):
                yield (
                    f"{function.__name__} {regularization} {dtype}",
                    of_gradients(lambda v: function(v, regularization=regularization), x),
                )


def chamfer() -> Cases:
    built = importlib.import_module("chamferdist._C")
    for dtype in (torch.float, torch.double):
        p, q, lengths = torch.rand(2, 7, 3).to(dtype), torch.rand(2, 9, 3).to(dtype), torch.tensor([7, 5])
        yield f"knn {dtype}", of_call(lambda: built.knn_points_idx(p, q, lengths, lengths, 2, -1))
        if dtype is torch.float:
            index = built.knn_points_idx(p, q, lengths, lengths, 2, -1)[0]
            grads = torch.rand(2, 7, 2)
            yield "backward", of_call(lambda: built.knn_points_backward(p, q, lengths, lengths, index, grads))
    yield "documentation", of_call(lambda: sorted(name for name in dir(built) if not name.startswith("__")))
    yield "none", of_call(lambda: built.knn_points_idx(None, q, lengths, lengths, 2, -1))


def cumsum() -> Cases:
    built = importlib.import_module("torch_discounted_cumsum_cpu")
    for dtype in DTYPES:
        x, gamma = (torch.randn(3, 9) * 3).to(dtype), torch.tensor([0.5, 0.9, 1.0])
        for name in ("discounted_cumsum_left_cpu", "discounted_cumsum_right_cpu"):
            for factor in (gamma.to(dtype), gamma[:1].to(dtype), gamma):
                yield f"{name} {dtype} {factor.dtype} {len(factor)}", of_call(lambda: getattr(built, name)(x, factor))


def harmonics() -> Cases:
    built = importlib.import_module("disco_helpers")
    kernel, row, column = torch.tensor([1, 0, 1, 0, 1]), torch.tensor([2, 1, 0, 1, 2]), torch.tensor([0, 1, 2, 3, 4])
    for dtype in DTYPES:
        values = torch.arange(5).to(dtype)
        given = [part.clone() for part in (kernel, row, column)]
        yield f"preprocess_psi {dtype}", of_call(lambda: (built.preprocess_psi(2, 3, *given, values), given, values))
    yield "documentation", of_call(lambda: built.preprocess_psi.__doc__)


def dbscan() -> Cases:
    built = importlib.import_module("dbscan_torch._C")
    points = torch.cat([torch.randn(40, 2) * 0.1, torch.randn(40, 2) * 0.1 + 2, torch.rand(10, 2) * 3])
    for eps, least in ((0.1, 3), (0.3, 5), (1.0, 1)):
        yield f"dbscan2d {eps}", of_call(lambda: built.dbscan2d(points, eps, least))
    yield "a wrong dtype", of_call(lambda: built.dbscan2d(points.double(), 0.1, 3))
    yield "a wrong shape", of_call(lambda: built.dbscan2d(X=points[:, :1], eps=0.1, min_samples=3))
    yield "profile", of_call(lambda: sorted(built.dbscan2d_profile(points, 0.1, 3)[1]))
    yield "documentation", of_call(lambda: built.dbscan2d.__doc__)


def quads() -> Cases:
    built = importlib.import_module("quad_iou_cpu")
    one = torch.tensor([[[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0]]])
    many = torch.cat([one + 0.5, one * 0.5, one + 9, torch.rand(5, 4, 2) * 2])
    for dtype in DTYPES:
        for ordered in (True, False):
            yield (
                f"iou {dtype} {ordered}",
                of_call(lambda: built.calculateIoUCPU(one.to(dtype), many.to(dtype), ordered)),
            )


def points() -> Cases:
    built = importlib.import_module("torch_points_kernels.points_cpu")
    for dtype in (torch.float, torch.double):
        p, q = torch.rand(2, 9, 3).to(dtype), torch.rand(2, 6, 3).to(dtype)
        yield f"knn {dtype}", of_call(lambda: built.dense_knn(p, q, 3))
        yield f"fps {dtype}", of_call(lambda: built.fps(p, 4, False))
        yield f"dense_ball_query {dtype}", of_call(lambda: built.dense_ball_query(p, q, 0.5, 4))
        yield f"ball_query {dtype}", of_call(lambda: built.ball_query(p[0], q[0], 0.5, 4))
        index, weights = built.dense_knn(p, q, 3)
        features = torch.rand(2, 5, 9).to(dtype)
        yield f"interpolate {dtype}", of_call(lambda: built.knn_interpolate(features, index, weights))
    yield "documentation", of_call(lambda: built.dense_ball_query.__doc__)


def spline() -> Cases:
    module = importlib.import_module("torch_spline_conv")
    for dtype in (torch.float, torch.double):
        x, edges = torch.rand(4, 2).to(dtype), torch.tensor([[0, 1, 2], [1, 2, 3]])
        pseudo, weight = torch.rand(3, 2).to(dtype), torch.rand(25, 2, 4).to(dtype)
        size, is_open = torch.tensor([5, 5]), torch.tensor([1, 1], dtype=torch.uint8)
        yield (
            f"spline_conv {dtype}",
            of_gradients(lambda a, w: module.spline_conv(a, edges, pseudo, w, size, is_open, 1, True), x, weight),
        )


def geodesic() -> Cases:
    built = importlib.import_module("FastGeodisCpp")
    image, mask = torch.rand(1, 1, 12, 9), torch.ones(1, 1, 12, 9)
    mask[..., 4, 4] = 0
    yield "generalised", of_call(lambda: built.generalised_geodesic2d(image, mask, 1e10, 0.5, 2))
    yield "toivanen", of_call(lambda: built.generalised_geodesic2d_toivanen(image, mask, 1e10, 0.5, 2))
    yield "fast marching", of_call(lambda: built.geodesic2d_fastmarch(image, mask, 1.0))
    yield "pixel queue", of_call(lambda: built.geodesic2d_pixelqueue(image, mask, 0.5))


def sparse() -> Cases:
    module, ops = importlib.import_module("torch_sparse"), torch.ops.torch_sparse
    row, col = torch.tensor([0, 0, 1, 2, 2, 3]), torch.tensor([1, 2, 0, 0, 3, 2])
    for dtype in (torch.float, torch.double):
        value, x = torch.randn(6).to(dtype), torch.randn(4, 3).to(dtype)
        for reduce in ("sum", "mean", "min", "max"):

            def product(v: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                matrix = module.SparseTensor(row=row, col=col, value=v, sparse_sizes=(4, 4))
                return module.matmul(matrix, y, reduce)

            yield f"matmul {reduce} {dtype}", of_gradients(product, value, x)
        index = torch.stack([row, col])
        yield f"coalesce {dtype}", of_call(lambda: module.coalesce(torch.cat([index, index], 1), value.repeat(2), 4, 4))
        yield f"transpose {dtype}", of_call(lambda: module.transpose(index, value, 4, 4))
        yield f"spspmm {dtype}", of_call(lambda: module.spspmm(index, value, index, value, 4, 4, 4))
    matrix = module.SparseTensor(row=row, col=col, value=torch.arange(6.0), sparse_sizes=(4, 4))
    torch.manual_seed(3)
    yield "sample", of_call(lambda: matrix.sample(1, torch.tensor([0, 2])))
    yield (
        "sample_adj",
        of_call(
            lambda: [
                part.coo() if n == 0 else part for n, part in enumerate(matrix.sample_adj(torch.tensor([0, 2]), 2))
            ]
        ),
    )
    pointers, columns, _ = matrix.csr()
    for replace in (False, True):
        torch.manual_seed(3)
        yield (
            f"neighbor_sample {replace}",
            of_call(lambda: ops.neighbor_sample(pointers, columns, torch.tensor([0, 3]), [2, 1], replace, True)),
        )
    types, edges = ["paper", "author"], [("paper", "cites", "paper"), ("author", "writes", "paper")]
    keys = ["__".join(edge) for edge in edges]
    given = dict.fromkeys(keys, pointers), dict.fromkeys(keys, columns)
    for start in ({"paper": torch.tensor([0, 1])}, {"author": torch.tensor([2]), "paper": torch.tensor([3])}, {}):
        torch.manual_seed(3)
        yield (
            f"hetero_neighbor_sample {sorted(start)}",
            of_call(
                lambda: ops.hetero_neighbor_sample(
                    types, edges, *given, start, {key: [2, 1] for key in keys}, 2, False, True
                )
            ),
        )
        torch.manual_seed(3)
        yield (
            f"hgt_sample {sorted(start)}",
            of_call(lambda: ops.hgt_sample(*given, start, {"paper": [2, 2], "author": [1, 2]}, 2)),
        )
    yield (
        "a missing edge",
        of_call(lambda: ops.hgt_sample(given[0], {}, {"paper": torch.tensor([0])}, {"paper": [1]}, 1)),
    )


def entropy_coder() -> Cases:
    built = importlib.import_module("torch_ans._C")
    yield "names", of_call(lambda: sorted(name for name in dir(built) if not name.startswith("__")))
    table = built.rans_pmf_to_quantized_cdf(torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]]), 16)
    symbols, index = torch.randint(0, 3, (2, 30), dtype=torch.int32), torch.randint(0, 2, (2, 30), dtype=torch.int32)
    sizes, offsets = torch.full((2,), 5, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    yield "table", of_call(lambda: table)
    for name in ("rans64", "rans32", "rans32_16"):
        init, push, pop = (getattr(built, f"{name}_{part}") for part in ("init_stream", "push", "pop"))

        def coded() -> object:
            stream = init(2)
            stream = push(stream, symbols, index, table, sizes, offsets, 16) or stream
            return stream, built.rans_stream_to_byte_strings(stream)

        yield f"push {name}", of_call(coded)
        yield f"documentation of {name}", of_call(lambda: (init.__doc__, push.__doc__, pop.__doc__))
    yield "a wrong argument", of_call(lambda: built.rans64_push(symbols))


def radius() -> Cases:
    importlib.import_module("torchCompactRadius_cpu")
    ops = torch.ops.torchCompactRadius_cpu
    for name in sorted(name for name in ops.__dict__ if not name.startswith("_")):
        yield f"schema of {name}", of_call(lambda: str(getattr(ops, name).default._schema))
    index = torch.tensor([0, 2, 1, 2, 0, 3])
    for dtype in DTYPES:
        x = (torch.randn(6) * 3).to(dtype)
        for name in ("scatter_sum", "scatter_mul", "scatter_mean", "scatter_min", "scatter_max"):
            yield f"{name} {dtype}", of_call(lambda: getattr(ops, name)(x, index, 0, None, 4))
    yield "a wrong index", of_call(lambda: ops.scatter_sum(torch.ones(6), index.float(), 0, None, None))


def tensor_trains() -> Cases:
    module, built = importlib.import_module("torchtt"), importlib.import_module("torchttcpp")
    x = module.randn([3, 4, 3], [1, 2, 2, 1], dtype=torch.double)
    yield "names", of_call(lambda: sorted(name for name in dir(built) if not name.startswith("__")))
    yield "full", of_call(lambda: (built.tt_full(x.cores), x.full()))
    operator = module.randn([(3, 3), (4, 4), (3, 3)], [1, 2, 2, 1], dtype=torch.double)
    yield "product", of_call(lambda: operator.fast_matvec(x, use_cpp=True).full())


PROJECTS: dict[str, Callable[[], Cases]] = {
    "torch_scatter-2.1.2": scatter,
    "torch_cluster-1.6.3": cluster,
    "torch_spline_conv-1.2.2": spline,
    "torchsort-0.1.10": isotonic,
    "chamferdist-1.0.3": chamfer,
    "torch_discounted_cumsum-1.1.0": cumsum,
    "torch_harmonics-0.8.0": harmonics,
    "dbscan_torch-0.2.0": dbscan,
    "quad_iou-0.2.0": quads,
    "torch-points-kernels-0.7.0": points,
    "FastGeodis-1.0.5": geodesic,
    "torch_sparse-0.6.18": sparse,
    "torch_ans-0.4.0": entropy_coder,
    "torchcompactradius-0.5.5": radius,
    "torchtt-0.5.0": tensor_trains,
}


def main(project: str, out: str) -> None:
    torch.manual_seed(7)
    torch.set_num_threads(2)
    recorded = dict(PROJECTS[project]())
    Path(out).write_text(json.dumps({"torch": torch.__version__, "outcomes": recorded}))


if __name__ == "__main__":
    main(*sys.argv[1:])
