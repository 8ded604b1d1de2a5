"""The code that `opforge port` writes for one line, and for aliases and names that are taken."""

from __future__ import annotations

import pytest

pytest.importorskip("libcst", reason="pip install 'opforge[port]'")

from opforge.port.rewriting import port_text

HEAD = "import torch\nimport torch.distributed as dist\n"
HEAD_AFTER = HEAD + "from opforge import get_accelerator\n"
A = "get_accelerator()"
BODY = "\n\ndef main(x, y, rank, args):\n    {}\n"


def converted_line(code):
    """Returns the converted line, in a function of a module that imports torch."""
    text = HEAD + BODY.format(code)
    new = port_text(text).text
    assert port_text(new).text == new
    head = HEAD_AFTER if new != text else HEAD
    assert new.startswith(head), new
    return new.removeprefix(head).removeprefix(BODY.split("{}")[0]).rstrip("\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.cuda.synchronize()", f"{A}.synchronize()"),
        ("torch.cuda.synchronize(1)", f"{A}.synchronize(1)"),
        ("torch.cuda.synchronize(device=rank)", f"{A}.synchronize(device_index=rank)"),
        ("torch.cuda.synchronize('cuda:1')", f"{A}.synchronize(1)"),
        ("torch.cuda.synchronize('cuda')", f"{A}.synchronize()"),
        ("torch.cuda.synchronize(device=f'cuda:{rank}')", f"{A}.synchronize(device_index=rank)"),
        ("torch.cuda.set_device(torch.device('cuda:2'))", f"{A}.set_device(2)"),
        ("torch.cuda.set_device(torch.device('cuda', rank))", f"{A}.set_device(rank)"),
        ("torch.cuda.set_rng_state(x, 'cuda')", f"{A}.set_rng_state(x)"),
        ("torch.cuda.get_rng_state(f'cuda:{x}')", f"{A}.get_rng_state(x)"),
        ("torch.cuda.memory.empty_cache()", f"{A}.empty_cache()"),
        ("torch.cuda.mem_get_info(0)[0]", f"{A}.mem_get_info(0)[0]"),
        ("torch.cuda._lazy_call(x)", f"{A}.lazy_call(x)"),
        ("with torch.cuda.device(rank): pass", f"with {A}.device(rank): pass"),
        ("with torch.cuda.stream(x): pass", f"with {A}.stream(x): pass"),
        ("x = torch.cuda.Stream(priority=-1)", f"x = {A}.Stream(priority=-1)"),
        ("x = torch.cuda.Event(enable_timing=True)", f"x = {A}.Event(enable_timing=True)"),
        ("isinstance(x, torch.cuda.Event)", f"isinstance(x, {A}.Event)"),
        ("x = torch.cuda.synchronize if y else None", f"x = {A}.synchronize if y else None"),
        ("x = torch.cuda.CUDAGraph()", f"x = {A}.create_graph()"),
        ("with torch.cuda.graph(x, pool=y): pass", f"with {A}.capture_to_graph(x, pool=y): pass"),
        ("with torch.cuda.graph(cuda_graph=x): pass", f"with {A}.capture_to_graph(graph=x): pass"),
        ("torch.cuda.nvtx.range_push('step')", f"{A}.range_push('step')"),
        ("torch.cuda.nvtx.range_pop()", f"{A}.range_pop()"),
        ("torch.cuda.FloatTensor([1.0, 2.0])", f"{A}.FloatTensor([1.0, 2.0])"),
        ("torch.cuda.default_generators[rank].seed()", f"{A}.default_generator(rank).seed()"),
        ("torch.cuda.get_device_properties(0).total_memory", f"{A}.total_memory(0)"),
        ("torch.cuda.get_device_properties('cuda:1').total_memory", f"{A}.total_memory(1)"),
        ("torch.backends.mps.is_available()", f"{A}.is_available()"),
        ("torch.mps.current_allocated_memory()", f"{A}.memory_allocated()"),
        ("torch.npu.synchronize()", f"{A}.synchronize()"),
        ("torch.hpu.HPUGraph()", f"{A}.create_graph()"),
        (
            "try: pass\n    except torch.cuda.OutOfMemoryError: pass",
            "try: pass\n    except torch.OutOfMemoryError: pass",
        ),
    ],
)
def test_names_of_torchs_vendor_modules_become_calls_of_the_accelerator(before, after):
    if "OutOfMemoryError" in before:
        assert after in port_text(HEAD + BODY.format(before)).text
    else:
        assert converted_line(before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x.to('cuda')", f"x.to({A}.device_name())"),
        ("x.to('cuda:1', torch.float16)", f"x.to({A}.device_name(1), torch.float16)"),
        ("x.to(device='cuda')", f"x.to(device={A}.device_name())"),
        ("x.to('cuda' if y else 'cpu')", f"x.to({A}.device_name() if y else 'cpu')"),
        ("x.to('cpu' if y else'cuda')", f"x.to('cpu' if y else({A}.device_name()))"),
        ("x.to(args.device or 'cuda')", f"x.to(args.device or {A}.device_name())"),
        ("x.to(('cuda'))", f"x.to(({A}.device_name()))"),
        ("x.to('cuda' ':1')", f"x.to({A}.device_name(1))"),
        ("x.to(r'cuda:01')", f"x.to({A}.device_name(1))"),
        ("torch.zeros(3, device=f'cuda:{rank}')", f"torch.zeros(3, device={A}.device_name(rank))"),
        ("torch.zeros(3, device='cuda:%d' % rank)", f"torch.zeros(3, device={A}.device_name(rank))"),
        ("torch.zeros(3, device='cuda:%d' % (rank,))", f"torch.zeros(3, device={A}.device_name(rank))"),
        ("torch.zeros(3, device='cuda:{}'.format(rank))", f"torch.zeros(3, device={A}.device_name(rank))"),
        ("torch.zeros(3, device='cuda:' + str(rank))", f"torch.zeros(3, device={A}.device_name(rank))"),
        ("x.new(device=f'cuda:{torch.cuda.current_device()}')", f"x.new(device={A}.current_device_name())"),
        (
            "torch.zeros(3, device=f'cuda:{torch.cuda.current_device() + 1}')",
            f"torch.zeros(3, device={A}.device_name({A}.current_device() + 1))",
        ),
        ("torch.device('cuda')", f"torch.device({A}.device_name())"),
        ("torch.device('cuda', rank)", f"torch.device({A}.device_name(rank))"),
        ("torch.device(type='cuda', index=0)", f"torch.device({A}.device_name(0))"),
        ("torch.device('cuda', torch.cuda.current_device())", f"torch.device({A}.current_device_name())"),
        ("torch.load(x, map_location='cuda:0')", f"torch.load(x, map_location={A}.device_name(0))"),
        ("torch.load(x, 'cuda')", f"torch.load(x, {A}.device_name())"),
        ("torch.set_default_device('cuda')", f"torch.set_default_device({A}.device_name())"),
        ("with torch.autocast('cuda'): pass", f"with torch.autocast({A}.device_name()): pass"),
        ("with torch.autocast(device_type='cuda'): pass", f"with torch.autocast(device_type={A}.device_name()): pass"),
        ("x.device.type == 'cuda'", f"x.device.type == {A}.device_name()"),
        ("'cuda' != x.device.type", f"{A}.device_name() != x.device.type"),
        ("torch.device(x).type == 'cuda'", f"torch.device(x).type == {A}.device_name()"),
        ("x.device_type == 'cuda'", f"x.device_type == {A}.device_name()"),
        ("device = 'cuda'; x.to(device)", f"device = {A}.device_name(); x.to(device)"),
        ("d = 'cuda' if y else 'cpu'; x.to(d)", f"d = {A}.device_name() if y else 'cpu'; x.to(d)"),
        ("d = 'cuda'; x.to(d); d == 'cuda'", f"d = {A}.device_name(); x.to(d); d == {A}.device_name()"),
        ("dist.init_process_group('nccl')", f"dist.init_process_group({A}.communication_backend_name())"),
        ("dist.new_group([0], backend='nccl')", f"dist.new_group([0], backend={A}.communication_backend_name())"),
        (
            "b = 'nccl' if y else 'gloo'; dist.init_process_group(b)",
            f"b = {A}.communication_backend_name() if y else 'gloo'; dist.init_process_group(b)",
        ),
    ],
)
def test_strings_that_are_a_device_or_a_backend_are_converted(before, after):
    assert converted_line(before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x.to(torch.cuda.current_device())", f"x.to({A}.current_device_name())"),
        ("x.cuda(torch.cuda.current_device())", f"x.to({A}.current_device_name())"),
        ("torch.zeros(1, device=torch.cuda.current_device())", f"torch.zeros(1, device={A}.current_device_name())"),
        ("torch.device(torch.cuda.current_device())", f"torch.device({A}.current_device_name())"),
        ("d = torch.cuda.current_device(); x.to(d); y.to(d)", f"d = {A}.current_device_name(); x.to(d); y.to(d)"),
        ("DDP(x, device_ids=[torch.cuda.current_device()])", f"DDP(x, device_ids=[{A}.current_device()])"),
        ("d = torch.cuda.current_device(); print(d)", f"d = {A}.current_device(); print(d)"),
        ("torch.cuda.memory_allocated(torch.cuda.current_device())", f"{A}.memory_allocated({A}.current_device())"),
    ],
)
def test_the_current_device_becomes_a_name_or_an_index_as_its_use_requires(before, after):
    assert converted_line(before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x.cuda()", f"x.to({A}.device_name())"),
        ("x.cuda(0)", f"x.to({A}.device_name(0))"),
        ("x.cuda(None)", f"x.to({A}.device_name())"),
        ("x.cuda('cuda:1')", f"x.to({A}.device_name(1))"),
        ("x.cuda(rank)", f"x.to({A}.device_name(rank))"),
        ("x.cuda(args.local_rank)", f"x.to({A}.device_name(args.local_rank))"),
        ("for i in range(2): x.cuda(i)", f"for i in range(2): x.to({A}.device_name(i))"),
        ("n = int(y); x.cuda(n + 1)", f"n = int(y); x.to({A}.device_name(n + 1))"),
        ("x.cuda(non_blocking=True)", f"x.to({A}.device_name(), non_blocking=True)"),
        ("x.cuda(0, True)", f"x.to({A}.device_name(0), non_blocking=True)"),
        ("x.cuda(device=0, non_blocking=y)", f"x.to(device={A}.device_name(0), non_blocking=y)"),
        ("x.cuda(torch.device('cuda', 1))", f"x.to({A}.device_name(1))"),
        ("x.cuda(torch.device(y))", "x.to(torch.device(y))"),
        ("x[0].half().cuda().mean()", f"x[0].half().to({A}.device_name()).mean()"),
        ("(x\n     .cuda()\n     .mean())", f"(x\n     .to({A}.device_name())\n     .mean())"),
        ("x.xpu()", f"x.to({A}.device_name())"),
        ("x.is_cuda", f"{A}.on_accelerator(x)"),
        ("not(x).is_cuda", f"not({A}.on_accelerator((x)))"),
        ("not (x + y).is_cuda", f"not {A}.on_accelerator((x + y))"),
        ("x.pin_memory()", f"{A}.pin_memory(x)"),
        ("x.cpu().pin_memory().cuda()", f"{A}.pin_memory(x.cpu()).to({A}.device_name())"),
    ],
)
def test_members_of_tensors_are_converted(before, after):
    if before == "x.cuda(torch.device(y))":
        assert after in port_text(HEAD + BODY.format(before)).text
    else:
        assert converted_line(before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("with torch.cuda.amp.autocast(): pass", f"with torch.autocast({A}.device_name()): pass"),
        ("with torch.cuda.amp.autocast(False): pass", f"with torch.autocast({A}.device_name(), enabled=False): pass"),
        (
            "with torch.cuda.amp.autocast(dtype=torch.bfloat16): pass",
            f"with torch.autocast({A}.device_name(), dtype=torch.bfloat16): pass",
        ),
        ("torch.cuda.amp.GradScaler(2.0)", f"torch.amp.GradScaler({A}.device_name(), 2.0)"),
        (
            "@torch.cuda.amp.custom_fwd\n    def f(): pass",
            f"@torch.amp.custom_fwd(device_type={A}.device_name())\n    def f(): pass",
        ),
        (
            "@torch.cuda.amp.custom_fwd(cast_inputs=torch.half)\n    def f(): pass",
            f"@torch.amp.custom_fwd(cast_inputs=torch.half, device_type={A}.device_name())\n    def f(): pass",
        ),
    ],
)
def test_mixed_precision_becomes_torchs_general_form(before, after):
    assert converted_line(before) == after


@pytest.mark.parametrize(
    ("imported", "used"),
    [
        ("from torch import cuda", "cuda.synchronize()"),
        ("from torch import cuda as c", "c.synchronize()"),
        ("import torch.cuda as tc", "tc.synchronize()"),
        ("import torch.cuda", "torch.cuda.synchronize()"),
        ("import torch as th", "th.cuda.synchronize()"),
        ("from torch.cuda import synchronize", "synchronize()"),
        ("from torch.cuda import synchronize as wait", "wait()"),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None", "torch.cuda.synchronize()"),
    ],
)
def test_a_vendors_function_is_converted_under_any_alias(imported, used):
    text = f"{imported}\n\n\ndef main():\n    {used}\n"
    assert port_text(text).text.endswith(f"\n\n\ndef main():\n    {A}.synchronize()\n")


@pytest.mark.parametrize(
    "text",
    [
        "import torch\n\n\ndef main(torch):\n    torch.cuda.synchronize()\n",
        "import torch\n\n\ndef main(ts):\n    return [torch.cuda.synchronize() for torch in ts]\n",
        "import torch.cuda\n\n\ndef main():\n    torch = fake()\n    torch.cuda.synchronize()\n",
        "from numba import cuda\n\n\ndef main():\n    cuda.synchronize()\n",
        "from .torch import cuda\n\n\ndef main():\n    cuda.synchronize()\n",
        "from torch.cuda import synchronize\n\n\ndef main(synchronize):\n    synchronize()\n",
        "def main(x):\n    x(synchronize=1, cuda=2)\n    x.cuda = 1\n    return x.cuda\n",
        '"""cuda"""\n\n\ndef main():\n    "cuda"\n',
        "import torch\n\n\ndef main(x):\n    torch.accelerator.synchronize()\n    x.to('cpu')\n    x.is_cuda = 3\n",
        "import torch.cuda\n",
        "from torch.cuda import synchronize\n\n\ndef main():\n    global synchronize\n",
        "import torch\n\ntorch.cuda.synchronize()  # opforge: keep\n",
        "import torch\n\nx.to(\n    'cuda',  # opforge: keep\n)\n",
    ],
)
def test_code_without_a_vendor_reference_is_neither_changed_nor_reported(text):
    assert port_text(text) == (text, [], [])


def test_deepspeeds_get_accelerator_becomes_opforges():
    text = "from deepspeed.accelerator import get_accelerator as acc\n\nacc().synchronize()\n"
    assert port_text(text).text == text.replace("deepspeed.accelerator", "opforge")
    text = "import deepspeed\n\n\ndef main():\n    deepspeed.accelerator.get_accelerator().synchronize()\n"
    assert port_text(text).text == (
        "import deepspeed\nfrom opforge import get_accelerator\n\n\ndef main():\n    get_accelerator().synchronize()\n"
    )


def test_an_imported_get_accelerator_is_used_under_its_name():
    text = "import torch\nfrom deepspeed.accelerator import get_accelerator as acc\n\n\ndef f(x):\n    x.cuda()\n"
    assert port_text(text).text == (
        "import torch\nfrom opforge import get_accelerator as acc\n\n\ndef f(x):\n    x.to(acc().device_name())\n"
    )


def test_another_name_is_imported_if_the_module_defines_get_accelerator():
    text = "import torch\n\n\ndef get_accelerator():\n    torch.cuda.synchronize()\n"
    assert port_text(text).text == (
        "import torch\nfrom opforge import get_accelerator as opforge_get_accelerator\n\n\n"
        "def get_accelerator():\n    opforge_get_accelerator().synchronize()\n"
    )


def test_torch_is_imported_if_the_new_code_needs_it():
    text = "from torch.cuda.amp import autocast\n\n\ndef main():\n    with autocast():\n        pass\n"
    new = port_text(text).text
    assert "import torch\nfrom opforge import get_accelerator\n" in new
    assert "with torch.autocast(get_accelerator().device_name()):" in new
