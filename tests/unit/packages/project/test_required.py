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
