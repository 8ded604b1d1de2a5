"""Every setting of opforge's: a variable, read at each call and never at import, or what a settings file says."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from opforge import errors

_LINUX = sys.platform == "linux"
DEEPSPEED = "OPFORGE_DEEPSPEED"
USER_FLAGS = ("CPPFLAGS", "CXXFLAGS", "LDFLAGS")
SITE_FILE = "/etc/opforge/config.toml"
TRUE, FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"", "0", "false", "no", "off"})


def environment() -> Mapping[bytes, bytes]:
    """Returns the environment as it is now, without a copy where Python keeps it as bytes.

    `os.environ` decodes and encodes at each access, which would be a tenth of a hit's time.
    """
    encoded: Mapping[bytes, bytes] | None = getattr(os.environ, "_data", None) if os.supports_bytes_environ else None
    if encoded is None:
        return {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    return encoded


_of_files: dict[str, tuple[str, str]] | None = None


def reset() -> None:
    """Forgets what the settings files say: they are read again at the next call."""
    global _of_files
    _of_files = None


def of_files() -> dict[str, tuple[str, str]]:
    """Returns what the settings files say, by variable: the text, and the file. They are read once in a process.

    Raises ConfigFileError.
    """
    global _of_files
    if _of_files is None:
        files = {}
        for path in (SITE_FILE, user_file()):
            try:
                files[path] = os.stat(path)
            except OSError:  # there is none, or none for this user
                continue
        values: dict[str, tuple[str, str]] = {}
        if files:
            from . import config_files  # not on the path of a hit, unless there is a file

            values = config_files.read(files, user_folder("XDG_CACHE_HOME", ".cache"))
        _of_files = values
    return _of_files


def variable(name: str) -> str:
    """Returns the value of a variable; if it is not set, what a settings file says; otherwise an empty string."""
    value = environment().get(name.encode())
    if value is None:
        if name[:8] != "OPFORGE_":
            return ""  # no file says it: one that is damaged must not keep opforge from being imported
        values = of_files() if _of_files is None else _of_files
        return values[name][0] if values and name in values else ""
    return os.fsdecode(value)


def first(*names: str) -> tuple[str, str]:
    """Returns the value of the first of these variables that is not blank, and its name.

    If there is none, what a settings file says of names[0], with the file's path, or two empty strings.
    """
    for name in names:
        value = os.fsdecode(environment().get(name.encode(), b"")).strip()
        if value:
            return value, name
    is_set = names[0].encode() in environment()
    value, path = ("", "") if is_set else of_files().get(names[0], ("", ""))
    return value, path


def user_folder(name: str, default: str) -> str:
    """Returns the folder that an XDG variable names or, if it names no absolute one, `default` in the user's home."""
    variables = environment()
    chosen = os.fsdecode(variables.get(name.encode(), b""))
    if chosen[:1] == "/":
        return chosen
    home = os.fsdecode(variables.get(b"HOME", b"")).rstrip("/")
    # Looking a missing HOME up takes ten times as long as the rest of this function.
    if home[:1] != "/":
        from . import trust

        home = trust.listed_home()
    # In a container a user may have none. A folder below the working one is anybody's, and says whom opforge trusts.
    return f"{home}/{default}"


def _flag(name: str) -> bool:
    return _is_true(name, variable(name))


def _is_true(name: str, text: str) -> bool:
    value = text.strip().lower()
    if value in TRUE:
        return True
    if value in FALSE:
        return False
    raise errors.SettingError(name, text, "1 or 0")


def accelerator() -> tuple[str, str] | None:
    """Returns the accelerator that was chosen and the variable or file that chose it; None if there is none."""
    value, source = first("OPFORGE_ACCELERATOR", "DS_ACCELERATOR")
    return (value, source) if value else None


def allow_deprecated_fp16() -> bool:
    """Returns whether float16 counts as supported on CUDA devices of compute capability 6.x, on which it is slow."""
    value, name = first("OPFORGE_ALLOW_DEPRECATED_FP16", "DS_ALLOW_DEPRECATED_FP16")
    return _is_true(name, value)


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
    return tuple(os.path.abspath(os.path.expanduser(part)) for part in value.split(os.pathsep) if part) if value else ()


def compiler_variables() -> tuple[str, ...]:
    """Returns the names of further variables that the compiler reads."""
    value = variable("OPFORGE_COMPILER_ENV")
    names = tuple(value.replace(",", " ").split()) if value else ()
    if not all(name.isidentifier() for name in names):
        raise errors.SettingError("OPFORGE_COMPILER_ENV", value, "names of variables, separated by commas")
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
        raise errors.SettingError(DEEPSPEED, value, "1, 0, or builders such as CPUAdamBuilder,CPULionBuilder")
    return names


def prebuilt() -> str:
    """Returns how prebuilt ops are used: "prefer" them, "require" that nothing is compiled, or "ignore" the layers."""
    value = variable("OPFORGE_PREBUILT").strip().lower() or "prefer"
    if value not in ("prefer", "require", "ignore"):
        raise errors.SettingError("OPFORGE_PREBUILT", value, "prefer, require or ignore")
    return value


def remotes() -> str:
    """Returns the URLs of the remotes that are asked for what is not built here, separated by spaces."""
    return variable("OPFORGE_REMOTES").strip()


def offline() -> bool:
    """Returns whether the network must not be used."""
    return _flag("OPFORGE_OFFLINE")


def config_dir() -> str:
    """Returns the folder of this user's keys and trust file: $XDG_CONFIG_HOME/opforge, by default in ~/.config."""
    return os.path.join(user_folder("XDG_CONFIG_HOME", ".config"), "opforge")


def state_dir() -> str:
    """Returns the user's folder for what must not be forgotten: $XDG_STATE_HOME/opforge, by default in ~/.local."""
    return os.path.join(user_folder("XDG_STATE_HOME", ".local/state"), "opforge")


def user_file() -> str:
    """Returns the user's settings file."""
    return f"{user_folder('XDG_CONFIG_HOME', '.config')}/opforge/config.toml"


def trust_file() -> str:
    """Returns the file that says whose signatures are accepted: OPFORGE_TRUST_FILE, or trust.json in `config_dir`."""
    chosen = variable("OPFORGE_TRUST_FILE")
    return os.path.abspath(os.path.expanduser(chosen)) if chosen else os.path.join(config_dir(), "trust.json")


def signing_key() -> str:
    """Returns the secret key that OPFORGE_SIGNING_KEY holds; empty if there is none. It must not be logged."""
    return variable("OPFORGE_SIGNING_KEY").strip()


def signing_command() -> str:
    """Returns the command that signs instead of a key file; empty if there is none."""
    return variable("OPFORGE_SIGNING_COMMAND").strip()


def sysroot() -> str:
    """Returns the folder of another system's headers and libraries for portable ops; empty for zig's own."""
    value = variable("OPFORGE_SYSROOT")
    return os.path.abspath(os.path.expanduser(value)) if value else ""


def trusted_owners() -> tuple[str, ...]:
    """Returns the user names or numbers that a read-only layer may belong to, besides root and the user."""
    value = variable("OPFORGE_TRUSTED_OWNERS")
    return tuple(part.strip() for part in value.split(",") if part.strip()) if value else ()


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
    return f"{user_folder('XDG_DATA_HOME', '.local/share')}/opforge"


def kernel_checkouts() -> dict[str, str]:
    """Returns the folders of kernel packages that are not installed, by name: OPFORGE_KERNELS."""
    value = variable("OPFORGE_KERNELS")
    folders = {}
    for part in filter(None, value.split(os.pathsep)):
        name, equals, path = part.partition("=")
        if not equals or not path:
            raise errors.SettingError("OPFORGE_KERNELS", value, f"ORG/NAME=FOLDER, several joined by {os.pathsep!r}")
        folders[name.strip()] = os.path.abspath(os.path.expanduser(path.strip()))
    return folders


def kernel_folders() -> tuple[tuple[str, str], ...]:
    """Returns the folders in which kernel packages are installed, with what each is for, in the order of the search.

    Those of OPFORGE_KERNEL_PATH, then the environment's, then the user's.
    """
    value = variable("OPFORGE_KERNEL_PATH")
    named = [os.path.abspath(os.path.expanduser(part)) for part in value.split(os.pathsep) if part] if value else []
    others = (f"{sys.prefix}/share/opforge", "environment"), (data_dir(), "user")
    return (*((path, "folder") for path in named), *others)


def installs_kernels() -> bool:
    """Returns whether get_kernel downloads a package that is not installed."""
    return _flag("OPFORGE_INSTALL")
