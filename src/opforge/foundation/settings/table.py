"""Every setting, once: a variable, which is read at each call and never at import, or what a settings file says.

`settings.jobs()` returns the value in force. From this table follow what `opforge config` shows and checks, which keys
a settings file may have, and the table in docs/settings.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from opforge.foundation import environment

from . import kinds
from .kinds import Kind, Of, T

SITE_FILE = "/etc/opforge/config.toml"
TABLE: dict[str, Setting[Any]] = {}
"""Every setting by its name, in the order of the documentation."""
_of_files: dict[str, tuple[str, str]] | None = None


class Setting(Of[T]):
    """A setting. A call returns its value, which is read anew: never at import."""

    __slots__ = ("_names", "aliases", "default", "in_files", "is_secret", "kind", "meaning", "name", "variable")

    def __init__(
        self,
        name: str,
        kind: Kind[T],
        meaning: str,
        *,
        default: str | Callable[[], str] = "",
        aliases: Iterable[str] = (),
        in_files: bool = True,
        is_secret: bool = False,
    ) -> None:
        """Enters the setting into TABLE.

        Args:
            name: Its key in settings files; the variable is OPFORGE_ and the name in upper case.
            kind: What its values are.
            meaning: Markdown for the documentation.
            default: What the variable would say if nothing else is in force.
            aliases: Variables of other projects that count if opforge's own is not set, or blank.
            in_files: Whether settings files may hold it. What is for one command or one process tree is the variable's.
            is_secret: Whether its value must not be shown.
        """
        self.name, self.kind, self.meaning, self.default = name, kind, meaning, default or kind.empty
        self.aliases, self.in_files, self.is_secret = (*aliases,), in_files, is_secret
        self.variable = variable = environment.own(name)
        self._names = ((variable.encode(), variable), *[(alias.encode(), alias) for alias in aliases])
        TABLE[name] = self

    def __call__(self) -> T:
        """Returns the value in force. Raises SettingError, and ConfigFileError for a settings file."""
        text, source = self.found()
        try:
            return self.kind.parse(text or self.default_text())
        except ValueError as error:
            from opforge import errors  # no hit needs it

            raise errors.SettingError(source, text.strip(), self.kind.expected) from error

    def found(self) -> tuple[str, str]:
        """Returns the text in force and the variable or file it is from; two empty strings if the default is in force.

        A blank variable stands for the default. Raises ConfigFileError.
        """
        here = environment.variables()
        for encoded, name in self._names:
            value = here.get(encoded)
            if value and not value.isspace():
                return os.fsdecode(value), name
        if not self.in_files or self._names[0][0] in here:
            return "", ""
        return of_files().get(self.name, ("", ""))

    def is_set(self) -> bool:
        """Returns whether anything but the default is in force. Raises ConfigFileError."""
        return bool(self.found()[0])

    def default_text(self) -> str:
        """Returns the default as the text of the variable."""
        return self.default if isinstance(self.default, str) else self.default()


def user_file() -> str:
    """Returns the user's settings file."""
    return f"{environment.config_dir()}/config.toml"


def reset() -> None:
    """Forgets the settings files' values: the files are read again at the next call."""
    global _of_files
    _of_files = None


def of_files() -> dict[str, tuple[str, str]]:
    """Returns the settings files' values by setting: the text, and the file. The files are read once in a process.

    Raises ConfigFileError.
    """
    global _of_files
    if _of_files is None:
        present = [path for path in (SITE_FILE, user_file()) if os.access(path, os.F_OK)]
        values: dict[str, tuple[str, str]] = {}
        if present:
            from . import files  # not on the path of a hit, unless there is a file

            values = files.read(present, {name: each.kind if each.in_files else None for name, each in TABLE.items()})
        _of_files = values
    return _of_files


# The table.

_IS_LINUX = sys.platform == "linux"


def _default_cache() -> str:
    if _IS_LINUX:  # by the XDG rule, as platformdirs does: importing that takes longer than a hit
        return f"{environment.cache_home()}/opforge"
    import platformdirs

    return platformdirs.user_cache_dir("opforge")


accelerator = Setting("accelerator", kinds.NAME, "the accelerator to use", aliases=["DS_ACCELERATOR"])
cache_dir = Setting("cache_dir", kinds.FOLDER, "the cache folder", default=_default_cache)
cache_layers = Setting("cache_layers", kinds.FOLDERS, "read-only layers, separated by colons")
prebuilt = Setting(
    "prebuilt",
    kinds.PREBUILT,
    "`prefer` prebuilt ops, `require` them, or `ignore` the layers",
    in_files=False,
)
remotes = Setting(
    "remotes",
    kinds.URLS,
    "URLs of remotes from which ops are fetched instead of being built, separated by spaces; see"
    " [remote.md](remote.md)",
)
kernels = Setting(
    "kernels",
    kinds.CHECKOUTS,
    "folders of kernel packages that are not installed, `ORG/NAME=FOLDER` joined by colons; see"
    " [packages.md](packages.md)",
)
kernel_path = Setting(
    "kernel_path",
    kinds.FOLDERS,
    "further folders in which kernel packages are installed, separated by colons; searched first",
)
install = Setting("install", kinds.FLAG, "`get_kernel` downloads a package that is not installed")
offline = Setting("offline", kinds.FLAG, "use no network: only remotes in folders are used")
trust_file = Setting(
    "trust_file",
    kinds.FOLDER,
    "the file with the keys whose signatures are accepted; without it, `trust.json` in `~/.config/opforge`",
    default=lambda: f"{environment.config_dir()}/trust.json",
)
signing_key = Setting(
    "signing_key",
    kinds.TEXT,
    "a secret key that signs published artifacts; see [remote.md](remote.md#keys)",
    in_files=False,
    is_secret=True,
)
signing_command = Setting(
    "signing_command", kinds.COMMAND, "a command that signs published artifacts; see [remote.md](remote.md#keys)"
)
build_ops = Setting(
    "build_ops",
    kinds.WORDS,
    "the ops in opforge's own wheel: builders' names, or 1 for all of the CPU's; see [prebuild.md](prebuild.md)",
    in_files=False,
)
build_targets = Setting("build_targets", kinds.WORDS, "the targets of the ops in opforge's own wheel", in_files=False)
build_portable = Setting(
    "build_portable", kinds.FLAG, "the ops in opforge's own wheel run on older systems too", in_files=False
)
cpp_extension = Setting(
    "cpp_extension",
    kinds.EXTENSIONS,
    "1: setup scripts with torch's `BuildExtension` build through opforge, under pip too; see [compat.md](compat.md)."
    " `torch-facade`: they build one wheel for every torch and Python; see [facade.md](facade.md)",
    in_files=False,
)
deepspeed = Setting(
    "deepspeed",
    kinds.BUILDERS,
    "1: DeepSpeed uses opforge, in every process that inherits it; or names of builders, separated by commas; see"
    " [compat.md](compat.md#every-process)",
    default="0",
    in_files=False,
)
"""The value is (), or the names of the builders; None if DeepSpeed gets none."""
sysroot = Setting("sysroot", kinds.FOLDER, "build portable ops against this folder instead of with zig")
trusted_owners = Setting(
    "trusted_owners",
    kinds.USERS,
    "further users who may own a layer, a settings file, or a folder above the cache, separated by commas",
)
trusted_folders = Setting(
    "trusted_folders",
    kinds.FOLDERS,
    "folders of the cache's path, or of a layer's, that others may write, separated by colons: everybody who may write"
    " there can run code as you; see [deploying.md](deploying.md#kubernetes)",
)
triton_jit = Setting(
    "triton_jit",
    kinds.FLAG,
    "launch Triton ops through Triton itself, which compiles each at its first launch; see [triton.md](triton.md)",
)
paranoid = Setting(
    "paranoid",
    kinds.FLAG,
    "trust no stamp: hash every file that an op was built from, at every load",
    in_files=False,
)
cache_max_size = Setting(
    "cache_max_size", kinds.SIZE, "the limit of the cache's size (`500MB`, `2GiB`; 0 for none)", default="10GiB"
)
cache_max_age = Setting(
    "cache_max_age", kinds.AGE, "how long an unused entry is kept (`30d`, `12h`; 0 for ever)", default="180d"
)
lock_timeout = Setting(
    "lock_timeout",
    kinds.SECONDS,
    "seconds to wait for another process's build, or another machine's; without it, as long as that process lives, and"
    " 30 minutes for [another machine](remote.md#publishing)",
)
compiled_wait = Setting(
    "compiled_wait",
    kinds.SECONDS,
    "seconds that a scope of `opforge.compiled` waits for another process or machine, and a JIT in `opforge.warm` for"
    " another process; see"
    " [compiled.md](compiled.md#many-ranks)",
    default="60",
)
warm = Setting(
    "warm",
    kinds.NAME,
    "keep the code that JITs compile, in all processes of a job that import opforge, under this label: `solver`, or"
    " `solver:triton,triton-host` for some adapters; see [jits.md](jits.md#a-whole-job)",
    in_files=False,
)
jobs = Setting(
    "jobs",
    kinds.NUMBER,
    "how many compilers may run at once; without it, as many as cores, free memory, the cgroup and `ulimit -u` allow",
    aliases=["MAX_JOBS"],
)
allow_undefined = Setting(
    "allow_undefined",
    kinds.FLAG,
    "a library may use a symbol that none of the libraries that it needs has: without it, that is an error in a setup"
    " script, and a warning elsewhere",
)
log = Setting("log", kinds.LOG, "a file for events, one JSON object a line; `-` for standard error")
full_traceback = Setting("full_traceback", kinds.LENIENT_FLAG, "keep opforge's own frames in tracebacks")
compiler_env = Setting(
    "compiler_env",
    kinds.VARIABLES,
    "names of further variables that your compiler or its wrapper reads, separated by commas; their values become part"
    " of the key",
)
compiler_launcher = Setting(
    "compiler_launcher",
    kinds.COMMAND,
    "a compiler launcher such as `ccache`, which is put before each compiler; without it none is used, also if one is"
    " installed. ccache runs the preprocessor at each compilation, because its list of headers would not show that"
    " another one is found first now",
)
allow_deprecated_fp16 = Setting(
    "allow_deprecated_fp16",
    kinds.FLAG,
    "float16 counts as supported on CUDA devices of compute capability 6.x",
    aliases=["DS_ALLOW_DEPRECATED_FP16"],
)
visible_numa_nodes = Setting(
    "visible_numa_nodes", kinds.NODES, "the CPU accelerator's visible devices: NUMA nodes, separated by commas"
)

USER_FLAGS = ("CPPFLAGS", "CXXFLAGS", "LDFLAGS")
"""The variables of flags for compilers and linkers, which every build tool reads."""


def user_flags() -> dict[str, str]:
    """Returns the user's flags for compilers by variable, those that are set, each with its words parted by a space."""
    words = {name: " ".join(environment.variable(name).split()) for name in USER_FLAGS}
    return {name: text for name, text in words.items() if text}


def launches_through_triton() -> bool:
    """Returns whether Triton ops launch through Triton itself: by `triton_jit`, or by Triton's own TRITON_INTERPRET."""
    text = environment.variable("TRITON_INTERPRET")
    try:
        interprets = kinds.is_true(text)
    except ValueError as error:
        from opforge import errors

        raise errors.SettingError("TRITON_INTERPRET", text, kinds.FLAG.expected) from error
    return triton_jit() or interprets


def kernel_folders() -> tuple[tuple[str, str], ...]:
    """Returns the folders in which kernel packages are installed, with what each is for, in the order of the search.

    Those of `kernel_path`, then the environment's, then the user's.
    """
    others = (os.path.join(sys.prefix, "share/opforge"), "environment"), (environment.data_dir(), "user")
    return (*((path, "folder") for path in kernel_path()), *others)
