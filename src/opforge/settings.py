"""Every environment variable that opforge reads: read at each call, never at import."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from opforge.errors import SettingError

_LINUX = sys.platform == "linux"
DEEPSPEED = "OPFORGE_DEEPSPEED"
USER_FLAGS = ("CPPFLAGS", "CXXFLAGS", "LDFLAGS")
TRUE, FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"", "0", "false", "no", "off"})


def environment() -> Mapping[bytes, bytes]:
    """Returns the environment as it is now, without a copy where Python keeps it as bytes.

    `os.environ` decodes and encodes at each access, which would be a tenth of a hit's time.
    """
    encoded: Mapping[bytes, bytes] | None = getattr(os.environ, "_data", None) if os.supports_bytes_environ else None
    if encoded is None:
        return {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    return encoded


def variable(name: str) -> str:
    """Returns the value of an environment variable, or an empty string."""
    return os.fsdecode(environment().get(name.encode(), b""))


def user_folder(name: str, default: str) -> str:
    """Returns the folder that an XDG variable names or, if it names no absolute one, `default` in the user's home."""
    chosen = variable(name)
    if chosen[:1] == "/":
        return chosen
    home = variable("HOME").rstrip("/")
    # os.path.expanduser looks a missing HOME up. It takes ten times as long as the rest of this function.
    return f"{home}/{default}" if home[:1] == "/" else os.path.expanduser(f"~/{default}")


def _flag(name: str) -> bool:
    value = variable(name).strip().lower()
    if value in TRUE:
        return True
    if value in FALSE:
        return False
    raise SettingError(name, os.environ[name], "1 or 0")


def accelerator() -> tuple[str, str] | None:
    """Returns the accelerator that was chosen and the variable that chose it; None if there is none."""
    for name in ("OPFORGE_ACCELERATOR", "DS_ACCELERATOR"):
        value = variable(name).strip()
        if value:
            return value, name
    return None


def allow_deprecated_fp16() -> bool:
    """Returns whether float16 counts as supported on CUDA devices of compute capability 6.x, on which it is slow."""
    name = "OPFORGE_ALLOW_DEPRECATED_FP16"
    return _flag(name if variable(name) else "DS_ALLOW_DEPRECATED_FP16")


def cache_dir() -> tuple[str, bool]:
    """Returns the cache folder, and whether OPFORGE_CACHE_DIR names it; otherwise it is the platform's default.

    On Linux the default is computed here by the XDG rule, as platformdirs does: importing platformdirs takes longer
    than a cache hit.
    """
    chosen = variable("OPFORGE_CACHE_DIR")
    if chosen:
        # An absolute and normal path needs no change. This test takes a tenth of the time of os.path's functions.
        is_normal = chosen[0] == "/" and chosen[-1] != "/" and "//" not in chosen and "/." not in chosen
        return chosen if is_normal else os.path.abspath(os.path.expanduser(chosen)), True
    if _LINUX:
        return os.path.join(user_folder("XDG_CACHE_HOME", ".cache"), "opforge"), False
    import platformdirs

    return platformdirs.user_cache_dir("opforge"), False


def cache_layers() -> tuple[str, ...]:
    """Returns the read-only folders that are searched before the user's own cache, in order."""
    value = variable("OPFORGE_CACHE_LAYERS")
    return tuple(os.path.abspath(os.path.expanduser(part)) for part in value.split(os.pathsep) if part)


def compiler_variables() -> tuple[str, ...]:
    """Returns the names of further variables that the compiler reads."""
    value = variable("OPFORGE_COMPILER_ENV")
    names = tuple(value.replace(",", " ").split()) if value else ()
    if not all(name.isidentifier() for name in names):
        raise SettingError("OPFORGE_COMPILER_ENV", value, "names of variables, separated by commas")
    return names


def cpp_extension() -> bool:
    """Returns whether the BuildExtension of setup scripts uses opforge, also in processes that pip starts."""
    return _flag("OPFORGE_CPP_EXTENSION")


def prefers_prebuilt() -> bool:
    """Returns whether a prebuilt op is used even if it was built with other flags than the user's."""
    return prebuilt() == "require" or bool(variable("OPFORGE_PREBUILT").strip())


def deepspeed() -> tuple[str, ...] | None:
    """Returns the builders that DeepSpeed gets from opforge in this process and those it starts; None if it gets none.

    OPFORGE_DEEPSPEED is 1, for which this returns (), or the builders' names, separated by commas.
    """
    value = variable(DEEPSPEED).strip()
    if value.lower() in TRUE | FALSE:
        return () if value.lower() in TRUE else None
    names = tuple(part.strip() for part in value.split(","))
    if not all(name.isidentifier() and name.endswith("Builder") for name in names):
        raise SettingError(DEEPSPEED, value, "1, 0, or builders such as CPUAdamBuilder,CPULionBuilder")
    return names


def prebuilt() -> str:
    """Returns how prebuilt ops are used: "prefer" them, "require" that nothing is compiled, or "ignore" the layers."""
    value = variable("OPFORGE_PREBUILT").strip().lower() or "prefer"
    if value not in ("prefer", "require", "ignore"):
        raise SettingError("OPFORGE_PREBUILT", value, "prefer, require or ignore")
    return value


def remotes() -> str:
    """Returns the URLs of the remotes that are asked for what is not built here, separated by spaces."""
    return os.environ.get("OPFORGE_REMOTES", "").strip()


def offline() -> bool:
    """Returns whether the network must not be used."""
    return _flag("OPFORGE_OFFLINE")


def config_dir() -> str:
    """Returns the folder of this user's keys and trust file: $XDG_CONFIG_HOME/opforge, by default in ~/.config."""
    return os.path.join(user_folder("XDG_CONFIG_HOME", ".config"), "opforge")


def trust_file() -> str:
    """Returns the file that says whose signatures are accepted: OPFORGE_TRUST_FILE, or trust.json in `config_dir`."""
    chosen = os.environ.get("OPFORGE_TRUST_FILE", "")
    return os.path.abspath(os.path.expanduser(chosen)) if chosen else os.path.join(config_dir(), "trust.json")


def signing_key() -> str:
    """Returns the secret key that OPFORGE_SIGNING_KEY holds; empty if there is none. It must not be logged."""
    return os.environ.get("OPFORGE_SIGNING_KEY", "").strip()


def signing_command() -> str:
    """Returns the command that signs instead of a key file; empty if there is none."""
    return os.environ.get("OPFORGE_SIGNING_COMMAND", "").strip()


def sysroot() -> str:
    """Returns the folder of another system's headers and libraries for portable ops; empty for zig's own."""
    value = variable("OPFORGE_SYSROOT")
    return os.path.abspath(os.path.expanduser(value)) if value else ""


def trusted_owners() -> tuple[str, ...]:
    """Returns the user names or numbers that a read-only layer may belong to, besides root and the user."""
    return tuple(part.strip() for part in variable("OPFORGE_TRUSTED_OWNERS").split(",") if part.strip())


def paranoid() -> bool:
    """Returns whether every dependency is hashed on every look-up, whatever its stamp."""
    return _flag("OPFORGE_PARANOID")


def user_flags() -> dict[str, str]:
    """Returns the variables that hold the user's flags for compilers, each with its words separated by one space."""
    words = {name: " ".join(variable(name).split()) for name in USER_FLAGS}
    return {name: text for name, text in words.items() if text}


def triton_jit() -> bool:
    """Returns whether Triton ops launch through Triton itself: OPFORGE_TRITON_JIT=1, or TRITON_INTERPRET=1."""
    return _flag("OPFORGE_TRITON_JIT") or _flag("TRITON_INTERPRET")


def full_traceback() -> bool:
    """Returns whether tracebacks keep opforge's own frames. Any other value than a false one counts as true."""
    return variable("OPFORGE_FULL_TRACEBACK").strip().lower() not in FALSE


def data_dir() -> str:
    """Returns the user's folder for what is installed, as opposed to cached: XDG_DATA_HOME/opforge."""
    return os.path.join(user_folder("XDG_DATA_HOME", ".local/share"), "opforge")


def kernel_checkouts() -> dict[str, str]:
    """Returns the folders of kernel packages that are not installed, by name: OPFORGE_KERNELS."""
    value = os.environ.get("OPFORGE_KERNELS", "")
    folders = {}
    for part in filter(None, value.split(os.pathsep)):
        name, equals, path = part.partition("=")
        if not equals or not path:
            raise SettingError("OPFORGE_KERNELS", value, f"ORG/NAME=FOLDER, several joined by {os.pathsep!r}")
        folders[name.strip()] = os.path.abspath(os.path.expanduser(path.strip()))
    return folders


def kernel_folders() -> tuple[tuple[str, str], ...]:
    """Returns the folders in which kernel packages are installed, with what each is for, in the order of the search.

    Those of OPFORGE_KERNEL_PATH, then the environment's, then the user's.
    """
    value = variable("OPFORGE_KERNEL_PATH")
    named = [os.path.abspath(os.path.expanduser(part)) for part in value.split(os.pathsep) if part] if value else []
    return (
        *((path, "folder") for path in named),
        (os.path.join(sys.prefix, "share", "opforge"), "environment"),
        (data_dir(), "user"),
    )


def installs_kernels() -> bool:
    """Returns whether get_kernel downloads a package that is not installed."""
    return _flag("OPFORGE_INSTALL")


def lock_timeout() -> float | None:
    """Returns how many seconds to wait for another process's build; None to wait as long as it lives."""
    value = variable("OPFORGE_LOCK_TIMEOUT").strip()
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
    """Returns the bytes that entries and objects may take: OPFORGE_CACHE_MAX_SIZE, by default 10 GiB.

    None if it is 0: there is no limit.
    """
    from .units import SIZE_EXPECTED, parse_size  # not on the path of a hit

    return int(_quantity("OPFORGE_CACHE_MAX_SIZE", "10GiB", parse_size, SIZE_EXPECTED)) or None


def cache_max_age() -> float | None:
    """Returns the seconds after which an unused entry is evicted: OPFORGE_CACHE_MAX_AGE, by default 180 days.

    None if it is 0: there is no limit.
    """
    from .units import AGE_EXPECTED, parse_age  # not on the path of a hit

    return _quantity("OPFORGE_CACHE_MAX_AGE", "180d", parse_age, AGE_EXPECTED) or None


def _quantity(name: str, default: str, parse: Callable[[str], float], expected: str) -> float:
    value = variable(name).strip() or default
    try:
        return parse(value)
    except ValueError as error:
        raise SettingError(name, value, expected) from error


def jobs() -> int | None:
    """Returns how many compilers may run at once, by OPFORGE_JOBS or torch's MAX_JOBS; None if neither is set."""
    for name in ("OPFORGE_JOBS", "MAX_JOBS"):
        value = variable(name).strip()
        if value:
            if not value.isdecimal() or int(value) < 1:
                raise SettingError(name, value, "a whole number, 1 or more")
            return int(value)
    return None
