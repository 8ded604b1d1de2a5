"""A row for each project that has a setup.py: `python tests/facade rows`, a part of `make projects`.

The project is built unmodified by its own setup.py, in a fresh copy of its sources each time: by torch's own builder,
and with one variable on the facade, which is built again from another copy. Its functions and its own tests run with
both, and in other interpreters with the facade's wheel. Each command's processor time and largest process are stated.
"""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from facade import further, projects
from facade.projects import differences
from facade.wheels import link_distributions

HERE = Path(__file__).parent
VARIABLES: dict[str, dict[str, str]] = {
    "torch": {},
    "facade": {"OPFORGE_CPP_EXTENSION": "torch-facade"},
    "again": {"OPFORGE_CPP_EXTENSION": "torch-facade"},
    "opforge": {"OPFORGE_CPP_EXTENSION": "1"},
}
"""How a project is built: the variables of each way."""


@dataclasses.dataclass(frozen=True)
class Row:
    """What else is known of a project."""

    needs: tuple[str, ...] = ()
    """The distributions beside torch that its functions need."""
    rows: tuple[str, ...] = ()
    """Other projects of this table that its functions need. Their wheels on the facade are used, whatever the way."""
    tests: tuple[str, ...] = ()
    """Its own tests, relative to its folder. A source distribution without them needs them in tests/PROJECT-VERSION of
    the folder for builds, from the project's repository at that version."""
    options: tuple[str, ...] = ()
    """Options of pytest for them."""


ROWS = {
    "torch_scatter-2.1.2": Row(tests=("test",)),
    "torch_spline_conv-1.2.2": Row(),
    "torchsort-0.1.10": Row(needs=("fast_soft_sort",), tests=("tests",)),
    "torch_cluster-1.6.3": Row(needs=("scipy",), tests=("test",)),
    "chamferdist-1.0.3": Row(),
    "torch_discounted_cumsum-1.1.0": Row(),
    "torch_harmonics-0.8.0": Row(),
    "dbscan_torch-0.2.0": Row(tests=("tests",)),
    "quad_iou-0.2.0": Row(),
    "torch-points-kernels-0.7.0": Row(),
    "FastGeodis-1.0.5": Row(),
    "torch_sparse-0.6.18": Row(needs=("scipy",), rows=("torch_scatter-2.1.2",), tests=("test",)),
    "torch_ans-0.4.0": Row(),
    "torchcompactradius-0.5.5": Row(),
    "torchtt-0.5.0": Row(needs=("opt_einsum", "scipy"), tests=("tests",)),
}


@dataclasses.dataclass(frozen=True)
class Built:
    """A wheel, and what building it took."""

    wheel: str
    processor_seconds: float
    megabytes: float
    """Of the largest process."""
    problem: str = ""
    """The end of the output if there is no wheel."""


def tree(name: str, folder: Path, target: Path) -> Path:
    """Unpacks a project's source distribution below a folder, and returns its folder."""
    dashed = name.rpartition("-")[0].replace("_", "-")
    if dashed in projects.PROJECTS:
        unpacked = projects.sdist(dashed, folder / "sdists")
        archive = next((folder / "sdists").glob(f"{unpacked.name}.tar.gz"))
    else:
        archive = further.archive(name, folder / "further")
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    (root,) = target.iterdir()
    return root


def _libraries(wheel: Path) -> list[str]:
    """Returns the libraries in a wheel. Some setup scripts make one without them if a compiler fails."""
    with zipfile.ZipFile(wheel) as archive:
        return [file for file in archive.namelist() if file.endswith(".so")]


def build(name: str, way: str, folder: Path) -> Built:
    """Builds a project's wheel from a fresh copy of its sources, if that was not done before."""
    out = folder / "rows" / name / way
    record = out / "built.json"
    if record.exists():
        return Built(**json.loads(record.read_text()))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    store = folder / "rows" / name / "store"
    if way == "facade":
        shutil.rmtree(store, ignore_errors=True)
    variables = {key: text for key, text in os.environ.items() if not key.startswith("OPFORGE_")} | VARIABLES[way]
    # A setup.py that finds nvcc asks for CUDA's folder.
    variables |= {"FORCE_ONLY_CPU": "1", "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    # ccache, which torch's builder uses where it is installed, would leave work out of the comparison.
    variables |= {"OPFORGE_CACHE_DIR": str(store), "CCACHE_DISABLE": "1"}
    with tempfile.TemporaryDirectory() as work, (out / "output.txt").open("wb") as output:
        root = tree(name, folder, Path(work))
        pip = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(out), "."]
        started = subprocess.Popen([*pip, "-v"], cwd=root, env=variables, stdout=output, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
    wheels = [path for path in out.glob("*.whl") if _libraries(path)]
    text = (out / "output.txt").read_text(errors="replace")
    built = Built(
        wheels[0].name if wheels else "",
        used.ru_utime + used.ru_stime,
        used.ru_maxrss / 1024,
        "" if wheels else "\n".join(re.findall(r"^.*\berror:.*$", text, re.M)[:20]),
    )
    record.write_text(json.dumps(dataclasses.asdict(built)))
    return built


def site(name: str, way: str, folder: Path, target: Path) -> None:
    """Installs a project's wheel, and what it needs beside torch, into a folder."""
    wheels = [folder / "rows" / name / way / build(name, way, folder).wheel]
    wheels += [folder / "rows" / other / "facade" / build(other, "facade", folder).wheel for other in ROWS[name].rows]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(target), *map(str, wheels)], check=True)
    link_distributions(ROWS[name].needs, target)


def environment(site: Path, python: str, work: Path) -> tuple[list[str], dict[str, str]]:
    """Returns the command of an interpreter that has a folder's packages beside torch alone, and its variables."""
    if python != sys.executable:
        return [python], {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(site)}
    here = work / "torch"
    if not here.exists():
        here.mkdir()
        link_distributions(["torch", "numpy", "pytest"], here)
    return [python, "-S"], {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{site}:{here}"}


def outcomes(name: str, way: str, folder: Path, python: str = sys.executable) -> dict[str, object]:
    """Returns the outcomes of a project's cases with the wheel of one way, in an interpreter without opforge."""
    out = folder / "rows" / name / f"{way}-outcomes.json"
    with tempfile.TemporaryDirectory() as work:
        site(name, way, folder, Path(work, "site"))
        command, variables = environment(Path(work, "site"), python, Path(work))
        script = HERE / "row_cases.py"
        ended = subprocess.run(
            [*command, str(script), name, str(out)], env=variables, capture_output=True, text=True, cwd=work
        )
    if ended.returncode:
        return {"cases": ("did not run", ended.stderr[-1500:])}
    recorded: dict[str, object] = json.loads(out.read_text())["outcomes"]
    return recorded


def own_tests(name: str, way: str, folder: Path) -> dict[str, str]:
    """Returns how each of a project's own tests ended with the wheel of one way."""
    with tempfile.TemporaryDirectory() as work:
        root = tree(name, folder, Path(work, "tree"))
        site(name, way, folder, Path(work, "site"))
        command, variables = environment(Path(work, "site"), sys.executable, Path(work))
        # Without its sources: the folder of the sources would be imported in the place of the wheel.
        alone = Path(work, "alone")
        of_repository = folder / "tests" / name
        for part in ROWS[name].tests:
            shutil.copytree((of_repository if of_repository.is_dir() else root) / part, alone / part)
        options = ["-q", "-rA", "-p", "no:cacheprovider", "--tb=no", "-W", "ignore", *ROWS[name].options]
        pytest = [*command, "-m", "pytest", *options, *ROWS[name].tests]
        ended = subprocess.run(pytest, cwd=alone, env=variables, capture_output=True, text=True)
    result = r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (?:\[\d+\] )?(\S.*?)(?: - .*)?$"
    found = re.findall(result, ended.stdout, re.M)
    return {test: ending for ending, test in found} or {
        "pytest": f"did not run\n{(ended.stdout + ended.stderr)[-800:]}"
    }


def run(names: Sequence[str], folder: Path, others: Sequence[str]) -> int:
    """Builds and compares projects, and prints a row for each. Returns how many differ or are not built."""
    wrong = 0
    for name in names or ROWS:
        built = {way: build(name, way, folder) for way in ("facade", "torch")}
        if not built["facade"].wheel:
            wrong += 1
            print(f"{name}: not built on the facade\n{built['facade'].problem}", flush=True)
            continue
        built["again"] = build(name, "again", folder)
        print(f"{name}: {built['facade'].wheel}")
        for way, one in built.items():
            print(f"  {way}: {one.processor_seconds:.1f} s of processor time, {one.megabytes:.0f} MB {one.problem}")
        wrong += _compare(name, built["torch"].wheel != "", folder, others)
    return wrong


def _compare(name: str, with_torch: bool, folder: Path, others: Sequence[str]) -> int:
    """Prints where the facade's wheel differs from that of torch's builder, and from itself elsewhere."""
    on_facade = outcomes(name, "facade", folder)
    compared = {"against torch's headers": outcomes(name, "torch", folder)} if with_torch else {}
    compared |= {f"in {other}": outcomes(name, "facade", folder, other) for other in others}
    different = 0
    if "cases" in on_facade:  # what fails in the same way everywhere is no agreement
        different += 1
        print("  the cases did not run", on_facade["cases"], sep="\n  ")
    for where, recorded in compared.items():
        lines = differences(recorded, on_facade)
        different += len(lines)
        print(f"  {where}: {len(on_facade) - len(lines)} of {len(on_facade)} cases are the same", *lines, sep="\n  ")
    if ROWS[name].tests:
        ended = {way: own_tests(name, way, folder) for way in ("facade", *(("torch",) if with_torch else ()))}
        for way, results in ended.items():
            counts = {result: list(results.values()).count(result) for result in sorted(set(results.values()))}
            print(f"  own tests on {way}: {results.get('pytest', counts)}")
            different += "PASSED" not in results.values()  # tests that cannot be imported anywhere are no agreement
        lines = differences(dict(ended["facade"]), dict(ended.get("torch", ended["facade"])))
        different += len(lines)
        print(*(f"  {line}" for line in lines), sep="\n", flush=True)
    return different
