"""What `opforge port` leaves to a person, and the reason it gives."""

from __future__ import annotations

import pytest

pytest.importorskip("libcst", reason="pip install 'opforge[port]'")

from opforge.errors import PortError
from opforge.port.findings import CONVERTED, LEFT, NOTE
from opforge.port.rewriting import port

HEAD = "import torch\nimport torch.distributed as dist\n\n\ndef main(x, y, args):\n    "


def left(text):
    """The reasons of what is left, of a text in which nothing is converted."""
    done = port(text)
    assert done.text == text and {one.kind for one in done.findings} == {LEFT}
    return [one.message for one in done.findings]


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
        ("torch.cuda.synchronize = x", "something is put in its place"),
        ("del torch.cuda.synchronize", "something is put in its place"),
        ("torch.cuda.FloatTensor(3)", "of sizes or of values"),
        ("isinstance(x, torch.cuda.FloatTensor)", "compare dtype and device"),
        ("isinstance(x, torch.cuda.device)", "a class of torch's own"),
        ("isinstance(x, torch.cuda.CUDAGraph)", "a class of torch's own"),
        ("torch.cuda.CUDAGraph(keep_graph=True)", "a class of torch's own"),
        ("torch.cuda.graph(x, capture_error_mode='relaxed')", "no counterpart of the argument capture_error_mode"),
        ("torch.cuda.is_bf16_supported(False)", "no counterpart of the argument number 1"),
        ("torch.cuda.synchronize(*args)", "given by a star"),
        ("torch.cuda.amp.autocast(*args)", "given by a star"),
        ("torch.cuda.set_device('cuda')", "a device without a number"),
        ("s: torch.cuda.Stream = x", "a type annotation"),
        ("x.cuda(y)", "whether the argument is a number or a device is not known"),
        ("x.cuda(*args)", "do not say which device"),
        ("super().cuda()", "called for its own sake"),
        ("x.is_cuda()", "called, so it is not a tensor's"),
        ("x.pin_memory('cuda:0')", "names a device, which"),
        ("torch.empty(3, pin_memory=True)", "use get_accelerator().pin_empty"),
        ("print('cuda')", "may be a device or something else"),
        ("device = 'cuda'", "may be a device or something else"),
        ("x.device.type in ('cuda', 'cpu')", "may be a device or something else"),
        ("x == 'cuda'", "may be a device or something else"),
        ("x.device == 'cuda'", "may be a device or something else"),
        ("x.device.type == 'cuda:0'", "may be a device or something else"),
        ("x = {'cuda': 1}", "may be a device or something else"),
        ("x.type('torch.cuda.FloatTensor')", "not known to be replaceable"),
        ("x['CUDA_VISIBLE_DEVICES'] = 1", "not known to be replaceable"),
        ("print('nccl')", "not known to be replaceable"),
        ("import pynvml", "only this vendor's machines have"),
        ("match x:\n        case torch.cuda.synchronize: pass", "a pattern, in which no call may stand"),
        ("class S(torch.cuda.Stream): pass", "a base class"),
    ],
)
def test_what_cannot_be_decided_is_left_with_a_reason(code, reason):
    reasons = left(HEAD + code + "\n")
    assert any(reason in one for one in reasons), reasons


def test_a_device_that_is_also_a_number_is_left():
    text = HEAD + "d = torch.cuda.current_device(); x.to(d); y[d]\n"
    assert left(text) == ["'d' is used as a device and otherwise: decide on current_device_name() or a number"]


def test_a_module_that_is_not_imported_is_left():
    text = "from x import *\n\n\ndef f():\n    torch.cuda.synchronize()\n"
    assert left(text) == ["this module does not import torch, so what the name means is not known"]


def test_a_star_import_of_a_vendors_names_is_left():
    assert left("from torch.cuda import *\n") == ["which names it brings cannot be seen here"]


def test_a_method_that_the_module_defines_is_not_torchs():
    text = "class A:\n    def cuda(self):\n        return self\n\n\ndef f(a):\n    a.cuda()\n"
    assert left(text) == ["a class of this module has a member of that name, so whose it is here is not known"]


def test_a_function_of_a_package_is_none_of_ours():
    assert port("import kernels\n\nkernels.cuda()\nkernels.pin_memory()\nkernels.is_cuda\n").findings == []


@pytest.mark.parametrize("imported", ["from kernels import x", "from . import x"])
def test_an_imported_name_may_be_a_tensor_or_not(imported):
    text = f"{imported}\n\n\ndef f():\n    x.cuda()\n    return x.is_cuda, x.pin_memory()\n"
    assert left(text) == ["an imported name: whether it is a tensor or module of torch's is not seen here"] * 3


def test_a_text_that_is_nested_too_deeply_is_refused():
    with pytest.raises(PortError, match=r"nested too deeply|line 1"):
        port("x = 'cuda'" + " + (1" * 5000 + ")" * 5000 + "\n")


def test_a_scripted_function_is_left():
    text = "import torch\n\n\n@torch.jit.script\ndef f(x):\n    return x.is_cuda\n"
    assert left(text) == ["in a function that is compiled by its decorator, which knows no get_accelerator"]


def test_deepspeed_names_that_we_lack_are_left():
    text = "from deepspeed.accelerator import get_accelerator, DeepSpeedAccelerator\n"
    assert left(text) == ["opforge does not offer DeepSpeedAccelerator: import from opforge what it has"]


STRING = "a string that may be a device or something else: nothing here says which"
CHOICE = "this code tells cuda and xpu apart: put one path through the accelerator in its place"


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
    reasons = set(left(HEAD + body + "\n"))
    assert CHOICE in reasons and reasons <= {CHOICE, STRING}


def test_questions_are_left_where_a_module_tells_vendors_apart_and_the_rest_is_converted():
    text = (
        "import torch\n\n\ndef has_cuda():\n    return torch.cuda.is_available()\n\n\n"
        "def has_xpu():\n    return torch.xpu.is_available()\n\n\n"
        "def clear(x):\n    torch.cuda.empty_cache()\n    return {'cache': torch.cuda.empty_cache}\n"
    )
    found = [(one.text, one.kind) for one in port(text).findings]
    assert found == [
        ("torch.cuda.is_available()", LEFT),
        ("torch.xpu.is_available()", LEFT),
        ("torch.cuda.empty_cache()", CONVERTED),
        ("torch.cuda.empty_cache", LEFT),
    ]


def test_a_backend_that_two_vendors_share_tells_none_apart():
    text = HEAD + "dist.init_process_group('hccl')\n    torch.hpu.synchronize()\n"
    assert [one.kind for one in port(text).findings] == [CONVERTED, CONVERTED]
    assert {one.kind for one in port(text.replace("hpu", "cuda")).findings} == {LEFT}


IMPORT = "runs when the module is imported, so the accelerator is chosen then"


@pytest.mark.parametrize(
    ("text", "noted"),
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
def test_what_runs_at_import_is_converted_with_a_note(text, noted):
    findings = port(text).findings
    assert [one.kind for one in findings].count(CONVERTED) == 1
    assert [one.message for one in findings if one.kind == NOTE] == [IMPORT] * noted


@pytest.mark.parametrize(
    ("argument", "noted"),
    [("device", True), ("x.device", True), ("0", False), ("local_rank", False), ("'cuda:1'", False), ("int(x)", False)],
)
def test_what_may_be_no_number_is_noted(argument, noted):
    text = f"import torch\n\n\ndef f(x, device, local_rank):\n    torch.cuda.set_device({argument})\n"
    notes = [one.message for one in port(text).findings if one.kind == NOTE]
    assert notes == ["takes a device's number: where this is a torch.device, pass its .index"] * noted


def test_places_are_counted_from_one_before_and_after():
    text = "import torch\n\n\ndef f(x):\n    x.cuda(); print('cuda')\n"
    done = port(text)
    assert [(one.line, one.column, one.kind) for one in done.findings] == [(5, 5, CONVERTED), (5, 21, LEFT)]
    assert [(one.line, one.kind) for one in done.after] == [(6, LEFT)]
    assert done.text.splitlines()[5].endswith("print('cuda')")


def test_text_that_is_not_python_is_refused():
    with pytest.raises(PortError, match=r"a\.py cannot be ported: line 2: .* Mend it, or leave the file out\."):
        port("x = 'cuda'\ndef f(:\n", "a.py")
