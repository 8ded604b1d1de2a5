"""What `opforge port` leaves to a person or marks for review, and the reasons that it reports."""

from __future__ import annotations

import pytest

pytest.importorskip("libcst", reason="pip install 'opforge[port]'")

from opforge.errors import PortError
from opforge.port.findings import CONVERTED, LEFT, NOTE
from opforge.port.rewriting import port_text

HEAD = "import torch\nimport torch.distributed as dist\n\n\ndef main(x, y, args):\n    "


def reasons_left(text):
    """Returns the reasons of the findings in a text in which nothing is converted."""
    ported = port_text(text)
    assert ported.text == text and {finding.kind for finding in ported.findings} == {LEFT}
    return [finding.message for finding in ported.findings]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("torch.cuda.get_device_name(0)", "capabilities().device_name names the current device"),
        ("torch.cuda.get_device_properties(0).name", "only .total_memory has a counterpart"),
        ("torch.cuda.nccl.version()", "no counterpart"),
        ("torch.cuda.graph_pool_handle()", "no counterpart"),
        ("torch.version.cuda", "no counterpart"),
        ("torch.backends.cudnn.benchmark = True", "no counterpart"),
        ("c = torch.cuda", "the module itself"),
        ("torch.cuda.synchronize = x", "it is assigned or deleted here"),
        ("del torch.cuda.synchronize", "it is assigned or deleted here"),
        ("torch.cuda.FloatTensor(3)", "from sizes or from values"),
        ("isinstance(x, torch.cuda.FloatTensor)", "compare dtype and device instead"),
        ("isinstance(x, torch.cuda.device)", "a torch class"),
        ("isinstance(x, torch.cuda.CUDAGraph)", "a torch class"),
        ("torch.cuda.CUDAGraph(keep_graph=True)", "a torch class"),
        ("torch.cuda.graph(x, capture_error_mode='relaxed')", "no counterpart of the argument capture_error_mode"),
        ("torch.cuda.is_bf16_supported(False)", "no counterpart of the argument number 1"),
        ("torch.cuda.synchronize(*args)", "it has * or ** arguments"),
        ("torch.cuda.amp.autocast(*args)", "it has * or ** arguments"),
        ("torch.cuda.set_device('cuda')", "the device has no index"),
        ("s: torch.cuda.Stream = x", "a type annotation"),
        ("x.cuda(y)", "the argument may be an index or a device"),
        ("x.cuda(*args)", "do not show which device"),
        ("super().cuda()", "called explicitly"),
        ("x.is_cuda()", "called, so it is not a tensor's"),
        ("x.pin_memory('cuda:0')", "names a device, and"),
        ("torch.empty(3, pin_memory=True)", "use get_accelerator().pin_empty"),
        ("print('cuda')", "may or may not be a device"),
        ("device = 'cuda'", "may or may not be a device"),
        ("x.device.type in ('cuda', 'cpu')", "may or may not be a device"),
        ("x == 'cuda'", "may or may not be a device"),
        ("x.device == 'cuda'", "may or may not be a device"),
        ("x.device.type == 'cuda:0'", "may or may not be a device"),
        ("x = {'cuda': 1}", "may or may not be a device"),
        ("x.type('torch.cuda.FloatTensor')", "has no known replacement"),
        ("x['CUDA_VISIBLE_DEVICES'] = 1", "has no known replacement"),
        ("print('nccl')", "has no known replacement"),
        ("import pynvml", "exists only on this vendor's machines"),
        ("match x:\n        case torch.cuda.synchronize: pass", "a pattern, which cannot hold a call"),
        ("class S(torch.cuda.Stream): pass", "a base class"),
    ],
)
def test_what_cannot_be_decided_is_left_with_a_reason(code, reason):
    reasons = reasons_left(HEAD + code + "\n")
    assert any(reason in message for message in reasons), reasons


def test_a_variable_that_is_used_as_a_device_and_an_index_is_left():
    text = HEAD + "d = torch.cuda.current_device(); x.to(d); y[d]\n"
    assert reasons_left(text) == [
        "'d' is used as a device and as something else: use current_device_name() or an index"
    ]


def test_a_name_of_torch_is_left_if_torch_is_not_imported():
    text = "from x import *\n\n\ndef f():\n    torch.cuda.synchronize()\n"
    assert reasons_left(text) == ["this module does not import torch, so the name's meaning is unknown"]


def test_a_star_import_of_a_vendors_names_is_left():
    assert reasons_left("from torch.cuda import *\n") == ["which names it imports is not visible here"]


def test_a_method_that_the_module_defines_is_left():
    text = "class A:\n    def cuda(self):\n        return self\n\n\ndef f(a):\n    a.cuda()\n"
    assert reasons_left(text) == [
        "a class of this module defines a member of that name, so the owner may not be a tensor"
    ]


def test_a_function_of_a_package_is_not_reported():
    assert port_text("import kernels\n\nkernels.cuda()\nkernels.pin_memory()\nkernels.is_cuda\n").findings == []


@pytest.mark.parametrize("imported", ["from kernels import x", "from . import x"])
def test_a_member_of_an_imported_name_is_left(imported):
    text = f"{imported}\n\n\ndef f():\n    x.cuda()\n    return x.is_cuda, x.pin_memory()\n"
    assert reasons_left(text) == ["an imported name, which may or may not be a torch tensor or module"] * 3


def test_a_text_that_is_nested_too_deeply_is_an_error():
    with pytest.raises(PortError, match=r"nested too deeply|line 1"):
        port_text("x = 'cuda'" + " + (1" * 5000 + ")" * 5000 + "\n")


def test_a_scripted_function_is_left():
    text = "import torch\n\n\n@torch.jit.script\ndef f(x):\n    return x.is_cuda\n"
    assert reasons_left(text) == [
        "in a function that its decorator compiles: compiled code cannot call get_accelerator"
    ]


def test_deepspeed_names_that_opforge_lacks_are_left():
    text = "from deepspeed.accelerator import get_accelerator, DeepSpeedAccelerator\n"
    assert reasons_left(text) == ["opforge has no DeepSpeedAccelerator: import the names that it has from opforge"]


STRING = "a string that may or may not be a device: its use here does not show which"
CHOICE = "this code distinguishes cuda and xpu: replace it by one path through the accelerator"


@pytest.mark.parametrize(
    "body",
    [
        "if torch.cuda.is_available():\n        y = 'cuda'\n    elif torch.xpu.is_available():\n        y = 'xpu'",
        "if x.is_cuda:\n        torch.cuda.synchronize()\n    if x.is_xpu:\n        torch.xpu.synchronize()",
        "return torch.device('cuda' if torch.cuda.is_available() else 'xpu' if y else 'cpu')",
        "return x.is_cuda or x.is_xpu",
    ],
)
def test_a_function_that_chooses_between_vendors_is_left_whole(body):
    reasons = set(reasons_left(HEAD + body + "\n"))
    assert CHOICE in reasons and reasons <= {CHOICE, STRING}


def test_only_queries_are_left_if_different_functions_of_a_module_name_two_vendors():
    text = (
        "import torch\n\n\ndef has_cuda():\n    return torch.cuda.is_available()\n\n\n"
        "def has_xpu():\n    return torch.xpu.is_available()\n\n\n"
        "def clear(x):\n    torch.cuda.empty_cache()\n    return {'cache': torch.cuda.empty_cache}\n"
    )
    assert [(finding.text, finding.kind) for finding in port_text(text).findings] == [
        ("torch.cuda.is_available()", LEFT),
        ("torch.xpu.is_available()", LEFT),
        ("torch.cuda.empty_cache()", CONVERTED),
        ("torch.cuda.empty_cache", LEFT),
    ]


def test_a_backend_that_two_vendors_share_does_not_distinguish_them():
    text = HEAD + "dist.init_process_group('hccl')\n    torch.hpu.synchronize()\n"
    assert [finding.kind for finding in port_text(text).findings] == [CONVERTED, CONVERTED]
    assert {finding.kind for finding in port_text(text.replace("hpu", "cuda")).findings} == {LEFT}


IMPORT = "runs when the module is imported, so the accelerator is chosen then"


@pytest.mark.parametrize(
    ("text", "has_note"),
    [
        ("import torch\nx = torch.device('cuda')\n", True),
        ("import torch\ndef f(d='cuda'):\n    return torch.zeros(1, device=d)\n", True),
        ("import torch\nclass A:\n    x = torch.device('cuda')\n", True),
        ("import torch\n@torch.cuda.amp.custom_fwd\ndef f(): pass\n", True),
        ("import torch\nif __name__ == '__main__':\n    torch.cuda.synchronize()\n", False),
        ("import torch\ndef f():\n    torch.cuda.synchronize()\n", False),
        ("import torch\nf = lambda: torch.cuda.synchronize()\n", False),
    ],
)
def test_code_that_runs_at_import_is_converted_with_a_note(text, has_note):
    findings = port_text(text).findings
    assert [finding.kind for finding in findings].count(CONVERTED) == 1
    assert [finding.message for finding in findings if finding.kind == NOTE] == [IMPORT] * has_note


@pytest.mark.parametrize(
    ("argument", "has_note"),
    [("device", True), ("x.device", True), ("0", False), ("local_rank", False), ("'cuda:1'", False), ("int(x)", False)],
)
def test_an_argument_that_may_not_be_an_index_is_converted_with_a_note(argument, has_note):
    text = f"import torch\n\n\ndef f(x, device, local_rank):\n    torch.cuda.set_device({argument})\n"
    notes = [finding.message for finding in port_text(text).findings if finding.kind == NOTE]
    assert notes == ["takes a device index: if this is a torch.device, pass its .index"] * has_note


def test_lines_and_columns_count_from_one_in_the_old_and_the_new_text():
    text = "import torch\n\n\ndef f(x):\n    x.cuda(); print('cuda')\n"
    ported = port_text(text)
    assert [(finding.line, finding.column, finding.kind) for finding in ported.findings] == [
        (5, 5, CONVERTED),
        (5, 21, LEFT),
    ]
    assert [(finding.line, finding.kind) for finding in ported.remaining] == [(6, LEFT)]
    assert ported.text.splitlines()[5].endswith("print('cuda')")


def test_a_text_that_is_not_python_is_an_error():
    with pytest.raises(PortError, match=r"a\.py cannot be ported: line 2: .* Fix it, or exclude the file\."):
        port_text("x = 'cuda'\ndef f(:\n", "a.py")
