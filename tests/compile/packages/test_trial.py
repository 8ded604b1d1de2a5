"""What is tried before a package is written: the outcome of each check, or why it was not run."""

from __future__ import annotations

import os
import re
import sys

import pytest
from click.testing import CliRunner
from support.kernels.projects import python_project, scale_project
from support.text_files import write

from opforge.cli import group
from opforge.errors import PackError
from opforge.packages.form.metadata import Metadata
from opforge.packages.pack import device_tests, variant_checks
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading

pytestmark = [
    pytest.mark.compile,
    pytest.mark.usefixtures("forked_children"),
    pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux"),
]
SAMPLES = 'import torch\ndef samples():\n    yield "scale", (torch.randn(5),)\n'


@pytest.fixture
def folder(tmp_path, builds_are_shared):
    return tmp_path / "project"


def outcome(folder, out, **more):
    """Returns the outcome of each check, or the text of the error."""
    try:
        (variant,) = pack(reading.read(str(folder)), str(out), Options(**more))
    except PackError as error:
        assert os.listdir(out) == []
        return str(error)
    return dict(variant.checks)


def with_samples(folder, text=SAMPLES):
    with (folder / "kernel.toml").open("a") as file:
        file.write('[check]\nsamples = "samples:samples"\n')
    write(folder, "samples.py", text)


def changed(folder, old, new):
    path = folder / "csrc" / "scale.cpp"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_kernel_that_does_not_fit_its_schema_is_refused(folder, tmp_path):
    """`_ops.py` registers it without comparing: torch would pass it the lower half of a double."""
    scale_project(folder)
    changed(folder, "Tensor scale(const Tensor& x) {", "Tensor scale(const Tensor& x, float) {")
    changed(folder, 'm.def("scale(Tensor x) -> Tensor")', 'm.def("scale(Tensor x, float factor) -> Tensor")')
    changed(folder, "Tensor meta(const Tensor& x) {", "Tensor meta(const Tensor& x, double) {")
    text = outcome(folder, tmp_path / "out")
    assert "schemas: failed: scale (" in text, text
    assert "argument 2, factor, is float in C++ and float in the schema: write double" in text, text


def test_an_op_without_a_fake_kernel_fails_torchs_checks(folder, tmp_path):
    scale_project(folder)
    changed(folder, 'STABLE_TORCH_LIBRARY_IMPL(scale, Meta, m) { m.impl("scale", TORCH_BOX(&meta)); }', "")
    with_samples(folder)
    text = outcome(folder, tmp_path / "out")
    assert "opcheck: failed: OpCheckError" in text and "graph: failed: " in text, text


def test_without_samples_tests_and_a_library_each_check_says_that_it_was_not_run(folder, tmp_path):
    python_project(folder)
    with (folder / "kernel.toml").open("a") as file:
        file.write('[check]\ntests = "tests"\n')
    os.mkdir(folder / "tests")
    assert outcome(folder, tmp_path) == {
        "schemas": "not run: it has no library",
        "import": "passed",
        "opcheck": "not run: the package names no samples",
        "graph": "not run: the package names no samples",
        "tests": "not run: pytest found no test",
    }


def test_if_it_was_not_requested_no_check_is_run(folder, tmp_path):
    python_project(folder, text="raise SystemExit\n")
    assert set(outcome(folder, tmp_path, tried=False).values()) == {"not run: not requested"}


def test_a_variant_for_a_device_that_is_not_here_is_not_run(tmp_path):
    stated = Metadata("relu", "_relu_1", 1, "MIT", "rocm", opforge={"record": {"target": "hip:gfx942"}})
    described = reading.read(python_project(tmp_path))
    assert set(variant_checks.run(str(tmp_path), described, stated).values()) == {"not run: no hip device is here"}


def test_a_process_that_ends_while_it_imports_says_how(folder, tmp_path):
    python_project(folder, text="import os\nos._exit(7)\n")
    assert "torch-universal: import: failed: exit 7" in outcome(folder, tmp_path / "out")


def test_tests_of_a_package_that_cannot_be_imported_are_not_run(folder, tmp_path):
    with_tests(folder, "def test_it():\n    pass\n")
    project = reading.read(str(folder))
    tests = variant_checks._tests(project, {}, str(tmp_path), is_imported=False, note=print)
    assert tests == "not run: the package cannot be imported"


WITHOUT_PYTEST = """#!/bin/sh
case "$*" in '-m pytest '*) set -- -S "$@";; esac
exec {python} "$@"
"""


def test_tests_without_pytest_are_an_error_that_says_what_to_install(folder, tmp_path, monkeypatch):
    python_project(folder)
    with_samples(folder)
    (folder / "kernel.toml").write_text((folder / "kernel.toml").read_text() + 'tests = "tests"\n')
    write(folder, "tests/test_scale.py", "def test_nothing():\n    pass\n")
    python = tmp_path / "python"
    python.write_text(WITHOUT_PYTEST.format(python=sys.executable))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    text = outcome(folder, tmp_path / "out")
    assert "tests: failed: pytest is missing, which runs the package's tests: pip install pytest" in text, text


@pytest.mark.long("starts pytest for a package")
def test_a_test_for_a_device_that_is_not_here_is_skipped_and_the_others_are_run(folder, tmp_path):
    python_project(folder)
    with (folder / "kernel.toml").open("a") as file:
        file.write('[check]\ntests = "tests"\n')
    names = '"cpu", "npu", torch.device("xpu"), "other"'
    marked = f'import pytest, torch\n\n\n@pytest.mark.parametrize("device", [{names}])\n'
    write(folder, "tests/test_it.py", f'{marked}def test_it(device):\n    assert str(device) in ("cpu", "other")\n')
    assert outcome(folder, tmp_path / "out")["tests"] == "passed: 2 passed, 2 skipped"


@pytest.mark.long("starts pytest for a package")
def test_tests_that_load_another_kernel_are_run_if_it_is_named(folder, tmp_path, monkeypatch):
    python_project(folder)
    with (folder / "kernel.toml").open("a") as file:
        file.write('[check]\ntests = "tests"\n')
    loads = 'def load():\n    return kernels.get_kernel("acme/other", version=1)\n'
    sees = 'def test_it():\n    assert os.environ["LOCAL_KERNELS"].split(":")[1].startswith("acme/other=")\n'
    write(folder, "tests/test_it.py", f"import os\n\n\n{loads}\n\n{sees}")
    expected = "not run: they load acme/other, which is not here: name its folder, LOCAL_KERNELS=acme/other=FOLDER"
    assert outcome(folder, tmp_path / "out")["tests"] == expected
    monkeypatch.setenv("LOCAL_KERNELS", f"acme/other={tmp_path}")
    assert outcome(folder, tmp_path / "out")["tests"] == "passed: 1 passed"


def with_tests(folder, text):
    python_project(folder)
    with (folder / "kernel.toml").open("a") as file:
        file.write('[check]\ntests = "tests"\n')
    write(folder, "tests/test_it.py", text)


@pytest.mark.long("starts pytest for a package")
def test_the_longest_test_is_named_if_all_take_long(folder, monkeypatch):
    with_tests(folder, "import time\n\n\ndef test_quick():\n    pass\n\n\ndef test_slow():\n    time.sleep(1)\n")
    monkeypatch.setattr(variant_checks, "LONG_SECONDS", 0.5)
    done = CliRunner().invoke(group, ["pack", str(folder)], catch_exceptions=False)
    said = r"^note: the package's tests took \d+ s, and 1 s of that .*test_it\.py::test_slow$"
    assert done.exit_code == 0 and re.search(said, done.output, re.MULTILINE), done.output


def test_the_test_that_does_not_end_is_named(folder, tmp_path, monkeypatch):
    with_tests(folder, "def test_slow():\n    pass\n")
    real = variant_checks._child

    def child(command, environment, place):
        if "pytest" not in command:
            return real(command, environment, place)
        monkeypatch.setenv(device_tests.NOTES, environment[device_tests.NOTES])
        device_tests.pytest_runtest_logstart("tests/test_it.py::test_slow")
        return "exit: it took longer than 1800 s"

    monkeypatch.setattr(variant_checks, "_child", child)
    text = outcome(folder, tmp_path / "out")
    assert "tests: failed: exit: it took longer than 1800 s, in tests/test_it.py::test_slow" in text
