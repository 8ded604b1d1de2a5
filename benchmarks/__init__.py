"""One file a question, each against a peer and a ceiling: `python -m benchmarks`, from the checkout."""

QUESTIONS = (
    "cold_load",
    "warm_load",
    "import_cost",
    "edit_compile_run",
    "adamw",
    "accuracy",
    "fused_host",
    "single_flight",
    "hit_scaling",
    "gc_scaling",
    "rebuild_one_of_ten",
    "cold_all_ops",
    "precompiled_header",
    "cold_cuda_ops",
    "triton_prebuild",
)
"""The modules of this package that have a `run(scratch) -> Report`, in the order in which they run."""
