"""One wheel of a project from its own setup.py, installed beside torch alone: `python tests/facade wheels`.

The wheel is built with OPFORGE_CPP_EXTENSION=torch-facade and no other change. It is installed in a folder of its own,
and the project's functions are called by each interpreter that is named, whose environment has torch and no opforge.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from facade.projects import sdist

# What is called, by the project's own Python functions. The others of the six have no such wheel: torchac compiles when
# it is imported, torchlpc needs numba, and fast-transformers' setup.py needs CUDA's folder if nvcc is on PATH.
USES = {
    "torch-scatter": """
from torch_scatter import scatter_sum, scatter_max, segment_csr
x = torch.arange(12.0, dtype=torch.double).reshape(6, 2).requires_grad_()
index = torch.tensor([0, 1, 0, 1, 2, 1])
out = scatter_sum(x, index, 0)
assert torch.equal(out, torch.zeros(3, 2, dtype=torch.double).index_add(0, index, x))
assert torch.autograd.gradcheck(lambda v: scatter_sum(v, index, 0), x)
result = [out, *scatter_max(x, index, 0), segment_csr(x, torch.tensor([0, 2, 6]), reduce="mean")]
""",
    "torch-spline-conv": """
from torch_spline_conv import spline_conv
x, pseudo = torch.arange(8.0).reshape(4, 2), torch.tensor([[0.25, 0.125], [0.25, 0.375], [0.75, 0.625]])
edges, weight = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.arange(200.0).reshape(25, 2, 4)
size, is_open = torch.tensor([5, 5]), torch.tensor([1, 1], dtype=torch.uint8)
result = [spline_conv(x, edges, pseudo, weight, size, is_open, 1, True)]
""",
    "torchsort": """
import torchsort
x = torch.tensor([[8.0, 0.0, 5.0, 3.0, 2.0, 1.0, 6.0, 7.0, 9.0]], requires_grad=True)
torchsort.soft_sort(x)[0, 4].backward()
result = [torchsort.soft_rank(x), x.grad]
""",
}
SCRIPT = """
import importlib.util, sys, torch
{use}
assert importlib.util.find_spec("opforge") is None
print([(t.tolist(), str(t.dtype)) for t in result])
print("torch", torch.__version__, "Python", sys.version.split()[0], file=sys.stderr)
"""


def wheel(name: str, folder: Path) -> Path:
    """Builds a project's wheel from its sdist with one variable, and returns it. A hit where it was built before."""
    out = folder / "wheels" / name
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work, "tree")
        shutil.copytree(sdist(name, folder / "sdists"), tree, ignore=shutil.ignore_patterns("build", "*.egg-info"))
        # A setup.py that finds nvcc asks for CUDA's folder.
        ours = {"OPFORGE_CPP_EXTENSION": "torch-facade", "FORCE_ONLY_CPU": "1", "PATH": "/usr/bin:/bin"}
        pip = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-build-isolation",
            "--no-deps",
            "-w",
            str(out),
            ".",
        ]
        subprocess.run(
            pip, cwd=tree, check=True, env={**os.environ, "OPFORGE_CACHE_DIR": str(folder / "store"), **ours}
        )
    (path,) = out.glob("*.whl")
    return path


def link_distributions(names: Iterable[str], site: Path) -> None:
    """Links distributions of this environment, and what they require, into a folder of another one."""
    seen, pending = set[str](), list(names)
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of another platform
        for top in {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
        pending += [re.split(r"[^\w.-]", text)[0] for text in found.requires or () if "extra ==" not in text]


def run(names: Sequence[str], folder: Path, other: str | None) -> int:
    """Builds wheels, installs each beside torch alone, and calls it. Returns how many did not work."""
    failures = 0
    for name in names or USES:
        path = wheel(name, folder)
        print(f"{name}: {path.name}")
        with tempfile.TemporaryDirectory() as work:
            site, here = Path(work, "site"), Path(work, "torch")
            here.mkdir()
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
            subprocess.run([*pip, str(path)], check=True)
            link_distributions(["torch", "numpy"], here)
            printed = {}
            for python, path_of in ((sys.executable, f"{site}:{here}"), *([(other, str(site))] if other else [])):
                isolated = [python, "-S"] if python == sys.executable else [python]
                ended = subprocess.run(
                    [*isolated, "-c", SCRIPT.format(use=USES[name])],
                    env={"PATH": "/nowhere", "PYTHONPATH": path_of},
                    capture_output=True,
                    text=True,
                )
                printed[python] = ended.stdout
                print("  " + (ended.stderr.strip().splitlines() or [""])[-1])
                failures += ended.returncode != 0
            same = len(set(printed.values())) == 1
            failures += not same
            print(f"  {'the same' if same else 'DIFFERENT'} values in {len(printed)} environments")
    return failures
