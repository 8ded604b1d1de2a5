"""How the ranks of a host are bound: the same options as a value, as JSON and as arguments of a rank."""

from __future__ import annotations

from typing import NamedTuple

from .core_list import format_list

SMT = ("keep", "skip")


class BindOptions(NamedTuple):
    """How the ranks of a host are bound."""

    bind: bool = False
    """Whether each rank gets cores and memory of its own."""
    core_list: tuple[int, ...] = ()
    """The only hardware threads that may be used. Empty: all."""
    smt: str = "keep"
    """`keep`: a rank runs on all hardware threads of its cores. `skip`: on the first of each core."""
    accelerator: str = "cpu"
    """Ranks run near their devices of this accelerator, if the PCI bus shows where these are."""
    set_threads: bool = True
    """Whether OMP_NUM_THREADS is set. False if the user has set it."""

    def arguments(self) -> list[str]:
        """Returns the options as arguments of `opforge.launch.rank`."""
        arguments = [] if self.set_threads else ["--keep-threads"]
        if self.bind:
            arguments += ["--bind", "--smt", self.smt, "--accelerator", self.accelerator]
            arguments += ["--cores", format_list(self.core_list)] if self.core_list else []
        return arguments
