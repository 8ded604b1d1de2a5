"""The builder of DeepSpeed's collectives over oneCCL."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint8, c_void_p
from typing import TYPE_CHECKING, Any

from opforge.builders.base import OpBuilder

if TYPE_CHECKING:
    from opforge.accelerator.capabilities import Capabilities
    from opforge.builders.declaration.op_spec import OpSpec

LIBRARY_FOLDERS = ("lib/ccl/cpu/lib", "lib/cpu", "lib")
"""Below oneCCL's root: of the wheels, of older releases, of an installation."""
ADVICE = "set CCL_ROOT to an installation of oneCCL, or `pip install oneccl-devel` and libfabric (libfabric-dev)"
_PROBLEM = (c_char_p, c_int64)


class CCLCommBuilder(OpBuilder):
    """Collectives over oneCCL: get_kvs_addr, initialize, all_reduce, broadcast, barrier and others.

    oneCCL is that of CCL_ROOT, else of the environment's wheels. See opforge.ops.ccl for the functions.
    """

    name = "ccl_comm"
    abi = "c"
    sources = ["ccl/ccl.cpp"]
    libraries = ["ccl"]
    python_functions = "opforge.ops.ccl.communicators:functions"
    signatures = {
        "ccl_address_bytes": (c_int64, []),
        "ccl_create_kvs": (c_int, [POINTER(c_void_p), POINTER(c_uint8), *_PROBLEM]),
        "ccl_open_kvs": (c_int, [POINTER(c_void_p), POINTER(c_uint8), *_PROBLEM]),
        "ccl_connect": (c_int, [POINTER(c_void_p), c_void_p, c_int, c_int, *_PROBLEM]),
        "ccl_all_reduce": (c_int, [c_void_p, c_void_p, c_int64, c_int, c_int, c_char_p, *_PROBLEM]),
        "ccl_broadcast": (c_int, [c_void_p, c_void_p, c_int64, c_int, c_int, *_PROBLEM]),
        "ccl_barrier": (c_int, [c_void_p, *_PROBLEM]),
        "ccl_dtype": (c_int, [c_int]),
        "ccl_reduction": (c_int, [c_int]),
    }

    def gate(self, capabilities: Capabilities) -> Iterable[str]:
        """Returns the missing parts of oneCCL."""
        return () if _folders() else (f"no oneCCL in {_root()}: {ADVICE}",)

    def spec(self) -> OpSpec:
        """Returns the declaration with oneCCL's folders."""
        spec, folders = super().spec(), _folders()
        if not folders:
            return spec
        include, library = folders
        # oneCCL lies where no loader searches, and the libraries that it needs, or opens later, do not say where they
        # are. An old-style run path, unlike a new one, counts for them too.
        paths = ":".join(dict.fromkeys([library, os.path.join(_root(), "lib")]))
        flags = (*spec.link_flags, f"-L{library}", f"-Wl,--disable-new-dtags,-rpath,{paths}")
        return spec._replace(include_dirs=(*spec.include_dirs, include), link_flags=flags)

    def load(self, verbose: bool = False) -> Any:
        """Returns the op. Sets oneCCL's transport to libfabric unless it is set: the default needs mpirun."""
        os.environ.setdefault("CCL_ATL_TRANSPORT", "ofi")
        providers = os.path.join(_root(), "lib", "prov")
        if os.path.isdir(providers):
            os.environ.setdefault("FI_PROVIDER_PATH", providers)
        return super().load(verbose)


def _root() -> str:
    return os.environ.get("CCL_ROOT") or sys.prefix


def _folders() -> tuple[str, str] | None:
    """Returns oneCCL's folders of headers and of the library for CPUs, None if one is missing."""
    include = os.path.join(_root(), "include")
    if not os.path.exists(os.path.join(include, "oneapi", "ccl.hpp")):
        return None
    folders = (os.path.join(_root(), folder) for folder in LIBRARY_FOLDERS)
    library = next((folder for folder in folders if os.path.exists(os.path.join(folder, "libccl.so"))), None)
    return (include, library) if library else None
