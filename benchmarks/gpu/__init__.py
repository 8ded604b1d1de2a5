"""Kernels on a GPU, against its own copy bandwidth in the same run: `python -m benchmarks.gpu`."""

FUNCTIONS = ("layer_norm", "rms_norm", "softmax", "quantisation", "gelu", "swiglu")
QUESTIONS: dict[str, dict[str, int]] = {
    "optimizers": {"large": 10, "small": 15, "master": 8, "low": 8, "lion": 6, "lamb": 6},
    "quantizer": {"": 25},
    "rows": dict.fromkeys(FUNCTIONS, 20),
    "first_launch": {"": 75},
    "few": {"layer_norm": 10, "rms_norm": 10, "softmax": 10},
    "compiled": dict.fromkeys(FUNCTIONS, 60),
}
"""The modules of this package that measure, what has a target first -> their parts, and the seconds that each may take
(guesses, for the plan alone). Each has run(gpu, part), which gives timing.Figure, one after the other."""
NAMES = (*QUESTIONS, *(f"{name}.{part}" for name, parts in QUESTIONS.items() for part in parts if part))
"""What can be asked for: `rows`, or `rows.softmax`, which is that part alone."""


def parts(asked: list[str]) -> dict[str, int]:
    """The parts of what was asked for, or of everything -> seconds: what fails in one of them hides no other."""
    found = {}
    for name in asked or QUESTIONS:
        question, _, only = name.partition(".")
        for part, seconds in QUESTIONS[question].items():
            if only in ("", part):
                found[f"{question}.{part}" if part else question] = seconds
    return found
