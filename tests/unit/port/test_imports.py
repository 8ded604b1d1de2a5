"""Where `opforge port` inserts the import that its code needs."""

from __future__ import annotations

import pytest

pytest.importorskip("libcst", reason="pip install 'opforge[port]'")

from opforge.port.rewriting import port_text

OURS = "from opforge import get_accelerator\n"
USE = "\n\ndef main(x):\n    x.cuda()\n"
USED = "\n\ndef main(x):\n    x.to(get_accelerator().device_name())\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""Doc."""\n', '"""Doc."""\n\n' + OURS),
        ("#!/usr/bin/env python\n# a licence\n", "#!/usr/bin/env python\n# a licence\n\n\n" + OURS),
        ("from __future__ import annotations\n", "from __future__ import annotations\n\n" + OURS),
        ("import os\nimport torch\n", "import os\nimport torch\n" + OURS),
        (
            "import os\n\nimport torch\n\nfrom .a import b\n",
            "import os\n\nimport torch\n" + OURS + "\nfrom .a import b\n",
        ),
        ("import torch\nfrom torch import nn\n", "import torch\n" + OURS + "from torch import nn\n"),
        ("import torch\nfrom numpy import a\n", "import torch\n" + OURS + "from numpy import a\n"),
        ("from .a import b\nfrom .c import d\n", OURS + "from .a import b\nfrom .c import d\n"),
        ("import os; import torch\n", "import os; import torch\n" + OURS),
        (
            "import torch  # the one\n\nimport os\n",
            "import torch  # the one\n" + OURS + "\nimport os\n",
        ),
    ],
)
def test_the_import_is_inserted_among_the_modules_imports(before, after):
    new = port_text(before + USE).text
    assert new == after + USED
    assert port_text(new).text == new


def test_the_import_comes_first_in_a_module_without_imports():
    assert port_text(USE.lstrip("\n")).text == OURS + USED


def test_a_comment_above_the_first_statement_stays_there():
    about = "\n\n# about main"
    assert port_text('"""Doc."""\n' + about + USE[1:]).text == '"""Doc."""\n\n' + OURS + about + USED[1:]


def test_the_import_precedes_code_that_runs_at_import():
    text = "import os\n\nx = 1\nimport torch\n\ntorch.cuda.synchronize()\n" + OURS
    new = port_text(text).text
    assert new == ("import os\n" + OURS + "\nx = 1\nimport torch\n\nget_accelerator().synchronize()\n" + OURS)


def test_an_existing_import_is_not_repeated():
    text = "import torch\nfrom opforge import get_accelerator\n" + USE
    assert port_text(text).text == "import torch\nfrom opforge import get_accelerator\n" + USED


def test_an_import_inside_a_function_does_not_count_for_the_module():
    text = "import torch\n\n\ndef f():\n    torch.cuda.synchronize()\n    from opforge import get_accelerator\n"
    new = port_text(text).text
    assert "from opforge import get_accelerator as opforge_get_accelerator\n" in new
    assert "    opforge_get_accelerator().synchronize()\n" in new


def test_no_import_is_added_if_none_is_needed():
    text = (
        "import torch\n\n\ndef main():\n    try:\n        pass\n    except torch.cuda.OutOfMemoryError:\n        pass\n"
    )
    assert port_text(text).text == text.replace("torch.cuda.Out", "torch.Out")
