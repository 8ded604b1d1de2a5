"""One file a compiler. A toolchain finds itself, says who it is, and turns a plan into commands."""

from __future__ import annotations

TOOLCHAINS = {
    "host": "opforge.builders.toolchains.host:HostToolchain",
    "triton": "opforge.builders.toolchains.triton:TritonToolchain",
}
"""Name to "module:Class"; a new compiler is one line here and one file beside this one."""
