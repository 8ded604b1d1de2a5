"""The variables that opforge reads, and warnings about settings that do nothing: misspelt names, missing layers."""

from __future__ import annotations

import logging
import os

from opforge import settings

log = logging.getLogger("opforge")
PREFIX = "OPFORGE_"
KNOWN = (
    "OPFORGE_ACCELERATOR",
    "OPFORGE_ALLOW_DEPRECATED_FP16",
    "OPFORGE_BUILD_OPS",
    "OPFORGE_BUILD_PORTABLE",
    "OPFORGE_BUILD_TARGETS",
    "OPFORGE_CACHE_DIR",
    "OPFORGE_CACHE_LAYERS",
    "OPFORGE_CACHE_MAX_AGE",
    "OPFORGE_CACHE_MAX_SIZE",
    "OPFORGE_COMPILER_ENV",
    "OPFORGE_COMPILER_LAUNCHER",
    "OPFORGE_CPP_EXTENSION",
    "OPFORGE_DEEPSPEED",
    "OPFORGE_FULL_TRACEBACK",
    "OPFORGE_INSTALL",
    "OPFORGE_JOBS",
    "OPFORGE_KERNELS",
    "OPFORGE_KERNEL_PATH",
    "OPFORGE_LOCK_TIMEOUT",
    "OPFORGE_LOG",
    "OPFORGE_OFFLINE",
    "OPFORGE_PARANOID",
    "OPFORGE_PREBUILT",
    "OPFORGE_REMOTES",
    "OPFORGE_SIGNING_COMMAND",
    "OPFORGE_SIGNING_KEY",
    "OPFORGE_SYSROOT",
    "OPFORGE_TRITON_JIT",
    "OPFORGE_TRUSTED_OWNERS",
    "OPFORGE_TRUST_FILE",
    "OPFORGE_VISIBLE_NUMA_NODES",
)
NEARNESS = 0.8
"""How similar a name must be. Other programs have variables with this prefix too."""
_warned: set[str] = set()
"""The texts that this process has logged."""


def warn_of_useless_settings() -> None:
    """Logs a warning for each setting that does nothing, once a process. Not on the path of a hit."""
    for text in problems():
        if text not in _warned:
            _warned.add(text)
            log.warning(text)


def problems() -> list[str]:
    """Returns what is wrong with the environment: nearly a variable's name, or a layer that is no folder."""
    import difflib

    texts = [
        f"{name} is no variable of opforge's, and is ignored. Did you mean {near}?"
        for name in sorted(name for name in os.environ if name.startswith(PREFIX) and name not in KNOWN)
        for near in difflib.get_close_matches(name, KNOWN, n=1, cutoff=NEARNESS)
    ]
    for layer in settings.cache_layers():
        if not os.path.isdir(layer):
            source = settings.first("OPFORGE_CACHE_LAYERS")[1]
            if os.path.exists(layer):
                texts.append(f"The layer {layer}, which {source} names, is not a folder.")
                continue
            try:
                beside = os.listdir(os.path.dirname(layer))
            except OSError:
                beside = []
            names = difflib.get_close_matches(os.path.basename(layer), beside, n=1)
            near = f" Did you mean {os.path.join(os.path.dirname(layer), names[0])}?" if names else ""
            texts.append(f"The layer {layer}, which {source} names, does not exist.{near}")
    return texts
