"""Architectures of devices, read by rule, so that one announced tomorrow is read too; and what runs on what.

CUDA: `sm_90`, `sm_90a` (this chip alone), `sm_100f` (its family), `compute_90` (PTX, which the driver compiles on
anything newer), `ptx` (PTX of the newest one named), `Hopper`. HIP: `gfx942`, `gfx942:sramecc+:xnack-`. Both: `native`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from opforge.errors import SettingError

NAMES = {
    "kepler+tesla": "3.7",
    "kepler": "3.5+PTX",
    "maxwell+tegra": "5.3",
    "maxwell": "5.0;5.2+PTX",
    "pascal": "6.0;6.1+PTX",
    "volta+tegra": "7.2",
    "volta": "7.0+PTX",
    "turing": "7.5+PTX",
    "ampere+tegra": "8.7",
    "ampere": "8.0;8.6+PTX",
    "ada": "8.9+PTX",
    "hopper": "9.0+PTX",
    "blackwell+tegra": "11.0",
    "blackwell": "10.0;10.3;12.0;12.1+PTX",
}
"""The names that torch's TORCH_CUDA_ARCH_LIST knows, and what each stands for there."""
VARIABLES = {"cuda": "TORCH_CUDA_ARCH_LIST", "hip": "PYTORCH_ROCM_ARCH", "xpu": "TORCH_XPU_ARCH_LIST"}
SEPARATORS = {"cuda": "[; ]", "hip": "[;, ]", "xpu": "[;, ]"}
EXPECTED = {
    "cuda": "an architecture such as sm_90, sm_100f, compute_90, ptx, Hopper or native",
    "hip": "an architecture such as gfx942, gfx90a:sramecc+:xnack- or native",
    "xpu": "an architecture such as pvc, bmg-g21 or native",
}
RULES = {
    "hip": re.compile(r"gfx[0-9a-z-]+(?::[a-z]+[+-])*"),
    "xpu": re.compile(r"[a-z][a-z0-9_.-]*"),
}
CUDA = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)")
NUMBER = re.compile(r"(\d+)\.(\d)([a-z]?)")


def read(device: str, rest: str, column: int, setting: str, text: str) -> tuple[str, ...]:
    """The architectures of a target, `rest` being what follows its colon at `column`. Raises SettingError."""
    found: list[str] = []
    typed: list[str] = []
    for at, word in _words(device, rest):
        expanded = _expand(device, word)
        if not expanded:
            raise SettingError(setting, text, f"{EXPECTED[device]} at column {column + at}, not {word!r}")
        if word in typed:
            raise SettingError(
                setting, text, f"each architecture once, but {word!r} is repeated at column {column + at}"
            )
        typed.append(word)
        found += codes(expanded) if word.lower() in NAMES else expanded
    if found == ["ptx"]:
        raise SettingError(setting, text, f"the architecture whose PTX is wanted at column {column}, such as sm_90+ptx")
    named = any(word.lower() in NAMES for word in typed)
    return canonical(device, found) if named else tuple(dict.fromkeys(found))


def _words(device: str, rest: str) -> Iterable[tuple[int, str]]:
    """The words between the `+`, each with its place; a `+` that switches a feature of HIP on belongs to its word."""
    pattern = r"[^+:]*(?::[^+:-]*[+-]?)*" if device == "hip" else r"[^+]*"
    at = 0
    while True:
        found = re.compile(pattern).match(rest, at)
        end = found.end() if found else at
        yield at, rest[at:end]
        if end >= len(rest):
            return
        at = end + 1


def _expand(device: str, word: str) -> list[str]:
    """What one word stands for; nothing where it is none."""
    lower = word.lower()
    if lower == "native":
        return [lower]
    if device != "cuda":
        return [lower] if RULES[device].fullmatch(lower) else []
    if lower == "ptx" or CUDA.fullmatch(lower):
        return [lower]
    if NUMBER.fullmatch(lower):
        return ["sm_" + lower.replace(".", "")]
    return list(listed("cuda", "target", NAMES[lower])) if lower in NAMES else []


def listed(device: str, variable: str, value: str) -> tuple[str, ...]:
    """The architectures of a list as torch's variables hold them: "8.0 9.0a 10.0f+PTX;12.0", "gfx90a;gfx942:xnack-".

    Raises SettingError, which names the column of the first that is wrong.
    """
    found: list[str] = []
    for part in re.finditer(f"(?:(?!{SEPARATORS[device]}).)+", value):
        word, with_ptx = part[0], ""
        if device == "cuda" and word.lower().endswith("+ptx"):
            word, with_ptx = word[:-4], "ptx"
        expanded = _expand(device, word) if word.lower() != "ptx" else []
        if not expanded:
            expected = "architectures such as 9.0, 9.0a, 10.0f+PTX or Hopper" if device == "cuda" else EXPECTED[device]
            raise SettingError(variable, value, f"{expected} at column {part.start() + 1}, not {word!r}")
        found += codes(expanded)  # a name that brings PTX brings its own, whatever else is in the list
        if with_ptx:
            found += ["ptx"] if expanded == ["native"] else [virtual(forward(expanded))]
    return canonical(device, found)


def from_environment(device: str) -> tuple[str, ...]:
    """What torch's variable for this device asks for; nothing where it is unset. Raises SettingError."""
    variable = VARIABLES.get(device)
    value = os.environ.get(variable, "").strip() if variable else ""
    return listed(device, variable, value) if variable and value else ()


# -- CUDA: what each word means to the compiler and to a device --------------------------------------------------------


def numbers(word: str) -> tuple[int, int, str]:
    """Major, minor and letter of `sm_90a` or `compute_90a`."""
    found = CUDA.fullmatch(word)
    assert found, word
    return int(found[2]), int(found[3]), found[4]


def virtual(word: str) -> str:
    """`compute_90a` for `sm_90a`."""
    return word.replace("sm_", "compute_")


def forward(words: Iterable[str]) -> str:
    """The newest architecture of these whose PTX newer devices can take; the newest one where all have a letter."""
    real = sorted((one for one in words if one.startswith("sm_")), key=numbers)
    return next((one for one in reversed(real) if not numbers(one)[2]), real[-1] if real else "")


def canonical(device: str, words: Iterable[str]) -> tuple[str, ...]:
    """The one way to write these architectures: sorted, each once, so that one target has one key."""
    words = tuple(dict.fromkeys(words))
    if device != "cuda" or "native" in words:
        return words if device == "cuda" else tuple(sorted(words))
    real = sorted((one for one in words if one.startswith("sm_")), key=numbers)
    newest = virtual(forward(real))
    ptx = {one for one in words if one.startswith("compute_")} | ({newest} if "ptx" in words and newest else set())
    rest = sorted(ptx - {newest}, key=numbers)
    return (*real, *rest, *(["ptx"] if newest in ptx else []))


def codes(arch: Sequence[str]) -> tuple[str, ...]:
    """The words with `ptx` replaced by the PTX that it stands for."""
    return tuple(virtual(forward(arch)) if one == "ptx" else one for one in arch)


def runs(device: str, here: str, arch: Sequence[str]) -> str:
    """How code for `arch` runs on a device of the architecture `here`: "native", "ptx" (compiled by the driver), ""."""
    if device == "cuda" and CUDA.fullmatch(here):
        answers = [_cuda_runs(numbers(here), one) for one in codes(arch)]
        return "native" if "native" in answers else "ptx" if "ptx" in answers else ""
    if device == "hip":
        return "native" if any(_hip_runs(here, one) for one in arch) else ""
    return "native" if not arch or here in arch else ""


def _cuda_runs(here: tuple[int, int, str], code: str) -> str:
    major, minor, letter = numbers(code)
    real = code.startswith("sm_")
    same, newer = (major, minor) == here[:2], (major, minor) <= here[:2]
    fits = same if letter == "a" else newer and (major == here[0] or not (real or letter))
    return ("native" if real else "ptx") if fits else ""


def _hip_runs(here: str, code: str) -> bool:
    name, *features = code.split(":")
    own, *offered = here.split(":")
    # Code that does not name a feature runs with it on or off; a device that does not tell has what is asked.
    return name == own and (not offered or all(one in offered for one in features))
