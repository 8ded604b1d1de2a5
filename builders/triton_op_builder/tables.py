"""Configs from tables that other projects ship: vLLM's `configs/*.json`, and those of kernels of the hub in its form.

A table maps sizes of an input to configs. It says of no config what it gains, and nobody has signed it: so its configs
are what `opforge tune` tries on this machine, and never what a launch takes unasked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opforge.cache.schema import OBJECT, FormatError, checked, parse, table, text, whole
from opforge.errors import TuningError
from opforge.foundation.files import read_file

MAX_BYTES, MAX_SIZES, MAX_NAMES = 1 << 20, 4096, 64
OURS = {"num_warps": "warps", "num_stages": "stages"}
"""Triton's names of what `Kernel` calls otherwise."""
VERSION = "triton_version"
EXAMPLE = '{"64": {"BLOCK_SIZE_M": 16, "num_warps": 4, "num_stages": 3}}'
CONFIG = table(whole(), text(r"\w{1,100}", "a name"), MAX_NAMES)
SIZES = table(CONFIG, text(r"\d{1,18}", "a size"), MAX_SIZES)


def configs_of(paths: Iterable[str], names: Mapping[str, str] | None = None) -> tuple[dict[str, int], ...]:
    """Returns the configs of tables, for `Kernel(configs=...)`: each once, in the order of the files.

    Args:
        paths: JSON files that map sizes to configs. Which size one is for is not used: `opforge tune` finds that out.
        names: The kernel's names of constants by those of the table, if they differ; an empty name leaves one out.
            `num_warps` and `num_stages` become `warps` and `stages`.

    Raises:
        TuningError: A file cannot be read, or is not such a table.
    """
    renamed = {**OURS, **(names or {})}
    found: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
    for path in paths:
        for config in _read(path).values():
            ours = {renamed.get(name, name): value for name, value in config.items() if renamed.get(name, name)}
            if ours:
                found.setdefault(tuple(sorted(ours.items())), ours)
    return tuple(found.values())


def _read(path: str) -> Mapping[str, Mapping[str, int]]:
    try:
        value = dict(parse(read_file(path, MAX_BYTES), OBJECT, MAX_BYTES))
        value.pop(VERSION, None)  # it is beside the sizes
        sizes: Mapping[str, Mapping[str, int]] = checked(value, SIZES)
    except OSError as error:
        raise TuningError(path, f"it cannot be read ({error.strerror})", "Name a file that you may read") from error
    except (FormatError, ValueError) as error:
        problem = str(error).removeprefix(f"{path} ")
        raise TuningError(path, problem, f"A table maps sizes to configs, such as {EXAMPLE}") from error
    return sizes
