"""What the environment asks for: every variable that opforge reads, read at the call, never at import."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from opforge.errors import SettingError

from .units import AGE_EXPECTED, SIZE_EXPECTED, parse_age, parse_size

_LINUX = sys.platform == "linux"
TRUE, FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"", "0", "false", "no", "off"})


def _flag(name: str) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value in TRUE:
        return True
    if value in FALSE:
        return False
    raise SettingError(name, os.environ[name], "1 or 0")


def accelerator() -> tuple[str, str] | None:
    """The accelerator that was chosen and the variable that chose it, or None where none was."""
    for variable in ("OPFORGE_ACCELERATOR", "DS_ACCELERATOR"):
        value = os.environ.get(variable, "").strip()
        if value:
            return value, variable
    return None


def allow_deprecated_fp16() -> bool:
    """Whether float16 counts as supported on CUDA devices of compute capability 6.x, where it is slow."""
    ours = "OPFORGE_ALLOW_DEPRECATED_FP16"
    return _flag(ours if os.environ.get(ours) else "DS_ALLOW_DEPRECATED_FP16")


def cache_dir() -> tuple[str, bool]:
    """The cache folder, and whether it was chosen (by OPFORGE_CACHE_DIR) rather than the platform's default.

    On Linux the default is spelled out here, by the XDG rule that platformdirs follows too: importing platformdirs
    would cost a cache hit more than the hit itself.
    """
    chosen = os.environ.get("OPFORGE_CACHE_DIR")
    if chosen:
        # A path that is absolute and plain already is left as it is: to find that out by os.path costs ten times more.
        plain = chosen[0] == "/" and chosen[-1] != "/" and "//" not in chosen and "/." not in chosen
        return chosen if plain else os.path.abspath(os.path.expanduser(chosen)), True
    if _LINUX:
        base = os.environ.get("XDG_CACHE_HOME", "")
        return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "opforge"), False
    import platformdirs

    return platformdirs.user_cache_dir("opforge"), False


def cache_layers() -> tuple[str, ...]:
    """The read-only folders that are searched before the user's own cache, in order."""
    value = os.environ.get("OPFORGE_CACHE_LAYERS", "")
    return tuple(os.path.abspath(os.path.expanduser(part)) for part in value.split(os.pathsep) if part)


def cpp_extension() -> bool:
    """Whether the BuildExtension of setup scripts asks opforge, in processes that pip starts too."""
    return _flag("OPFORGE_CPP_EXTENSION")


def prebuilt() -> str:
    """What is done with prebuilt ops: "prefer" them, "require" that nothing is compiled, or "ignore" the layers."""
    value = os.environ.get("OPFORGE_PREBUILT", "").strip().lower() or "prefer"
    if value not in ("prefer", "require", "ignore"):
        raise SettingError("OPFORGE_PREBUILT", value, "prefer, require or ignore")
    return value


def sysroot() -> str:
    """The folder of another system's headers and libraries that portable ops are built against; empty: zig's own."""
    value = os.environ.get("OPFORGE_SYSROOT", "")
    return os.path.abspath(os.path.expanduser(value)) if value else ""


def trusted_owners() -> tuple[str, ...]:
    """User names or numbers that a read-only layer may belong to, besides root and the user."""
    return tuple(part.strip() for part in os.environ.get("OPFORGE_TRUSTED_OWNERS", "").split(",") if part.strip())


def paranoid() -> bool:
    """Whether every dependency is hashed on every look-up, whatever its stamp says."""
    return _flag("OPFORGE_PARANOID")


def triton_jit() -> bool:
    """Whether Triton ops launch through Triton itself: OPFORGE_TRITON_JIT=1, or TRITON_INTERPRET=1."""
    return _flag("OPFORGE_TRITON_JIT") or _flag("TRITON_INTERPRET")


def lock_timeout() -> float | None:
    """How many seconds to wait for another process's build; None: for as long as it lives."""
    value = os.environ.get("OPFORGE_LOCK_TIMEOUT", "").strip()
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise SettingError("OPFORGE_LOCK_TIMEOUT", value, "a number of seconds, 0 or more")
    return seconds


def cache_max_size() -> int | None:
    """The bytes that entries and objects may take: OPFORGE_CACHE_MAX_SIZE, 10 GiB unless set; None (0): no limit."""
    return int(_quantity("OPFORGE_CACHE_MAX_SIZE", "10GiB", parse_size, SIZE_EXPECTED)) or None


def cache_max_age() -> float | None:
    """The seconds after which an unused entry goes: OPFORGE_CACHE_MAX_AGE, 180 days unless set; None (0): no limit."""
    return _quantity("OPFORGE_CACHE_MAX_AGE", "180d", parse_age, AGE_EXPECTED) or None


def _quantity(name: str, default: str, parse: Callable[[str], float], expected: str) -> float:
    value = os.environ.get(name, "").strip() or default
    try:
        return parse(value)
    except ValueError as error:
        raise SettingError(name, value, expected) from error


def jobs() -> int | None:
    """How many compilers may run at once, by OPFORGE_JOBS or torch's MAX_JOBS; None: as the machine allows."""
    for variable in ("OPFORGE_JOBS", "MAX_JOBS"):
        value = os.environ.get(variable, "").strip()
        if value:
            if not value.isdecimal() or int(value) < 1:
                raise SettingError(variable, value, "a whole number, 1 or more")
            return int(value)
    return None
