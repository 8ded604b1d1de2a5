"""Public projects, from their sdists: each is built unmodified on the facade and on torch's own headers.

`python tests/facade projects` compares what both compute, bit for bit, and what compiling took. With `--other PYTHON`
the facade's libraries run in that interpreter's torch as well, and what they compute is compared between the two.
"""

import dataclasses
import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from facade import further
from facade.compiling import Cost, compile_library


@dataclasses.dataclass(frozen=True)
class Project:
    """An sdist, and the extensions in it: each with its sources, relative to the sdist's folder."""

    version: str
    sha256: str
    extensions: dict[str, tuple[str, ...]]
    options: tuple[str, ...] = ()
    include: str = "."


def _quantizers(package: str) -> tuple[str, ...]:
    return tuple(f"{package}/quant/quant_cpu/{name}.cpp" for name in ("quant_cpu", "bit_helper", "sim_helper"))


FAST_MATH = ("-fopenmp", "-ffast-math")
PROJECTS = {
    "torch-scatter": Project(
        "2.1.2",
        "69b3aa435f2424ac6a1bfb6ff702da6eb73b33ca0db38fb26989c74159258e47",
        {
            "_version_cpu": ("csrc/version.cpp",),
            "_scatter_cpu": ("csrc/scatter.cpp", "csrc/cpu/scatter_cpu.cpp"),
            "_segment_csr_cpu": ("csrc/segment_csr.cpp", "csrc/cpu/segment_csr_cpu.cpp"),
            "_segment_coo_cpu": ("csrc/segment_coo.cpp", "csrc/cpu/segment_coo_cpu.cpp"),
        },
        include="csrc",
    ),
    "torch-spline-conv": Project(
        "1.2.2",
        "ed45a81da29f774665dbdd4709d7e534cdf16d2e7006dbd06957f35bd09661b2",
        {
            "_version_cpu": ("csrc/version.cpp",),
            "_basis_cpu": ("csrc/basis.cpp", "csrc/cpu/basis_cpu.cpp"),
            "_weighting_cpu": ("csrc/weighting.cpp", "csrc/cpu/weighting_cpu.cpp"),
        },
        include="csrc",
    ),
    "torchsort": Project(
        "0.1.10",
        "416a7dd2ab88332b27e98318d7fb2e0243b9fb6f1fffcf77760d63103d70dd04",
        {"isotonic_cpu": ("torchsort/isotonic_cpu.cpp",)},
        FAST_MATH,
    ),
    "torchlpc": Project(
        "0.7.2",
        "260a765645cdf0112d3fcfcebc41d11855ac52264b3185f24068ad873b1b0be3",
        {"_C": ("torchlpc/csrc/scan_cpu.cpp",)},
        ("-fopenmp",),
    ),
    "torchac": Project(
        "0.8.9",
        "71fa23c0c5f3dc028f7ded5d9dda01611f1f9a1cd8a08a8360d45a21104b67da",
        {"torchac_backend": ("torchac/backend/torchac_backend.cpp",)},
    ),
    "pytorch-fast-transformers": Project(
        "0.4.0",
        "d1826bc31b9dfbcd018998b897667e89fc6566bd3f8c424cda9f0943544f7e90",
        {
            "hash_cpu": ("fast_transformers/hashing/hash_cpu.cpp",),
            "causal_product_cpu": ("fast_transformers/causal_product/causal_product_cpu.cpp",),
            "local_product_cpu": ("fast_transformers/local_product/local_product_cpu.cpp",),
            "aggregate_cpu": ("fast_transformers/aggregate/aggregate_cpu.cpp",),
        },
        FAST_MATH,
    ),
    # These are not built by a setup.py of torch's: two compile when they are imported, one is built by CMake.
    "qtorch": Project("0.3.0", further.DIGESTS["qtorch-0.3.0"], {"quant_cpu": _quantizers("qtorch")}),
    "qtorch_plus": Project("0.2.0", further.DIGESTS["qtorch_plus-0.2.0"], {"quant_cpu": _quantizers("qtorch_plus")}),
    "lanms-pytorch": Project(
        "1.0.3",
        further.DIGESTS["lanms-pytorch-1.0.3"],
        {"lanms": ("adaptor.cpp", "include/clipper/clipper.cpp")},
        include="include",
    ),
    # CMake builds it. Its sources for the CPU have the ending of CUDA's.
    "fast_rnnt": Project(
        "1.3",
        further.DIGESTS["fast_rnnt-1.3"],
        {
            "_fast_rnnt": (
                "fast_rnnt/csrc/mutual_information_cpu.cu",
                "fast_rnnt/python/csrc/mutual_information.cu",
                "fast_rnnt/python/csrc/fast_rnnt.cu",
            )
        },
        ("-x", "c++"),
    ),
    # Of these what is compiled for the CPU.
    "nncf": Project(
        "3.4.0",
        further.DIGESTS["nncf-3.4.0"],
        {
            "quantized_functions_cpu": (
                "src/nncf/torch/extensions/src/quantization/cpu/functions_cpu.cpp",
                "src/nncf/torch/extensions/src/common/cpu/tensor_funcs.cpp",
            )
        },
        include="src/nncf/torch/extensions/include",
    ),
    "torch_projectors": Project(
        "0.13.1",
        further.DIGESTS["torch_projectors-0.13.1"],
        {
            "torch_projectors": (
                "csrc/torch_projectors.cpp",
                "csrc/cpu/2d/projection_2d_kernels.cpp",
                "csrc/cpu/2d/backprojection_2d_kernels.cpp",
                "csrc/cpu/3d/projection_3d_to_2d_kernels.cpp",
                "csrc/cpu/3d/backprojection_2d_to_3d_kernels.cpp",
            )
        },
        ("-std=c++20", "-fopenmp"),
        include="csrc",
    ),
}


def sdist(name: str, folder: Path) -> Path:
    """Returns the folder of a project's sources, downloaded by pip and compared with its digest."""
    project = PROJECTS[name]
    found = [
        *folder.glob(f"{name}-{project.version}.tar.gz"),
        *folder.glob(f"{name.replace('-', '_')}-{project.version}.tar.gz"),
        *(folder.parent / "further").glob(f"{name}-{project.version}.tar.gz"),
    ]
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
        # Its setup.py runs: one that finds nvcc asks for CUDA's folder.
        subprocess.run(
            [*pip, "--no-binary", ":all:", "--dest", str(folder), f"{name}=={project.version}"],
            check=True,
            env={"PATH": "/usr/bin:/bin"},
        )
        return sdist(name, folder)
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if digest != project.sha256:
        raise RuntimeError(f"{found[0].name} has the digest {digest}, expected {project.sha256}")
    root = folder / found[0].name.removesuffix(".tar.gz")
    if not root.exists():
        with tarfile.open(found[0]) as archive:
            archive.extractall(folder, filter="data")
    return root


def build(name: str, kind: str, folder: Path) -> list[Cost]:
    """Builds a project's extensions on the facade or on torch's headers. Returns what each took."""
    project, root, costs = PROJECTS[name], sdist(name, folder / "sdists"), []
    target = folder / kind / name
    record = target / "costs.json"
    if record.exists():
        return [Cost(**cost) for cost in json.loads(record.read_text())]
    for extension, sources in project.extensions.items():
        options = [*project.options, f"-I{root / project.include}"]
        library = target / f"{extension}.so"
        costs.append(compile_library(kind, extension, [root / source for source in sources], library, options))
    record.write_text(json.dumps([dataclasses.asdict(cost) for cost in costs]))
    return costs


def outcomes(name: str, libraries: Path, out: Path, python: str = sys.executable) -> dict[str, object]:
    """Returns the outcomes of a project's cases with the libraries in a folder."""
    script = Path(__file__).parent / "project_cases.py"
    subprocess.run([python, str(script), name, str(libraries), str(out)], check=True, stderr=subprocess.DEVNULL)
    recorded: dict[str, object] = json.loads(out.read_text())["outcomes"]
    return recorded


def differences(one: dict[str, object], other: dict[str, object]) -> list[str]:
    """Returns a line for each case that is not the same in both."""
    return [
        f"{case}:\n  {one.get(case)}\n  {other.get(case)}"
        for case in sorted(one.keys() | other.keys())
        if one.get(case) != other.get(case)
    ]


def run(names: Sequence[str], folder: Path, other: str | None, only_facade: bool = False) -> int:
    """Builds, runs and compares projects. Returns the number of cases that differ."""
    different = 0
    for name in names or PROJECTS:
        costs = {kind: build(name, kind, folder) for kind in ("facade", *(() if only_facade else ("torch",)))}
        recorded = {kind: outcomes(name, folder / kind / name, folder / f"{name}-{kind}.json") for kind in costs}
        for kind, of_kind in costs.items():
            seconds, most = sum(cost.processor_seconds for cost in of_kind), max(cost.megabytes for cost in of_kind)
            print(f"{name} on {kind}: {seconds:.1f} s of processor time, {most:.0f} MB, {len(recorded[kind])} cases")
        if "torch" in recorded:
            lines = differences(recorded["torch"], recorded["facade"])
            print(f"  against torch's headers: {len(lines)} of {len(recorded['torch'])} differ", *lines, sep="\n  ")
            different += len(lines)
        if other:
            elsewhere = outcomes(name, folder / "facade" / name, folder / f"{name}-other.json", other)
            lines = differences(recorded["facade"], elsewhere)
            print(f"  in the other torch: {len(lines)} of {len(elsewhere)} differ", *lines, sep="\n  ")
    return different
