"""What the audit refuses in a package's Python."""

from __future__ import annotations

import pytest
from support.text_files import write

from opforge.packages.audit import python_code


@pytest.mark.parametrize(
    "text",
    [
        "from . import other\nfrom ._ops import ops\nimport torch\n",
        "def save(path):\n    open(path, 'w').write('x')\n",
        "text = 'a'.replace('a', 'b')\nwith open(__file__) as file:\n    file.read()\n",
        "if __name__ == '__main__':\n    open('x', 'w')\n",
        "import relu_tools\n",
        "import os\nNAME = os.path.join('a', 'b')\n",
        "from ._ops import add_op_namespace_prefix as p\nimport torch.library as t\n@t.custom_op(p('x'))\n"
        "def f(x: int) -> int:\n    return x\n",
        "import torch\nLIB = torch.library.Library('aten', 'IMPL')\n",
        "from ._ops import _NAMESPACE\nimport torch\nLIB = torch.library.Library(_NAMESPACE, 'DEF')\n",
    ],
)
def test_this_is_accepted(tmp_path, text):
    write(tmp_path, "__init__.py", text)
    assert python_code.problems(str(tmp_path), "relu") == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import relu\n", "__init__.py, line 1: it imports relu: the package is imported under another name"),
        ("def f():\n    from relu.sub import x\n", "line 2: it imports relu.sub"),
        ("import importlib\nimportlib.import_module('relu._ops')\n", "line 2: it imports relu._ops"),
        ("open('x', 'w')\n", "line 1: it writes (open) when it is imported: do it in a function"),
        ("open('x', mode='ab')\n", "line 1: it writes (open)"),
        ("open('x', 'rb+')\n", "line 1: it writes (open)"),
        ("from pathlib import Path\nPath('x').write_text('')\n", "line 2: it changes files (Path('x').write_text)"),
        ("class A:\n    import os\n    os.makedirs('x')\n", "line 3: it changes files (os.makedirs)"),
        ("import subprocess\nsubprocess.run(['ls'])\n", "line 2: it starts a process (subprocess.run)"),
        (
            "import torch\n@torch.library.custom_op('acme::relu', mutates_args=())\ndef f(x): ...\n",
            "line 2: it defines ops in the namespace 'acme': another package may define it; use this build's",
        ),
        ("import torch\ntorch.library.define('acme::f', '() -> ()')\n", "in the namespace 'acme'"),
        ("from torch.library import Library\nLIB = Library('acme', 'DEF')\n", "in the namespace 'acme'"),
        ("import torch\nLIB = torch.library.Library(ns='acme', kind='FRAGMENT')\n", "in the namespace 'acme'"),
        ("from torch.library import triton_op\n@triton_op('acme::f')\ndef f(): ...\n", "in the namespace 'acme'"),
        ("def f(:\n", "__init__.py cannot be read as Python"),
        ("x = '\0'\n", "__init__.py cannot be read as Python"),
    ],
)
def test_this_is_refused_with_its_line(tmp_path, text, problem):
    write(tmp_path, "__init__.py", text)
    (line,) = python_code.problems(str(tmp_path), "relu")
    assert problem in line
