"""Types the commands in the documents as a reader would. What is not typed is listed with its reason."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.processes import forked_python

from opforge.cli import group

pytestmark = [pytest.mark.compile, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [
        *(ROOT / "README.md", ROOT / "SECURITY.md"),
        *(
            path
            for pattern in ("docs/*.md", "docs/reference/*.md", "examples/*/README.md")
            for path in ROOT.glob(pattern)
        ),
    ]
)
"""The tutorials are in test_tutorials.py, which types them from top to bottom."""
NOT_TYPED = {
    "inspect --env": "its exit code depends on what is installed; tests/unit/packages/test_environment.py has samples",
    "why-not --cpu torch_scatter": "needs the archive of a project; tests/unit/cli/test_why_not.py has one",
    "opforge publish hf:": "needs a hub; tests/unit/packages/project/test_hub_publish.py has one",
    "opforge publish URL FOLDER": "needs a package; tests/unit/packages/registry/test_publish.py has some",
    "repair-wheel WHEEL": "a wheel of one's own: tests/compile/shipping/test_repaired_wheels.py",
    "split-wheel dist/my_package": "a project of one's own: tests/compile/shipping/test_wheel_variants.py",
    "tune Triton": "needs a GPU; tests/unit/tuning/test_kernels.py has a stand-in",
    "make ": "it is what runs these tests",
    "pip ": "it downloads, or installs into the environment of these tests",
    "apt ": "it installs a package of the system",
    "cuda:": "needs nvcc; tests/compile/cli/test_build_devices.py builds for devices",
    "hip:": "needs hipcc",
    "xpu:": "needs icpx",
    "--portable": "needs zig; tests/compile/compilers builds portable ops",
    "--cpu-level x86-64-v2": "the same line with one level is in README.md; three take long",
    "build-ops      ": "builds every op: takes long",
    "deepspeed ": "needs DeepSpeed; tests/compile/compat/test_deepspeed.py trains under it",
    "opforge.compat.cpp_extension ": "takes long; tests/compile/compat/test_setup.py runs it",
    "opforge launch --num-accelerators 2": "tests/spine/test_commands.py launches two ranks so",
    "--hostfile": "needs other hosts; tests/unit/launch has stand-ins",
    "--launcher": "needs an MPI or Slurm; tests/unit/launch has stand-ins",
    "dpcpp": "downloads Intel's compiler",
    "opforge key new NAME": "it is the name of the command; remote.md has a line with a name, which is typed",
    "opforge new NAME": "the form of the command; docs/new-project.md has a line with a name, which is typed",
    "opforge fetch": "needs a remote with all ops; tests/unit/remote has one",
    "opforge install": "needs a remote with packages; tests/unit/packages has them",
    "opforge withdraw ": "needs a remote and a key; tests/unit/packages and tests/unit/remote have them",
    "opforge check --list acme/relu": "needs an installed package; tests/unit/packages has some",
    "opforge rm acme/relu": "needs an installed package; tests/unit/packages has some",
    "opforge ls https": "needs a registry; tests/unit/packages has some",
    "opforge.get_kernel(": "needs an installed package; tests/compile/packages has some",
    "opforge pack": "needs a package's project; tests/compile/packages packs some",
    "opforge publish s3": "needs a bucket; tests/unit/packages has a folder",
    "opforge publish file:///shared/kernels": "needs a package; tests/unit/packages has some",
    "opforge lock": "needs a remote with packages; tests/unit/packages/project has them",
    "opforge mirror ": "needs two remotes; tests/unit/remote has them",
    "jit:": "needs a page of a JIT; tests/unit/jits has some",
    "OPFORGE_WARM=solver": "runs a program of the user's; tests/unit/jits runs some",
    "tuned:": "needs a tuning result; tests/unit/remote/test_tuned.py has some",
    " acme/relu": "needs an installed package; tests/unit/packages has some",
    "opforge check": "checks every op, for minutes; tests/compile/check runs it",
    "opforge tune": "measures for minutes; tests/unit/tuning runs it",
    "opforge bench": "measures for minutes; tests/compile/bench runs it",
    "--shard": "needs other machines, or builds every op",
    "--on tcp:": "needs a Dask scheduler; tests/unit/remote/farm starts one",
    "build-ops --debug": "an option in a sentence, which builds every op",
    "build-ops --force": "an option in a sentence, which builds every op",
    "build-ops -j 8": "an option in a sentence, which builds every op",
    "opforge build-ops ": "the name of the command in a sentence: it builds every op",
    "build-ops -j2": "it is in a sentence about its time, and builds every op",
    "build-ops --out DIR": "an option in a sentence, which builds every op",
    "build-ops CPUAdam FusedAdam": "FusedAdam for the accelerator in use: takes long",
}
"""Part of a command line -> why it is not typed."""
PLACES = {
    "/shared/ops": "shared/ops",
    "[OP]...": "",
    "[OP]": "",
    "[NAME]...": "",
    "[URL]": "",
    "OP": "CPUAdam",
    "FILE": "moved.tar",
}
"""Words of the documents -> what the reader types in their place; ENTRY and KEY are those of `opforge ls`."""
NEEDS_MORE = ("Missing argument", "expected either names", "nothing can be confirmed: expected --yes", "Commands:")
"""What a command replies whose name alone is in a sentence."""

REMOVES = re.compile(r" (rm|gc)\b")
"""Commands that are typed last, because they remove what the others need."""


def reason_not_to_type(line: str) -> str:
    """Returns why a command line is not typed, or an empty string."""
    return next((reason for part, reason in NOT_TYPED.items() if part in f"{line} "), "")


def blocks(page: str) -> list[str]:
    """Returns the blocks of commands of a page: those without a language."""
    text = (ROOT / page).read_text()
    fences = re.finditer(r"^ *```([^\n]*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return [re.sub(r" *\\\n *", " ", fence[2]) for fence in fences if not fence[1]]


def inline(page: str) -> list[str]:
    """Returns the commands in the sentences and tables of a page."""
    prose = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`((?:opforge|build-ops) [^`\n]+)`", prose)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the pages assume it: a package with ops, scripts, and a cache with one op."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "examples" / "prebuilt_op", folder, dirs_exist_ok=True)
    package = folder / "my_package"
    shutil.copytree(folder / "prebuilt_op", package)
    builder = (package / "builders.py").read_text()
    names = "".join(f"class {name}(SquaredReluBuilder): pass\n" for name in ("MyBuilder", "ReluBuilder"))
    (package / "ops.py").write_text(f"{builder}\n\n{names}")
    (folder / "src").mkdir()
    for script in ("train.py", "script.py", "src/model.py"):
        (folder / script).write_text("import sys\nprint(sys.argv[1:])\n")
    typed("build-ops CPUAdam", folder)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment of the reader's shell."""
    path = os.pathsep.join([forked_python.commands(), os.path.dirname(sys.executable), os.environ["PATH"]])
    own = {"OPFORGE_CACHE_DIR": "cache", "XDG_CACHE_HOME": "caches", "XDG_CONFIG_HOME": "config", "HOME": "home"}
    return {**os.environ, "PATH": path, **{name: str(folder / value) for name, value in own.items()}}


def typed(script: str, folder: Path, **variables: str) -> None:
    """Types lines into a shell; fails with what was printed."""
    own = environment(folder) | variables
    process = subprocess.run(["bash", "-ec", script], cwd=folder, env=own, capture_output=True, text=True, timeout=500)
    assert process.returncode == 0, f"{script}\n{process.stdout}{process.stderr}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_every_block_can_be_typed(page: str, reader: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        lines = [line.strip() for line in block.splitlines() if line.strip() and not reason_not_to_type(line)]
        # A layer and a remote of one name are two folders here. Each page has keys of its own.
        shared = f"{tmp_path if 'remote' in page else reader}/shared"
        if lines:
            typed("\n".join(lines).replace("/shared", shared), reader, XDG_CONFIG_HOME=str(tmp_path))


def test_every_command_in_a_sentence_can_be_typed(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(reader).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(reader)
    monkeypatch.syspath_prepend(str(reader))
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:  # of another test's folder
        monkeypatch.delitem(sys.modules, name)
    typed("build-ops my_package.ops:MyBuilder", reader)
    typed("build-ops CPUAdam --out shared/ops", reader)
    remote = f"file://{reader}/remote"
    typed("mkdir remote && opforge key trust $(opforge key new ci) --for 'op:*'", reader)
    typed(f"opforge publish {remote} CPUAdam", reader)
    key = os.listdir(reader / "cache" / "v2" / "entries")[0]
    problems = {}
    lines = {line for page in PAGES for line in inline(page) if not reason_not_to_type(line)}
    for line in sorted(lines, key=lambda line: (REMOVES.search(line) is not None, line)):
        for word, value in {**PLACES, "ENTRY|OP|PATH": "CPUAdam", "ENTRY": key, "KEY": key, "URL": remote}.items():
            line = re.sub(rf"(?<![\w/|.]){re.escape(word)}(?!\w)", value, line)
        if "..." in line or "[options]" in line:
            continue  # the form of a command, and not a command
        result = CliRunner().invoke(group, line.removeprefix("opforge ").split())
        if result.exit_code != 0 and not any(text in result.output for text in NEEDS_MORE):
            problems[line] = result.output
    assert problems == {}


def test_the_table_of_what_is_not_typed_names_what_exists() -> None:
    lines = [line for page in PAGES for line in [*inline(page), *"\n".join(blocks(page)).splitlines()]]
    assert [part for part in NOT_TYPED if not any(part in f"{line} " for line in lines)] == []
