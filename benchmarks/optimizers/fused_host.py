"""What do the fused ops cost on the host, beside CPUAdam and CPULion, torch, plain C and the memory?"""

from __future__ import annotations

from benchmarks.harness import Report, scaled
from benchmarks.scratch import Scratch

CASES = {
    "large": ("16 Mi elements, fp32", "ms", 1e3),
    "list": ("1000 tensors of 1000, fp32", "ms", 1e3),
    "single": ("one tensor of 1000, fp32", "us", 1e6),
}
FUSED, LOOP, COPY = "torch AdamW(fused)", "C loop of AdamW", "copy"
CHILD = "optimizers.child_fused_host"


def run(scratch: Scratch) -> Report:
    """Returns ratios of the best samples: other programs lengthen a sample and never shorten it."""
    report = Report(
        "one step of each fused op by its front end, and one quantization of 4 Mi values in groups of 512",
        "AdamW as a plain C loop (28 bytes an element; Lion moves 20, LAMB in its two passes 40); for the quantizer a "
        "copy that moves the bytes of fp32 values and int8 codes",
    )
    for case, (title, unit, factor) in CASES.items():
        samples = scratch.run_child(CHILD, case)
        table = report.table(f"{title}, processor time of one thread", unit, against=(FUSED, LOOP))
        for name, seconds in samples.items():
            table.add(name, scaled(seconds, factor), "ceiling" * (name == LOOP))
        best = {name: min(seconds) for name, seconds in samples.items()}
        report.figure(f"FusedAdam, {title}", best["FusedAdam"] / best["CPUAdam"], "of CPUAdam", 1.05)
        report.figure(f"FusedAdam, {title}", best["FusedAdam"] / best[FUSED], "of torch fused", 1.0)
        report.figure(f"FusedLion, {title}", best["FusedLion"] / best["CPULion"], "of CPULion", 1.05)
        report.figure(f"FusedLamb, {title}", best["FusedLamb"] / best[LOOP], "of AdamW's C loop")
    samples = scratch.run_child(CHILD, "quantizer")
    table = report.table("4 Mi fp32 values, processor time of one thread", "ms", against=(COPY,))
    for name, seconds in samples.items():
        table.add(name, scaled(seconds, 1e3), "ceiling" * (name == COPY))
    return report
