"""The module of a builder that lies in a project, and those that it imports."""

from __future__ import annotations

import re

import pytest
from support import sample_ops
from support.text_files import write

from opforge.accelerator.target import Target
from opforge.errors import BuilderError
from opforge.packages.sources import reading

KERNEL = 'name = "acme/relu"\nversion = "2.3"\nlicense = "MIT"\n'
BUILDER = 'from opforge import OpBuilder\nclass B(OpBuilder):\n    name, sources = "relu", names.SOURCES\n'


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("ops", "from . import names"),
        ("ops", "from .names import SOURCES as SOURCES\nfrom . import names"),
        ("relu.ops", "from . import names"),
        ("relu.parts.ops", "from .. import names"),
        ("relu.parts.ops", "from ..names import SOURCES\nfrom .. import names"),
    ],
)
def test_a_module_of_the_project_imports_others_by_relative_names(tmp_path, module, line):
    place = module.split(".")[0] if "." in module else "."
    write(tmp_path, f"{module.replace('.', '/')}.py", f"{line}\n{BUILDER}")
    # What packing does not need is not run: this one imports what packing generates.
    write(tmp_path, "relu/__init__.py", "from ._ops import ops\n")
    write(tmp_path, "kernel.toml", f'builder = "{module}:B"\n' + KERNEL)
    for sources in (("first.cpp",), ("second.cpp",)):
        write(tmp_path, f"{place}/names.py", f"SOURCES = {sources}  {'#' * len(sources[0])}\n")
        make = reading.read(str(tmp_path)).builder
        assert make and make(Target.parse("cpu"), False).sources == sources


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("import other", "its module imports 'other' of the project by an absolute name"),
        ("import names", "its module imports 'names' of the project by an absolute name"),
        ("from relu import names", "its module imports 'relu' of the project by an absolute name"),
        ("from .missing import x", "its module imports 'relu.missing', which is not in @"),
        ("from . import X", "cannot import name 'X' from 'relu'.* no __init__.py above the builder is run"),
        (
            "1 / 0",
            'division by zero. Fix the module. For the whole traceback: python -c \'from .*; .*"relu.ops", "@".\'$',
        ),
    ],
)
def test_an_import_that_fails_in_a_project_says_why(tmp_path, line, text):
    write(tmp_path, "relu/ops.py", f"{line}\n{BUILDER}")
    write(tmp_path, "relu/__init__.py", "X = 1\n")
    write(tmp_path, "names.py", "")
    write(tmp_path, "relu/other.py", "")
    write(tmp_path, "kernel.toml", 'builder = "relu.ops:B"\n' + KERNEL)
    with pytest.raises(BuilderError, match=text.replace("@", re.escape(str(tmp_path)))):
        reading.read(str(tmp_path))


@pytest.mark.parametrize("in_project", [True, False], ids=["kernel.toml", "module:Class"])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (":Nope", "the module '@' has no 'Nope'. Name the builder as module:Class. It has: A, B"),
        (":NUMBER", "it is not a subclass of opforge.OpBuilder. Name the builder as module:Class. It has: A, B"),
        (":", "it names no class. Name the builder as module:Class. It has: A, B"),
    ],
)
def test_a_class_that_the_module_lacks_is_said_with_those_that_it_has(tmp_path, monkeypatch, in_project, name, problem):
    module = sample_ops.unique_name("ops")
    classes = "class A(OpBuilder): pass\nclass B(OpBuilder): pass\nclass Other: pass\nNUMBER = 3\n"
    write(tmp_path, f"{module}.py", f"from opforge import OpBuilder\n{classes}")
    write(tmp_path, "kernel.toml", f'builder = "{module}{name}"\n' + KERNEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BuilderError) as error:
        reading.read(str(tmp_path) if in_project else f"{module}{name}")
    assert str(error.value) == f"{module}{name}: {problem.replace('@', module)}"
