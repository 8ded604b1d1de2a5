"""The ops of CUDA GPUs, by the builder names that `create_op_builder` accepts. HIP builds the same sources."""

from opforge.builders.triton import TRITON_BUILDERS

BUILDERS: dict[str, str] = {
    "FPQuantizerBuilder": "opforge.builders.cuda.fp_quantizer:FPQuantizerBuilder",
    "FusedAdamBuilder": "opforge.builders.cuda.fused_adam:FusedAdamBuilder",
    "FusedLambBuilder": "opforge.builders.cuda.fused_lamb:FusedLambBuilder",
    "FusedLionBuilder": "opforge.builders.cuda.fused_lion:FusedLionBuilder",
    "QuantizerBuilder": "opforge.builders.cuda.quantizer:QuantizerBuilder",
    **TRITON_BUILDERS,
}
