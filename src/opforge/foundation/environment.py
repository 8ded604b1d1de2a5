"""The process's environment: its variables now, those of compilers and launchers, and the user's folders.

A compiler is started with those that `builders/toolchains/host.py` passes on (`Host.environment`); a toolchain adds its
`passed_env`. CXXFLAGS, CPPFLAGS and LDFLAGS become words of the command (`settings/table.py`, USER_FLAGS), and CXX is
read by `builders/toolchains/host.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

COMPILER_VARIABLES = (
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "C_INCLUDE_PATH",
    "LIBRARY_PATH",
    "LPATH",
    "LD_RUN_PATH",
    "COMPILER_PATH",
    "GCC_EXEC_PREFIX",
    "GCC_ROOT",
    "G++_ROOT",
    "BINUTILS_ROOT",
    "GNUTARGET",
    "LDEMULATION",
    "CCC_OVERRIDE_OPTIONS",
    "CXX_MODULE_MAPPER",
)
"""The variables that the host's compilers read. Their values are part of the plan key.

gcc adds the folders of LPATH to those of LIBRARY_PATH, and takes the three of _ROOT for the prefix that it, its headers
of C++ and its assembler were installed with. The assembler and the linker read GNUTARGET, the linker LDEMULATION.
CXX_MODULE_MAPPER names the file in which gcc looks up modules of C++20.

SOURCE_DATE_EPOCH is none of them: it changes only what __DATE__, __TIME__ and __TIMESTAMP__ in a file stand for.
"""
HEADER_VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH")
"""The variables that name folders of headers."""
CHOICE_VARIABLES = ("CCACHE_CC", "CCACHE_COMPILER", "CCACHE_PATH", "CCACHE_PREFIX", "ICECC_CXX", "I_MPI_CXX")
"""Prefixes of the variables that name what a wrapper starts, also instead of the compiler that `ccache g++` names."""
WRAPPER_VARIABLES = ("OMPI_", "OPAL_", "MPICH_", "NIX_", "SPACK_", "CRAY_", "PE_", *CHOICE_VARIABLES)
"""Prefixes of the variables that compiler wrappers read. Their values are part of the plan key of a wrapper."""
LAUNCHER_VARIABLES = (
    "OMPI_APP_CTX_",
    "OMPI_ARGV",
    "OMPI_COMMAND",
    "OMPI_COMM_WORLD_",
    "OMPI_FILE_LOCATION",
    "OMPI_FIRST_RANKS",
    "OMPI_MCA_",
    "OMPI_NUM_APP_CTX",
    "OMPI_UNIVERSE_SIZE",
    "OPAL_OUTPUT_",
    "OPAL_USER_PARAMS_GIVEN",
    "NIX_BUILD_CORES",
    "NIX_BUILD_TOP",
    "NIX_LOG_FD",
    "CCACHE_COMPILERCHECK",
    "CCACHE_COMPILERTYPE",
)
"""Prefixes of those among them that differ from process to process or from build to build, or that decide no result.
"""
PLAN_VARIABLES = ("PATH", "CXX", "CPPFLAGS", "CXXFLAGS", "LDFLAGS", "LANG", *COMPILER_VARIABLES)
"""Every variable that the plan of a host op may depend on."""
_WRAPPERS = tuple(prefix.encode() for prefix in WRAPPER_VARIABLES)
_BEGINNINGS = frozenset(prefix[:3] for prefix in _WRAPPERS)
_LAUNCHERS = tuple(prefix.encode() for prefix in LAUNCHER_VARIABLES)
_PLAN = frozenset(name.encode() for name in PLAN_VARIABLES)


def variables() -> Mapping[bytes, bytes]:
    """Returns the environment as it is now, without a copy where Python keeps it as bytes.

    `os.environ` decodes and encodes at each access, which would be a tenth of a hit's time.
    """
    encoded: Mapping[bytes, bytes] | None = getattr(os.environ, "_data", None) if os.supports_bytes_environ else None
    if encoded is None:
        return {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    return encoded


def variable(name: str) -> str:
    """Returns the value of another program's variable, such as PATH; empty if it is not set."""
    return os.fsdecode(variables().get(name.encode(), b""))


def own(setting: str) -> str:
    """Returns the variable of a setting of opforge's."""
    return f"OPFORGE_{setting.upper()}"


def first(*names: str) -> str:
    """Returns the value of the first of these variables that is not blank; empty if there is none."""
    return next((value for value in (variable(name).strip() for name in names) if value), "")


def user_folder(name: str, default: str) -> str:
    """Returns the folder that an XDG variable names or, if it names no absolute one, `default` in the user's home."""
    here = variables()
    chosen = os.fsdecode(here.get(name.encode(), b""))
    if chosen[:1] == "/":
        return chosen
    home = os.fsdecode(here.get(b"HOME", b"")).rstrip("/")
    # Looking a missing HOME up takes ten times as long as the rest of this function.
    if home[:1] != "/":
        from opforge.foundation import file_owners

        home = file_owners.listed_home()
    # In a container a user may have none. A folder below the working one is anybody's, and says whom opforge trusts.
    return f"{home}/{default}"


def config_dir() -> str:
    """Returns the folder of this user's keys and trust file: $XDG_CONFIG_HOME/opforge, by default in ~/.config."""
    return f"{user_folder('XDG_CONFIG_HOME', '.config')}/opforge"


def state_dir() -> str:
    """Returns the user's folder for what must not be forgotten: $XDG_STATE_HOME/opforge, by default in ~/.local."""
    return f"{user_folder('XDG_STATE_HOME', '.local/state')}/opforge"


def data_dir() -> str:
    """Returns the user's folder for what is installed, as opposed to cached: $XDG_DATA_HOME/opforge."""
    return f"{user_folder('XDG_DATA_HOME', '.local/share')}/opforge"


def cache_home() -> str:
    """Returns the user's folder for caches, of all programs: $XDG_CACHE_HOME, by default ~/.cache."""
    return user_folder("XDG_CACHE_HOME", ".cache")


def of_compilers(more: Iterable[str] = ()) -> list[tuple[bytes, bytes]]:
    """Returns the variables that are set and that a compiler, a wrapper or `more` reads, with their values.

    They are sorted by name.
    """
    further = [name.encode() for name in more]
    names = {*_PLAN, *further} if further else _PLAN
    here = variables()
    set_here = [name for name in here if name in names or (name[:3] in _BEGINNINGS and is_wrappers(name))]
    return [(name, here[name]) for name in sorted(set_here)]


def of_wrappers() -> list[str]:
    """Returns the names of the variables that are set and that a compiler wrapper may read, sorted."""
    return sorted(os.fsdecode(name) for name in variables() if is_wrappers(name))


def is_wrappers(name: bytes) -> bool:
    """Returns whether a compiler wrapper may read this variable."""
    return name.startswith(_WRAPPERS) and not name.startswith(_LAUNCHERS)
