"""What a project requires: the files and tables that say it."""

from __future__ import annotations

import pytest
from support.text_files import write

from opforge.errors import KernelFormatError
from opforge.packages.project import required


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    return folder


class TestRequired:
    def test_kernels_toml_serves_without_a_pyproject(self, project):
        write(project, "kernels.toml", '"acme/relu" = ">=2"\n"acme/any" = "*"\n')
        assert [(name, str(numbers)) for name, numbers in required.read(str(project)).kernels] == [
            ("acme/any", "any"),
            ("acme/relu", ">=2"),
        ]

    def test_the_hubs_own_table_is_read(self, project):
        write(project, "pyproject.toml", '[tool.kernels.dependencies]\n"acme/relu" = 1\n')
        assert [(name, str(numbers)) for name, numbers in required.read(str(project)).kernels] == [("acme/relu", "1")]

    @pytest.mark.parametrize(
        ("line", "text"), [('"x" = "1"', "'x' is not two parts"), ('"a/bc" = "~1"', "'~1' cannot")]
    )
    def test_a_wrong_line_is_refused(self, project, line, text):
        write(project, "pyproject.toml", f"[tool.opforge.kernels]\n{line}\n")
        with pytest.raises(KernelFormatError, match=text):
            required.read(str(project))

    def test_a_kernel_may_be_for_some_devices_alone(self, project):
        write(project, "kernels.toml", '"acme/any" = "1"\n"acme/gpu" = {version = ">=2", devices = ["cuda", "rocm"]}\n')
        needed = required.read(str(project))
        assert [(name, str(numbers)) for name, numbers in needed.kernels] == [("acme/any", "1"), ("acme/gpu", ">=2")]
        assert needed.devices == {"acme/gpu": ("cuda", "rocm")}

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ('{version = "1"}', "'devices' is missing"),
            ('{version = "1", devices = []}', "'devices' is "),
            ('{version = "1", devices = ["cude"]}', "'devices\\[0\\]' is 'cude'"),
            ('{version = "1", device = ["cuda"]}', "device"),
            ('{version = 1, devices = ["cuda"]}', "'version' is 1"),
        ],
    )
    def test_a_wrong_marker_is_refused_with_the_form(self, project, value, text):
        write(project, "kernels.toml", f'"acme/gpu" = {value}\n')
        with pytest.raises(KernelFormatError, match=rf"{text}(?s:.*)a range, or \{{version = \">=2\", devices = "):
            required.read(str(project))

    def test_the_hubs_table_has_no_markers(self, project):
        write(project, "pyproject.toml", '[tool.kernels.dependencies]\n"a/b" = {version = "1", devices = ["cuda"]}\n')
        with pytest.raises(KernelFormatError, match="a/b"):
            required.read(str(project))
