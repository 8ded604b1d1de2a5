"""Benchmarks of opforge, each against a rival and a ceiling: `python -m benchmarks`, from the checkout."""

BENCHMARKS = {
    "cold_load": "loading",
    "warm_load": "loading",
    "load_sources": "loading",
    "tuned": "loading",
    "many_ops": "loading",
    "import_cost": "loading",
    "cold_cpu": "loading",
    "accelerator_calls": "accelerator",
    "edit_compile_run": "building",
    "accuracy": "optimizers",
    "single_flight": "building",
    "hit_scaling": "store",
    "gc_scaling": "store",
    "remote_load": "store",
    "remote_get": "store",
    "many_topics": "store",
    "rebuild_one_of_ten": "building",
    "cold_all_ops": "building",
    "precompiled_header": "building",
    "facade": "building",
    "facade_calls": "loading",
    "cold_cuda_ops": "building",
    "triton_prebuild": "building",
    "kernel_packages": "packages",
    "hub_folders": "packages",
    "layer_kernels": "packages",
    "compiled": "graphs",
}
"""Benchmark -> the folder with its module, which has a `run(scratch) -> Report`. They run in this order."""


def module_name(benchmark: str) -> str:
    """Returns the full name of a benchmark's module."""
    return f"benchmarks.{BENCHMARKS[benchmark]}.{benchmark}"
