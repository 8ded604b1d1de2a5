"""Walks the tutorials: each file is written, each command typed, each output compared, from top to bottom.

A block that begins with a file's name in a comment is that file. A block without a language is typed. A block of
`text` is what the last block has printed, line by line: `...` stands for anything, further lines may be between, and
columns may have any width.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import tiers
from support.processes import forked_python

pytestmark = [pytest.mark.compile, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
GPU, ACCELERATOR, BUILD_SYSTEMS = "gpu-op.md", "accelerator.md", "build-systems.md"
EXTENSION, PACKAGE, WHEEL = "torch-extension.md", "kernel-package.md", "wheel.md"
TRIED_ELSEWHERE = {
    ACCELERATOR: "installs an accelerator and runs its contract, as tests/compile/new/test_new_projects.py does",
    GPU: "compiles for two GPUs, as tests/compile/ops/test_device_builds.py does",
    BUILD_SYSTEMS: "makes four wheels in 40 s, as tests/compile/shipping/test_backends.py does",
    EXTENSION: "compiles torch/extension.h three times, as tests/compile/facade/test_builder.py does",
    PACKAGE: "packs, publishes, locks and installs a package, as tests/spine/test_packages.py does",
    WHEEL: "makes a wheel by pip and installs it, as tests/compile/shipping/test_wheels.py does",
}
"""Page -> why it is not followed but by `make test-long`."""
LONG = tiers.is_long()
FAILS = re.compile(r" +# fails$", re.MULTILINE)

CONTRACT = """
from opforge import get_accelerator
from opforge.testing import AcceleratorContract

class TestAcme(AcceleratorContract):
    def make_accelerator(self):
        assert get_accelerator().name == "acme"
        return get_accelerator()
"""
"""What accelerator.md leads to: its accelerator, which is chosen at the end of the page, passes the contract."""


def blocks(page: Path) -> list[tuple[str, str]]:
    """Returns the fenced blocks of a page, in order: the language and the text of each."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def file_name(text: str) -> str:
    """Returns the name of the file that a block is, by its first line."""
    match = re.match(r"(?:#|//) ([\w./-]+\.\w+)\n", text)
    assert match, f"the first line must be a comment with the file's name:\n{text}"
    return match[1]


def environment(folder: Path) -> dict[str, str]:
    """Returns the reader's environment. What pip installs goes to a folder beside the reader's, without a network."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OPFORGE_", "PIP_"))}
    site = folder / "site"
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    own |= {"PIP_TARGET": str(site), "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    programs = [forked_python.commands(), os.path.dirname(sys.executable), os.environ["PATH"]]
    own |= {"PATH": os.pathsep.join(programs), "PYTHONPATH": os.pathsep.join(paths)}
    return own | {"HOME": str(folder / "home"), "XDG_CACHE_HOME": ""}  # the default store, as the reader has it


def assert_printed(output: str, expected: str, typed: str) -> None:
    """Fails unless the lines of `expected` are in the output, in this order."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    for line in filter(None, (" ".join(line.split()) for line in expected.splitlines())):
        pattern = re.compile(".*".join(map(re.escape, line.split("..."))))
        place = next((number for number, text in enumerate(lines) if pattern.fullmatch(text)), None)
        assert place is not None, f"{typed}\nprinted\n{output}\nand no line like\n{line}"
        lines = lines[place + 1 :]


class Shell:
    """A shell that stays where the reader is, with the variables that the reader has exported."""

    def __init__(self, folder: Path, page: str) -> None:
        self.folder = folder / "my work ü"  # a reader's folder may have any name
        self.folder.mkdir()
        self._environment = environment(folder)
        if page == EXTENSION:  # it prints the same, and its sources compile in half of the time
            self._environment["CXXFLAGS"] = "-O0"
        self._preamble = ""

    def type(self, script: str) -> str:
        """Types a block. Returns all that it printed. Fails unless the lines end as their comments say."""
        output = ""
        for line in script.replace("\\\n", "").splitlines():
            fails = FAILS.search(line) is not None
            process = subprocess.run(
                ["bash", "-c", f"{self._preamble}{line}"],
                cwd=self.folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=600,
            )
            assert (process.returncode != 0) == fails, f"{line}\n{process.stdout}"
            if re.match(r"cd |export |\w+=\S+$|\w+=\$\(.*\)$", line):
                self._preamble += f"{line}\n"
            output += process.stdout
        return output


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.name)
def test_a_tutorial_can_be_followed(page: Path, tmp_path: Path) -> None:
    if page.name == GPU and shutil.which("nvcc") is None:
        pytest.skip("needs nvcc (the CUDA toolkit, or pip install nvidia-cuda-nvcc nvidia-cuda-runtime)")
    if page.name in TRIED_ELSEWHERE and not LONG:
        pytest.skip(f"{TRIED_ELSEWHERE[page.name]}: `make test-long`")
    if page.name == BUILD_SYSTEMS:
        for module in ("hatchling", "scikit_build_core", "mesonpy", "flit_core"):
            pytest.importorskip(module, reason=f"needs {module}")
        if not shutil.which("cmake"):
            pytest.skip("needs cmake: apt install cmake")
    shell, typed, output = Shell(tmp_path, page.name), "", ""
    for language, text in blocks(page):
        if language == "":
            typed, output = text, shell.type(text)
        elif language == "text":
            assert_printed(output, text, typed)
        else:
            path = shell.folder / file_name(text)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if page.name == ACCELERATOR:
        (shell.folder / "test_contract.py").write_text(CONTRACT)
        summary = shell.type("python -m pytest -q -rs -p no:cacheprovider test_contract.py")
        assert "passed" in summary and "SKIPPED" not in summary, summary


def test_there_are_tutorials_and_each_is_typed_and_compared() -> None:
    assert len(TUTORIALS) >= 4
    for page in TUTORIALS:
        languages = [language for language, _ in blocks(page)]
        assert languages.count("") >= 3 and languages.count("text") >= 3, page


@pytest.mark.parametrize(
    ("output", "expected", "matches"),
    [
        ("a\nbuilt x in 1.2 s\nb\n", "built x in ...", True),
        ("a\nb\n", "b\na", False),
        ("a\nb\n", "a\nb", True),
        ("ab\n", "a", False),
        ("x/prebuilt\n", ".../prebuilt", True),
        ("op\tcpu:x86-64\t12 s\n", "op  cpu:...  12 s", True),
    ],
)
def test_lines_are_compared_in_order(output: str, expected: str, matches: bool) -> None:
    try:
        assert_printed(output, expected, "")
    except AssertionError:
        assert not matches
    else:
        assert matches
