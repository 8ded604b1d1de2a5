"""Architectures of devices: their names, parsed by rule so that future ones are accepted, and which runs on which.

CUDA: `sm_90`, `sm_90a` (this chip only), `sm_100f` (its family), `compute_90` (PTX, which the driver compiles for any
newer device), `ptx` (PTX of the newest architecture in the list), `Hopper`. HIP: `gfx942`, `gfx942:sramecc+:xnack-`.
Both: `native`.
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
"""The names that torch accepts in TORCH_CUDA_ARCH_LIST, and what each means there."""
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


def parse(device: str, rest: str, column: int, setting: str, text: str) -> tuple[str, ...]:
    """Parses the architectures of a target: `rest` is what follows the colon of `text`, and begins at `column`.

    Raises SettingError for `setting`.
    """
    arch: list[str] = []
    words: list[str] = []
    for offset, word in _words(device, rest):
        expansion = _expand(device, word)
        if not expansion:
            raise SettingError(setting, text, f"{EXPECTED[device]} at column {column + offset}, not {word!r}")
        if word in words:
            raise SettingError(
                setting, text, f"each architecture once, but {word!r} is repeated at column {column + offset}"
            )
        words.append(word)
        arch += resolve_ptx(expansion) if word.lower() in NAMES else expansion
    if arch == ["ptx"]:
        raise SettingError(setting, text, f"an architecture beside ptx at column {column}, such as sm_90+ptx")
    has_name = any(word.lower() in NAMES for word in words)
    return canonical(device, arch) if has_name else tuple(dict.fromkeys(arch))


def _words(device: str, rest: str) -> Iterable[tuple[int, str]]:
    """Yields the words between the `+`, each with its offset; a `+` that enables a feature of HIP is part of a word."""
    pattern = r"[^+:]*(?::[^+:-]*[+-]?)*" if device == "hip" else r"[^+]*"
    offset = 0
    while True:
        match = re.compile(pattern).match(rest, offset)
        end = match.end() if match else offset
        yield offset, rest[offset:end]
        if end >= len(rest):
            return
        offset = end + 1


def _expand(device: str, word: str) -> list[str]:
    """Returns the architectures that one word means, an empty list if it is invalid."""
    lower = word.lower()
    if lower == "native":
        return [lower]
    if device != "cuda":
        return [lower] if RULES[device].fullmatch(lower) else []
    if lower == "ptx" or CUDA.fullmatch(lower):
        return [lower]
    if NUMBER.fullmatch(lower):
        return ["sm_" + lower.replace(".", "")]
    return list(parse_list("cuda", "target", NAMES[lower])) if lower in NAMES else []


def parse_list(device: str, variable: str, value: str) -> tuple[str, ...]:
    """Parses a list in the form of torch's variables: "8.0 9.0a 10.0f+PTX;12.0", "gfx90a;gfx942:xnack-".

    Raises SettingError, which names the column of the first error.
    """
    arch: list[str] = []
    for part in re.finditer(f"(?:(?!{SEPARATORS[device]}).)+", value):
        word, with_ptx = part[0], False
        if device == "cuda" and word.lower().endswith("+ptx"):
            word, with_ptx = word[:-4], True
        expansion = _expand(device, word) if word.lower() != "ptx" else []
        if not expansion:
            expected = "architectures such as 9.0;9.0a;10.0f+PTX or Hopper" if device == "cuda" else EXPECTED[device]
            raise SettingError(variable, value, f"{expected} at column {part.start() + 1}, not {word!r}")
        arch += resolve_ptx(expansion)  # the PTX of a name is that of its own architectures, not of the whole list's
        if with_ptx:
            arch += ["ptx"] if expansion == ["native"] else [virtual(newest_portable(expansion))]
    return canonical(device, arch)


def from_environment(device: str) -> tuple[str, ...]:
    """Returns the architectures in torch's variable for this device, empty if it is unset. Raises SettingError."""
    variable = VARIABLES.get(device)
    value = os.environ.get(variable, "").strip() if variable else ""
    return parse_list(device, variable, value) if variable and value else ()


# -- CUDA: what each word means to the compiler and to a device --------------------------------------------------------


def numbers(word: str) -> tuple[int, int, str]:
    """Returns major, minor and letter of `sm_90a` or `compute_90a`."""
    match = CUDA.fullmatch(word)
    assert match, word
    return int(match[2]), int(match[3]), match[4]


def virtual(word: str) -> str:
    """Returns `compute_90a` for `sm_90a`."""
    return word.replace("sm_", "compute_")


def newest_portable(words: Iterable[str]) -> str:
    """Returns the newest architecture of which newer devices accept the PTX: one without a letter.

    If all have a letter, the newest one; "" if there is none.
    """
    real = sorted((word for word in words if word.startswith("sm_")), key=numbers)
    return next((word for word in reversed(real) if not numbers(word)[2]), real[-1] if real else "")


def canonical(device: str, words: Iterable[str]) -> tuple[str, ...]:
    """Returns the canonical form of these architectures: sorted, each once, so that equal targets have one key."""
    words = tuple(dict.fromkeys(words))
    if device != "cuda" or "native" in words:
        return words if device == "cuda" else tuple(sorted(words))
    real = sorted((word for word in words if word.startswith("sm_")), key=numbers)
    newest = virtual(newest_portable(real))
    ptx = {word for word in words if word.startswith("compute_")} | ({newest} if "ptx" in words and newest else set())
    rest = sorted(ptx - {newest}, key=numbers)
    return (*real, *rest, *(["ptx"] if newest in ptx else []))


def resolve_ptx(arch: Sequence[str]) -> tuple[str, ...]:
    """Returns the architectures with `ptx` replaced by the `compute_` architecture that it means."""
    return tuple(virtual(newest_portable(arch)) if word == "ptx" else word for word in arch)


def run_mode(device: str, device_arch: str, arch: Sequence[str]) -> str:
    """Returns how code for `arch` runs on a `device_arch` device: "native", "ptx" (the driver compiles it), or ""."""
    if device == "cuda" and CUDA.fullmatch(device_arch):
        modes = [_cuda_run_mode(numbers(device_arch), code) for code in resolve_ptx(arch)]
        return "native" if "native" in modes else "ptx" if "ptx" in modes else ""
    if device == "hip":
        return "native" if any(_runs_on_hip(device_arch, code) for code in arch) else ""
    return "native" if not arch or device_arch in arch else ""


def _cuda_run_mode(device_numbers: tuple[int, int, str], code: str) -> str:
    major, minor, letter = numbers(code)
    real = code.startswith("sm_")
    same, not_newer = (major, minor) == device_numbers[:2], (major, minor) <= device_numbers[:2]
    fits = same if letter == "a" else not_newer and (major == device_numbers[0] or not (real or letter))
    return ("native" if real else "ptx") if fits else ""


def _runs_on_hip(device_arch: str, code: str) -> bool:
    name, *required = code.split(":")
    device_name, *features = device_arch.split(":")
    # Code without a feature's name runs with the feature on or off. A device that lists none may have any of them.
    return name == device_name and (not features or all(feature in features for feature in required))
