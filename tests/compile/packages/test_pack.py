"""`opforge pack` with a real compiler: what is written, and that it loads without opforge."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import kernel_abi_check
import pytest
from support import child_processes
from support.kernels.projects import python_project, scale_project
from support.text_files import write

from opforge import OpBuilder
from opforge.accelerator.target import Target
from opforge.builders.lookup.remembered_lookups import LOOKUP_FIELDS
from opforge.errors import PackError
from opforge.packages.form import digests, metadata
from opforge.packages.pack import git, reproducibility, variant_checks
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading

pytestmark = [
    pytest.mark.compile,
    pytest.mark.usefixtures("forked_children"),
    pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux"),
]
QUICK = Options(tried=False)
WITHOUT_OPFORGE = """
import importlib.util, sys, torch
folder = sys.argv[1]
spec = importlib.util.spec_from_file_location("any_name", folder + "/__init__.py", submodule_search_locations=[folder])
module = sys.modules["any_name"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from any_name import _ops
assert "scale" in dir(module), dir(module)
assert _ops.add_op_namespace_prefix("scale") == f"{_ops._NAMESPACE}::scale"
print(module.scale(torch.tensor([1.0, -2.0])).tolist(), "opforge" in sys.modules)
"""


@pytest.fixture
def folder(tmp_path, builds_are_shared):
    return tmp_path / "project"


def packed(folder, out, options=QUICK):
    return pack(reading.read(str(folder)), str(out), options)


def assert_it_loads_without_opforge(variant):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPFORGE, variant],
        env={**child_processes.environment(), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("[2.0, -4.0] False\n", 0), done.stderr


class TestVariant:
    def test_it_has_the_hubs_form_and_loads_without_opforge(self, folder, tmp_path):
        scale_project(folder)
        (variant,) = packed(folder, tmp_path / "out")
        stated = metadata.read(variant.folder)
        assert (
            os.path.relpath(variant.folder, tmp_path / "out")
            == f"build/torch-stable-abi210-cpu-{os.uname().machine}-linux"
        )
        assert sorted(os.listdir(variant.folder)) == sorted(
            ["__init__.py", f"{stated.id}.abi3.so", "_ops.py", "metadata.json"]
        )
        assert digests.problems(variant.folder, stated.files) == []
        assert (stated.name, stated.version, str(stated.release)) == ("scale", 2, "2.3")
        assert_it_loads_without_opforge(variant.folder)

    def test_it_states_all_of_its_library_also_if_the_build_was_remembered(self, folder, tmp_path, monkeypatch):
        scale_project(folder)
        build = OpBuilder.build

        def remembered(*arguments, **options):
            entry = build(*arguments, **options)
            kept = {name: value for name, value in entry.record.items() if name not in LOOKUP_FIELDS}
            return entry._replace(record=kept)

        monkeypatch.setattr(OpBuilder, "build", remembered)
        (variant,) = packed(folder, tmp_path / "out")
        assert {*LOOKUP_FIELDS} <= metadata.read(variant.folder).opforge["record"].keys()

    def test_the_oracle_finds_nothing_wrong_with_its_library(self, folder, tmp_path):
        scale_project(folder)
        (variant,) = packed(folder, tmp_path)
        library = next(
            os.path.join(variant.folder, name) for name in os.listdir(variant.folder) if name.endswith(".so")
        )
        assert not kernel_abi_check.ObjectFile(library).check_python_abi("3.9")
        assert (
            variant.metadata.opforge["measured"]["floors"]["glibc"]
            == variant.metadata.opforge["record"]["floors"]["GLIBC"]
        )

    def test_two_levels_are_two_variants_and_the_base_level_has_the_hubs_label(self, folder, tmp_path):
        if os.uname().machine != "x86_64":
            pytest.skip("these levels are of x86-64")
        scale_project(folder, targets='["cpu:x86-64", "cpu:x86-64-v3"]')
        labels = [variant.label for variant in packed(folder, tmp_path)]
        plain = "torch-stable-abi210-cpu-x86_64-linux"
        assert labels == [plain, f"{plain}.x86-64-v3"]

    def test_a_builder_is_packed_with_generated_python(self, folder, tmp_path):
        scale_project(folder)
        os.rename(folder / "csrc" / "scale.cpp", folder / "scale.cpp")
        text = (
            'import opforge\nclass ScaleBuilder(opforge.OpBuilder):\n    name = "scale"\n    sources = ["scale.cpp"]\n'
        )
        write(folder, "ops.py", text)
        write(
            folder, "kernel.toml", 'name = "acme/scale"\nversion = 1\nlicense = "MIT"\nbuilder = "ops:ScaleBuilder"\n'
        )
        (variant,) = packed(folder, tmp_path)
        assert_it_loads_without_opforge(variant.folder)

    def test_packing_again_replaces_it_and_leaves_other_folders_alone(self, folder, tmp_path):
        scale_project(folder)
        (first,) = packed(folder, tmp_path)
        write(tmp_path, "build/mine/notes.txt", "mine")
        (second,) = packed(folder, tmp_path)
        assert (second.folder, second.digest) == (first.folder, first.digest)
        assert (tmp_path / "build/mine/notes.txt").read_text() == "mine"
        os.unlink(os.path.join(second.folder, "metadata.json"))
        with pytest.raises(PackError, match="exists, and opforge pack did not write it"):
            packed(folder, tmp_path)
        assert not [name for name in os.listdir(tmp_path / "build") if name.startswith(".pack-")]


PLAIN = 'extern "C" __attribute__((visibility("default"))) float half(float x) { return x / 2; }\n'
BUILDER = """\
import ctypes, os
from opforge import OpBuilder


class HalfBuilder(OpBuilder):
    name, abi, sources = "half", "c", ["half.cpp"]
    signatures = {"half": (ctypes.c_float, [ctypes.c_float])}
"""


def plain_project(folder, *more):
    """Writes a package of a library with a plain C function; `more` are further lines of its builder."""
    write(folder, "half.cpp", PLAIN)
    write(folder, "ops.py", BUILDER + "".join(f"    {line}\n" for line in more))
    text = 'name = "acme/half"\nversion = 1\nlicense = "MIT"\nbuilder = "ops:HalfBuilder"\n'
    write(folder, "kernel.toml", text)


class TestSameBytes:
    def test_two_packings_in_two_folders_are_the_same(self, folder, tmp_path):
        plain_project(folder)
        assert reproducibility.differences(reading.read(str(folder)), QUICK) == []

    def test_a_difference_is_named(self, folder, tmp_path):
        # The path of the folder becomes a part of the library, as __FILE__ would without opforge's flags.
        plain_project(folder, 'define_macros = [("WHERE", str(len(os.path.dirname(__file__))))]')
        where = 'extern "C" __attribute__((visibility("default"))) int where() { return WHERE; }\n'
        write(folder, "half.cpp", PLAIN + where)
        assert any(
            path.endswith("/metadata.json") for path in reproducibility.differences(reading.read(str(folder)), QUICK)
        )

    def test_the_commit_and_whether_the_tree_is_dirty_are_recorded(self, folder, tmp_path):
        python_project(folder)

        def run(*words):
            subprocess.run(["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

        run("init", "-q")
        assert git.provenance(str(folder)) is None
        run("add", "-A")
        run("commit", "-q", "-m", "first")
        (variant,) = packed(folder, tmp_path / "out")
        assert len(variant.metadata.kernel.commit) == 40 and not variant.metadata.kernel.dirty
        write(folder, "python/more.py", "")
        (variant,) = packed(folder, tmp_path / "out")
        assert metadata.read(variant.folder).kernel.dirty


class TestPythonAlone:
    def test_a_package_without_a_library_is_a_variant_too(self, folder, tmp_path):
        python_project(folder, text="from ._ops import add_op_namespace_prefix\nNAME = add_op_namespace_prefix('x')\n")
        (variant,) = packed(folder, tmp_path, Options())
        assert (variant.label, variant.checks["import"]) == ("torch-universal", "passed")
        assert variant.checks["tests"] == "not run: the package has none"
        assert variant.metadata.opforge["record"] is None


class TestTrial:
    def test_samples_and_tests_are_run_and_their_outcome_is_kept_beside_the_variant(self, folder, tmp_path):
        scale_project(folder)
        with (folder / "kernel.toml").open("a") as file:
            file.write('[check]\nsamples = "samples:samples"\ntests = "tests"\n')
        write(folder, "samples.py", 'import torch\ndef samples():\n    yield "scale", (torch.randn(5),)\n')
        text = (
            "import torch\ndef test_it():\n    import scale\n    assert scale.scale(torch.ones(2)).tolist() == [2, 2]\n"
        )
        write(folder, "tests/test_scale.py", text)
        (variant,) = packed(folder, tmp_path, Options())
        outcome = {
            "schemas": "passed",
            "import": "passed",
            "opcheck": "passed",
            "graph": "passed",
            "tests": "passed: 1 passed",
        }
        assert variant.checks == outcome
        ((label, kept),) = json.loads((tmp_path / "build" / "checks.json").read_text()).items()
        assert (label, kept["digest"], kept["checks"]) == (variant.label, variant.digest, outcome)

    @pytest.mark.parametrize(
        ("text", "outcome"),
        [
            pytest.param(
                "import nothing_of_that_name\n",
                r"1 error; ERROR tests/test_it\.py",
                marks=pytest.mark.long("starts pytest for a package; test_errors_are_named_too has the line"),
            ),
            (
                "import pytest\n@pytest.mark.parametrize('n', range(7))\ndef test_it(n):\n    assert n < 0\n",
                r"7 failed; FAILED tests/test_it\.py::test_it\[0\] - assert 0 < 0; .*; and 2 more",
            ),
        ],
    )
    def test_tests_that_fail_refuse_the_package_are_named_and_leave_nothing(
        self, folder, tmp_path, monkeypatch, text, outcome
    ):
        monkeypatch.setenv("PYTEST_ADDOPTS", "-v")  # of the user's own tests
        python_project(folder)
        with (folder / "kernel.toml").open("a") as file:
            file.write('[check]\ntests = "tests"\n')
        write(folder, "tests/test_it.py", text)
        with pytest.raises(PackError, match=f"torch-universal: tests: failed: {outcome}"):
            packed(folder, tmp_path / "out", Options())
        assert os.listdir(tmp_path / "out") == []

    def test_errors_are_named_too(self):
        line = "ERROR tests/test_it.py"  # as pytest prints for a file that cannot be imported
        printed = ["ModuleNotFoundError: nothing_of_that_name", line, "Interrupted: 1 error during", "1 error in 0.05s"]
        assert variant_checks._summary(printed) == f"1 error; {line}"

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (
                "import os; os.environ.get('HOME'); exec(\"open(__file__ + '.new', 'w')\")",
                "failed: RuntimeError: importing it writes: open(",
            ),
            pytest.param(
                "raise SystemExit(3)",
                "import: failed: SystemExit: 3",
                marks=pytest.mark.long("test_trial.py has a package that ends its process"),
            ),
        ],
    )
    def test_an_import_that_fails_or_writes_refuses_the_package(self, folder, tmp_path, text, problem):
        python_project(folder, text=text + "\n")
        with pytest.raises(PackError) as error:
            packed(folder, tmp_path, Options())
        assert problem in str(error.value)


class TestRefusals:
    def test_a_target_that_the_op_is_not_for(self, folder, tmp_path):
        scale_project(folder)
        with pytest.raises(PackError, match="its op is for cpu, and not for cuda"):
            packed(folder, tmp_path, Options(targets=(Target.parse("cuda:sm_90"),), tried=False))

    def test_every_problem_of_the_audit_is_listed_at_once(self, folder, tmp_path):
        scale_project(folder)
        write(folder, "python/scale/more.py", "import scale.x\nopen('log', 'w')\n")
        with (folder / "kernel.toml").open("a") as file:
            file.write('extra-link-args = ["-Wl,-rpath,/opt/x"]\n')
        with pytest.raises(PackError) as error:
            packed(folder, tmp_path)
        assert "more.py, line 1: it imports scale.x: the package is imported under another name" in str(error.value)
        assert "more.py, line 2: it writes (open) when it is imported" in str(error.value)
        assert "its library has a RUNPATH" in str(error.value)
        assert not (tmp_path / "build").exists()


def test_variants_of_two_declarations_are_no_release_also_without_git(folder, tmp_path):
    """Only files were compared: a variant that was packed before an edit of kernel.toml stayed, with other flags."""
    if os.uname().machine != "x86_64":
        pytest.skip("these levels are of x86-64")
    write(folder, "half.cpp", PLAIN)
    text = (
        'name = "acme/half"\nversion = 1\nlicense = "MIT"\ntargets = ["{}"]\n[op]\nsources = ["half.cpp"]\nabi = "c"\n'
    )
    notes = []
    for target, more in (
        ("cpu:x86-64", ""),
        ("cpu:x86-64-v2", ""),
        ("cpu:x86-64-v3", 'extra-compile-args = ["-O1"]\n'),
    ):
        write(folder, "kernel.toml", text.format(target) + more)
        (variant,) = pack(reading.read(str(folder)), str(tmp_path), QUICK, note=notes.append)
    assert sorted(os.listdir(tmp_path / "build")) == ["checks.json", variant.label]
    plain = tmp_path / "build" / variant.label.removesuffix(".x86-64-v3")
    assert notes == [
        f"{plain}{level} was removed: its op was declared with other attributes" for level in ("", ".x86-64-v2")
    ]
