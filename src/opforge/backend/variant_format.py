"""The form of wheel variants: names, properties and metadata (PEP 817, PEP 825 and PEP 850, which are drafts).

A later draft changes this module alone. The schema, the plug-ins and the values of properties are those that uv 0.13.9
reads (`--preview-features wheel-variants`) and that variantlib 0.2.2 accepts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opforge.accelerator import archs
from opforge.accelerator.target import Target
from opforge.cache.schema import TEXTS, parse, record, table

SCHEMA = "https://variants-schema.wheelnext.dev/peps/850/v0.2.0.json"
NULL = "null"
"""The label of the variant without properties, which every installer that knows variants may take."""
LABEL = re.compile(r"[0-9a-z._]+")
METADATA = "variant.json"
"""In the folder `.dist-info` of a variant: what the variant is."""
PROVIDERS = {
    "nvidia": {
        "requires": ["nvidia-variant-provider"],
        "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
    },
    "x86_64": {"requires": ["x86-64-variant-provider"], "plugin-api": "x86_64_variant_provider"},
}
"""Namespace -> what tells an installer the properties of its machine, in the order of preference."""
NAMESPACES = {"cuda": "nvidia", "cpu": "x86_64"}
"""Device -> the namespace of its properties. For other devices no installer can choose yet."""
Properties = Mapping[str, Mapping[str, Sequence[str]]]
"""Namespace -> feature -> values. A variant fits a machine that has one value of each feature."""
DOCUMENT = record({"variants": table(table(table(TEXTS)))}, is_open=True)
"""The part of the metadata that opforge reads."""


class Variant(NamedTuple):
    """A variant: its label, its properties, and the target whose code it holds."""

    label: str
    target: Target
    properties: Properties = {}


def label_problem(label: str) -> str:
    """Returns why a label cannot be that of a variant with properties, or an empty text."""
    if label == NULL:
        return f"the label {NULL!r} is that of the variant without properties"
    if not LABEL.fullmatch(label):
        return f"the label {label!r} has other characters than a-z, 0-9, '.' and '_'"
    return ""


def target_problem(target: Target) -> str:
    """Returns why no property can say what code for a target needs, or an empty text."""
    if target.device not in NAMESPACES or (target.device == "cpu" and not _level(target)):
        return f"no installer knows a property for {target}"
    for word in target.arch if target.device == "cuda" else ():
        if word != "ptx" and archs.numbers(word)[2] == "a" and archs.numbers(word)[:2] != (9, 0):
            family = f"{word[:-1]}f"
            others = f"nvcc's for {family} or {word[:-1]} runs on more, Triton's does not"
            return f"no property says that code for {word} runs on this chip alone ({others})"
    return ""


def default_label(target: Target, driver: str = "") -> str:
    """Returns the label for code for a target: `x86_64_v3`, `cu13_sm80_sm90_ptx90`, `null` for the base level."""
    if target.device == "cpu":
        return NULL if _level(target) == "v1" else f"x86_64_{_level(target)}"
    words = (word.replace("sm_", "sm").replace("compute_", "ptx") for word in archs.resolve_ptx(target.arch))
    return "_".join([*([f"cu{driver.partition('.')[0]}"] if driver else []), *words])


def properties(target: Target, driver: str = "") -> Properties:
    """Returns the properties that a machine must have for a target's code.

    `driver` is the oldest CUDA that its driver must support. The base level of a processor needs nothing.
    """
    if target.device == "cpu":
        level = _level(target)
        return {"x86_64": {"level": [level]}} if level not in ("", "v1") else {}
    real = [word.replace("sm_", "") for word in target.arch if word.startswith("sm_")]
    virtual = [word.replace("compute_", "") for word in archs.resolve_ptx(target.arch) if word.startswith("compute_")]
    # Within one major release real code runs on every later minor one, and so does the code of a family (f). The only
    # chip of 9.x is 9.0: what is for this one alone (90a) has the same property.
    values = sorted(
        {f"{word.rstrip('af')}_real" for word in real} | {f"{word.rstrip('af')}_virtual" for word in virtual}
    )
    return {"nvidia": {**({"cuda_version_lower_bound": [driver]} if driver else {}), "sm_arch": values}}


def document(variants: Sequence[Variant]) -> bytes:
    """Returns the metadata of these variants: of one for its wheel, or of all for the index."""
    data: dict[str, Any] = {
        "$schema": SCHEMA,
        "default-priorities": {"namespace": [*PROVIDERS]},
        "providers": PROVIDERS,
        "variants": {variant.label: variant.properties for variant in variants},
    }
    return (json.dumps(data, indent=2, sort_keys=True) + "\n").encode()


def read(content: bytes, label: str) -> Properties:
    """Returns the properties in the metadata of one variant. Raises FormatError, KeyError if there are none of it."""
    properties: Properties = parse(content, DOCUMENT)["variants"][label]
    return properties


def wheel_name(plain: str, label: str) -> str:
    """Returns the name of a variant of the wheel that is called `plain`."""
    return f"{plain.removesuffix('.whl')}-{label}.whl"


def index_name(plain: str) -> str:
    """Returns the name of the file that lists the variants of a release, by the name of one of its wheels."""
    name, version = plain.split("-")[:2]
    return f"{name}-{version}-variants.json"


def _level(target: Target) -> str:
    """Returns `v1` to `v4` for a level of x86-64, and an empty text for another processor."""
    if not target.arch or not target.arch[0].startswith("x86-64"):
        return ""
    return target.arch[0].removeprefix("x86-64").lstrip("-") or "v1"
