"""The CPU's ops, by the builder names that `create_op_builder` accepts."""

BUILDERS: dict[str, str] = {
    "CPUAdagradBuilder": "opforge.builders.cpu.adagrad:CPUAdagradBuilder",
    "CPUAdamBuilder": "opforge.builders.cpu.adam:CPUAdamBuilder",
    "CPULionBuilder": "opforge.builders.cpu.lion:CPULionBuilder",
    "FPQuantizerBuilder": "opforge.builders.cpu.fp_quantizer:FPQuantizerBuilder",
    "FusedAdamBuilder": "opforge.builders.cpu.fused_adam:FusedAdamBuilder",
    "FusedLambBuilder": "opforge.builders.cpu.fused_lamb:FusedLambBuilder",
    "FusedLionBuilder": "opforge.builders.cpu.fused_lion:FusedLionBuilder",
    "QuantizerBuilder": "opforge.builders.cpu.quantizer:QuantizerBuilder",
}
