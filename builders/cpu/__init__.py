"""The CPU's ops, by the names that `create_op_builder` takes."""

BUILDERS: dict[str, str] = {
    "CPUAdagradBuilder": "opforge.builders.cpu.adagrad:CPUAdagradBuilder",
    "CPUAdamBuilder": "opforge.builders.cpu.adam:CPUAdamBuilder",
    "CPULionBuilder": "opforge.builders.cpu.lion:CPULionBuilder",
}
