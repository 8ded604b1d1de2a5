"""Benchmarks of kernels on a GPU, against its copy bandwidth in the same run: `python -m benchmarks.gpu`."""

FUNCTIONS = ("layer_norm", "rms_norm", "softmax", "quantisation", "gelu", "swiglu")
BENCHMARKS: dict[str, dict[str, int]] = {
    "optimizers": {"large": 10, "small": 15, "master": 8, "low": 8, "lion": 6, "lamb": 6},
    "quantizer": {"": 25},
    "fp_quantizer": {"": 60},
    "attention": {"dense": 10, "evoformer": 10},
    "sparse": {"": 10},
    "paged": {"decode": 5, "gather": 5},
    "rows": dict.fromkeys(FUNCTIONS, 20),
    "first_launch": {"": 75},
    "few": {"layer_norm": 10, "rms_norm": 10, "softmax": 10},
    "compiled": dict.fromkeys(FUNCTIONS, 60),
}
"""Benchmark -> its parts -> the seconds that each part may take.

Benchmarks with targets come first. The seconds are guesses, for the plan only. Each benchmark is a module of this
package with a function `run(gpu, part)`, which yields timing.Figure.
"""
NAMES = (*BENCHMARKS, *(f"{name}.{part}" for name, parts in BENCHMARKS.items() for part in parts if part))
"""What can be selected: `rows`, or `rows.softmax`, which is that part alone."""


def selected_parts(names: list[str]) -> dict[str, int]:
    """Returns the parts of the named benchmarks, or of all -> seconds. Parts are run, and may fail, one by one."""
    selected = {}
    for name in names or BENCHMARKS:
        benchmark, _, only = name.partition(".")
        for part, seconds in BENCHMARKS[benchmark].items():
            if only in ("", part):
                selected[f"{benchmark}.{part}" if part else benchmark] = seconds
    return selected
