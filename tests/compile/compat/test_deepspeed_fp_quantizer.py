"""DeepSpeed's own FP_Quantize and quantized parameters on the CPU, over opforge's op."""

from __future__ import annotations

import pytest
from support import deepspeed_job

if not deepspeed_job.is_installed():
    pytest.skip(deepspeed_job.MISSING, allow_module_level=True)

PROGRAM = """
import json, torch
import opforge.compat.deepspeed as compat
compat.install()
from deepspeed.linear.config import QuantizationConfig
from deepspeed.linear.quantization import QuantizedParameter
from deepspeed.ops.fp_quantizer import FP_Quantize
from deepspeed.ops.op_builder import FPQuantizerBuilder
from opforge.builders.cpu.fp_quantizer import FPQuantizerBuilder as Ours

results = {"is ours": issubclass(FPQuantizerBuilder, Ours), "largest": FPQuantizerBuilder().get_quant_range(8)}
results["dtype"] = str(FPQuantizerBuilder().get_default_quant_dtype())
x = torch.randn(4, 8, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
quantizer = FP_Quantize(QuantizationConfig(group_size=128))
results["errors"], results["selected"] = {}, []
for bits, mantissa in ((8, 3), (8, 2), (12, 4), (6, 2), (4, 1)):
    rows = quantizer.quantize(x, q_bits=bits, q_mantisa_bits=mantissa)
    back = quantizer.dequantize(rows, q_bits=bits, q_mantisa_bits=mantissa)
    largest = x.view(-1, 128).abs().amax(1, keepdim=True)
    results["errors"][f"{bits}/{mantissa}"] = ((back - x).view(-1, 128).abs() / largest).max().item()
    indexes = torch.tensor([3, 1], dtype=torch.int32)
    part = quantizer.selective_dequantize(rows, indexes, q_bits=bits, q_mantisa_bits=mantissa)
    results["selected"].append(torch.equal(part, back[[3, 1]]))
codes, scale = quantizer.quantize(x, return_meta_tensor=True)
results["codes"] = [list(codes.shape), list(scale.shape)]
results["scales"] = torch.allclose(quantizer.get_scales(), x.view(-1, 128).abs().amax(1, keepdim=True).float() / 480)
results["with scales apart"] = torch.equal(quantizer.dequantize(codes, scale=scale), quantizer.dequantize(
    quantizer.quantize(x)))
weight = QuantizedParameter(x.clone(), quantization_config=QuantizationConfig(group_size=128))
results["weight"] = [str(weight.dtype), (weight.dequantized() - x).abs().max().item() / x.abs().max().item()]
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(shared_store, tmp_path_factory):
    """What the program printed."""
    return deepspeed_job.run(PROGRAM, shared_store, tmp_path_factory.mktemp("deepspeed"), LOCAL_RANK=None)


def test_fp_quantize_uses_opforges_op_with_deepspeeds_formats(results):
    assert results["is ours"] is True
    assert (results["largest"], results["dtype"]) == (480, "torch.uint8")
    limits = {"8/3": 2**-4, "8/2": 2**-3, "12/4": 2**-8, "6/2": 2**-3, "4/1": 2**-2}
    assert {name: error <= limits[name] for name, error in results["errors"].items()} == dict.fromkeys(limits, True)
    assert results["selected"] == [True] * 5


def test_codes_and_scales_can_be_apart(results):
    assert results["codes"] == [[4, 8, 64], [16, 4]]
    assert results["scales"] is True and results["with scales apart"] is True


def test_a_quantized_parameter_comes_back(results):
    dtype, error = results["weight"]
    assert dtype == "torch.uint8" and 0 < error < 2**-4
