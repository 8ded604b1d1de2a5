"""Coverage-guided fuzzing of the files of kernel packages. Needs atheris (pip install atheris); the tests do not.

    python tests/fuzz/fuzz_packages.py PARSER -runs=100000 [CORPUS_FOLDER]

PARSER is one of PARSERS. The first byte of an input says what the rest is: the file itself, or the seed of damage
to a valid one. What is refused raises an error of opforge; what is read can be judged for a machine and written again,
and gives the same when it is read once more.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import tomlkit
from support.fuzzing import json_mutations, mutations
from support.text_files import write

from opforge.builders.declaration.machine import Machine
from opforge.errors import KernelFormatError, OpforgeError
from opforge.packages.choose import candidate, order
from opforge.packages.choose.candidate import VariantCandidate
from opforge.packages.choose.environment import Environment
from opforge.packages.form import metadata, toml_file, variant
from opforge.packages.form.version import Version
from opforge.packages.installed import releases
from opforge.packages.installed.layout import Root
from opforge.packages.project import hub_locks, lock_file
from opforge.packages.registry import index, release
from opforge.packages.registry.release import Release, Variant
from opforge.packages.sources import build_toml, kernel_toml, project
from opforge.remote import topics
from opforge.remote.blobs import Blob, Tree

NAME, DIGEST = "acme/relu", "uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek="
CPU, CUDA = "torch-stable-abi210-cpu-x86_64-linux", "torch-stable-abi210-cu130-x86_64-linux"
RECORD = {
    "abi": "torch-stable",
    "built_with_torch": "2.13.0",
    "floors": {"GLIBC": "2.28", "GLIBCXX": "3.4.20"},
    "interface": 1,
    "machine": "x86_64",
    "needs": ["libc.so.6", "libtorch_cpu.so"],
    "portable": False,
    "requires": {"torch_range": ">=2.11", "cuda": "13.0"},
    "shims": ["aoti_torch_empty"],
    "target": "cpu:x86-64",
    "torch_target": "2.10",
    "user_flags": {},
}
HOST = Machine("x86_64", "x86-64-v3", "2.36", "3.4.30", "cpython-311", "2.13.0")
HERE = Environment(
    "linux",
    {"cpu": HOST, "cuda": HOST._replace(device="cuda", devices=("sm_80", "sm_90"), driver=(13, 0))},
    "cuda",
    (13, 0),
)
HUB_LOCK = f"""[{{"dependency": {{"repo-id": "Acme/relu", "version": 2}}, "lock": {{"commit": "{"ab" * 20}"}}}},
{{"repo_id": "acme/old", "sha": "{"12" * 20}", "variants": {{"torch-cuda": {{"hash": "sha256-{"a" * 64}"}}}}}}]"""
BUILD = """\
[general]
name = "relu"
version = 2
edition = 5
license = "Apache-2.0"
backends = ["cpu", "cuda"]
kernel-depends = [{repo-id = "acme/base", version = 1}]
python-depends = ["einops"]
[general.hub]
repo-id = "acme/relu"
[torch]
src = ["torch-ext/torch_binding.cpp"]
include = ["."]
cxx-flags = ["-O2"]
stable-abi = "2.11"
minver = "2.10"
maxver = "2.14"
[kernel.relu]
backend = "cuda"
depends = ["torch"]
src = ["relu.cu"]
cuda-capabilities = ["8.0", "9.0a"]
cuda-flags = ["-lineinfo"]
[kernel.relu_cpu]
backend = "cpu"
src = ["relu.cpp"]
"""
KERNEL = """\
name = "acme/relu"
version = "2.3"
license = "MIT"
python = "python"
targets = ["cpu:x86-64-v3", "cuda:sm_80+sm_90+ptx"]
python-depends = ["einops>=0.8"]
allow-libraries = ["libgomp.so.1"]
portable = false
with-source = true
[depends]
"acme/base" = ">=1,<3"
[check]
samples = "samples:samples"
tests = "tests"
[op]
sources = ["relu.cpp"]
devices = ["cpu"]
abi = "torch-stable"
include-dirs = ["."]
define-macros = [["A", "1"]]
torch-target = "2.10"
"""


def _candidate(label: str, record: dict[str, Any]) -> VariantCandidate:
    return VariantCandidate(label, variant.parse(label), record, ("einops",), {"acme/base": ">=1"}, own=True)


CANDIDATES = (_candidate(CPU, RECORD), _candidate(CUDA, {**RECORD, "target": "cuda:sm_80+sm_90"}))


class PackageTarget:
    """A valid file of each kind, with what reads it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        for path in ("torch-ext/relu/__init__.py", "torch-ext/torch_binding.cpp", "relu.cu", "relu.cpp", "python/x.py"):
            write(folder, path, "")
        os.mkdir(os.path.join(folder, "tests"))
        stated = metadata.parse(
            json.dumps(
                {
                    "name": "relu",
                    "id": "_relu_0a1b2c3",
                    "version": 2,
                    "license": "MIT",
                    "python-depends": ["einops"],
                    "kernel-depends": [{"repo-id": "acme/base", "version": 1}],
                    "backend": {"type": "cuda", "archs": ["8.0", "9.0+PTX"]},
                    "digest": {"algorithm": "sha256", "files": {"__init__.py": DIGEST, "_relu.abi3.so": DIGEST}},
                    "provenance": {"kernel": {"commit": "0" * 40, "dirty": False}},
                    "x-opforge": {
                        "format": 1,
                        "name": NAME,
                        "release": "2.3",
                        "properties": variant.parse(CUDA).to_json(),
                        "library": "_relu.abi3.so",
                        "record": {**RECORD, "target": "cuda:sm_80+sm_90"},
                        "depends": {"acme/base": ">=1"},
                    },
                }
            ).encode()
        )
        parts = tuple(
            Variant(part, Tree("a" * 64, Blob("b" * 64, 10, 20)), {"import": "passed"}) for part in CANDIDATES
        )
        signed = Release(NAME, Version(2, 3), parts, "MIT", "source", "upstream", "0" * 40, True)
        listed = {Version(2, 3): topics.ListedStatement("a" * 64), Version(2): topics.ListedStatement("c" * 64)}
        locked = lock_file.LockedKernel(
            NAME,
            Version(2, 3),
            "a" * 64,
            "https://kernels.example",
            ("project >=2",),
        )
        here = releases.Installed(
            NAME,
            Version(2, 3),
            Root(os.path.join(folder, "root"), "folder"),
            "a" * 64,
            "ci",
            "https://kernels.example",
            "",
            (releases.InstalledVariant(CANDIDATES[0], "a" * 64, "", "_relu", {"x": DIGEST}, "c" * 64, {"": [1]}, 10),),
        )
        self.root = here.root
        os.makedirs(os.path.dirname(self.root.release(NAME, "2.3")))
        self.valid = {
            "metadata": stated.text().replace(b"\n", b" "),
            "release": signed.statement().data(),
            "index": index.Index(NAME, 3, listed).listing().data(),
            "lock": lock_file.text(lock_file.LockFile({NAME: ">=2"}, (locked,))).encode(),
            "hub_lock": HUB_LOCK.encode(),
            "build_toml": BUILD.encode(),
            "kernel_toml": KERNEL.encode(),
            "installed": json.dumps(releases.to_json(here)).encode(),
        }

    def content(self, parser: str, data: bytes) -> bytes:
        """Returns the content of the file that an input stands for."""
        how, chance, valid = data[0] % 64 if data else 0, random.Random(data[1:]), self.valid[parser]
        if how < 16:
            return data[1:]
        if how < 48:
            if parser in ("lock", "build_toml", "kernel_toml"):
                table = tomlkit.parse(valid.decode()).unwrap()
                try:
                    return tomlkit.dumps(json_mutations.mutated_value(table, chance)).encode()
                except (ValueError, TypeError, AttributeError, tomlkit.exceptions.TOMLKitError):
                    return data[1:]  # TOML has no form for the value
            return json_mutations.mutated(valid, chance)
        return chance.choice(mutations.KINDS)(valid, chance)

    def run(self, parser: str, data: bytes) -> str:
        """Reads an input; returns why it is refused, or an empty text. Raises AssertionError."""
        content = self.content(parser, data)
        try:
            getattr(self, f"_{parser}")(content)
        except OpforgeError as error:
            assert len(str(error)) < 5000, "an error that nobody can read"
            return str(error)
        return ""

    def _metadata(self, content: bytes) -> None:
        stated = metadata.parse(content)
        assert metadata.parse(stated.text()) == stated
        for label in (CUDA, CPU, "torch-universal"):
            try:
                choice = candidate.of_metadata(label, stated, "", "here")
            except KernelFormatError:
                continue
            order.best([choice], HERE)

    def _release(self, content: bytes) -> None:
        read = release.parse(content, "here", NAME, Version(2, 3))
        assert release.parse(read.statement().data(), "here") == read
        candidates = [part.candidate for part in read.variants]
        order.best(candidates, HERE)
        order.decide(candidates, HERE)
        assert all(".." not in part.blob.name for part in read.variants)

    def _index(self, content: bytes) -> None:
        read = index.parse(content, NAME, "here")
        assert index.parse(read.listing().data(), NAME, "here") == read
        assert all(len(listed.digest) == 64 for listed in read.releases.values())

    def _lock(self, content: bytes) -> None:
        read = lock_file.parse(toml_file.parse(content, "here", lock_file.EXPECTED), "here")
        again = lock_file.parse(toml_file.parse(lock_file.text(read).encode(), "here", lock_file.EXPECTED), "here")
        assert lock_file.text(again) == lock_file.text(read)

    def _hub_lock(self, content: bytes) -> None:
        for kernel in hub_locks.parse(content, "here"):
            assert kernel.repository.count("/") == 1 and ".." not in kernel.repository and kernel.commit.isalnum()

    def _build_toml(self, content: bytes) -> None:
        described = build_toml.parse(toml_file.parse(content, "here", build_toml.EXPECTED), "here", self.folder)
        self._buildable(described)

    def _kernel_toml(self, content: bytes) -> None:
        with open(os.path.join(self.folder, "kernel.toml"), "wb") as file:
            file.write(content)
        self._buildable(kernel_toml.read_folder(self.folder))

    def _buildable(self, described: project.Project) -> None:
        """Resolves the op for a target, as packing does before anything is compiled."""
        json.dumps(described.declared)
        if described.builder is not None:
            for text in ("cpu:x86-64", "cuda:sm_90"):
                try:
                    described.builder(project_target(text), False).spec()
                except OpforgeError:
                    continue

    def _installed(self, content: bytes) -> None:
        with open(self.root.release(NAME, "2.3"), "wb") as file:
            file.write(content)
        read = releases.read(self.root, NAME, Version(2, 3))
        if read is None:
            raise KernelFormatError("here", "it is not read", "a release")
        assert all(os.path.dirname(part.folder) == self.root.join("trees") for part in read.variants)


def project_target(text: str) -> Any:
    """Returns the target of a text."""
    from opforge.accelerator.target import Target

    return Target.parse(text)


PARSERS = ("metadata", "release", "index", "lock", "hub_lock", "build_toml", "kernel_toml", "installed")


def main() -> None:
    """Runs atheris until an input fails."""
    import atheris

    parser = sys.argv.pop(1)
    with tempfile.TemporaryDirectory(prefix="opforge-fuzz-") as folder:
        target = PackageTarget(folder)
        atheris.instrument_all()
        atheris.Setup(sys.argv, lambda data: target.run(parser, data) and None)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
