"""A unit of work, as JSON: one op for one target in one mode; and its outcome, the answer of a worker."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.builders.declaration.description import description_key
from opforge.cache import schema
from opforge.errors import BuilderError, OpforgeError
from opforge.fast_path.library import BUILD
from opforge.foundation import formats
from opforge.foundation.files import read_json

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder

DIFFERENT = (
    "this machine's files or attributes of the op are not those of the machine that asks. Install the same version"
    " on both, and restart a worker whose modules have changed"
)

PEAK = schema.record({}, {"peak_bytes": schema.maybe(schema.whole())}, is_open=True)
"""The fields of `build.json` that are read."""


class Refused(Exception):
    """This machine cannot do a unit; another one may."""


class Unit(NamedTuple):
    """One op, one target, one mode."""

    name: str
    """The op as it was requested, for messages."""
    builder: str
    """Where its builder is made: "module:Class", or "module:function" that takes the same arguments."""
    options: Mapping[str, Any]
    """The arguments: the target and the mode."""
    folder: str
    """The working folder of who asks. Modules are searched there too, if the worker's machine has it."""
    target: str
    description: str
    """The key of the op's description: a machine with other files refuses the unit."""
    remote: str
    """The URL of the remote that takes the result."""
    run: str = ""
    """The name of the claim in the remote that exists while who asks is there."""
    force: bool = False
    jobs: int | None = None
    toolchain: Mapping[str, str] = {}
    """Refuse a toolchain that differs from this one. Empty: any will do."""

    def to_json(self) -> str:
        """Returns the text that goes to a worker."""
        return json.dumps({"format": formats.UNIT, **self._asdict()})

    def make(self) -> OpBuilder:
        """Returns the builder, on the worker's machine. Raises Refused, and what the builder's own code raises."""
        if os.path.isdir(self.folder) and self.folder not in sys.path:
            sys.path.append(self.folder)
        try:
            builder: OpBuilder = resolve_name(self.builder)(**self.options)
        except (ImportError, AttributeError, ValueError, OpforgeError) as error:
            raise Refused(f"{self.builder} cannot be made ({error})") from error
        if description_key(builder.spec()) != self.description:
            raise Refused(DIFFERENT)
        return builder


def from_json(text: str) -> Unit:
    """Returns the unit that `to_json` wrote. Raises Refused for one of another opforge."""
    fields = json.loads(text)
    number = fields.pop("format", None)
    if number != formats.UNIT or fields.keys() != set(Unit._fields):
        from opforge.foundation import opforge_version

        raise Refused(
            f"opforge {opforge_version.VERSION} reads units of format {formats.UNIT}, and this one has {number}"
        )
    return Unit(**fields)


def unit_of(
    builder: OpBuilder,
    remote: str,
    name: str = "",
    make: str = "",
    options: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Unit:
    """Returns the unit of a builder; `make` and its `options` make it where its class cannot be imported.

    Raises BuilderError if nothing says how to make it on another machine.
    """
    kind, spec = type(builder), builder.spec()
    if not make:
        make, options = f"{kind.__module__}:{kind.__qualname__}", _options(builder, str(spec.target))
        if kind.__module__ == "__main__" or "<" in kind.__qualname__:
            advice = "Move it to the top level of a module that the workers can import"
            raise BuilderError(name or kind.__name__, "its class cannot be imported on another machine", advice)
    return Unit(
        name=name or make,
        builder=make,
        options=options or {},
        folder=os.getcwd(),
        target=str(spec.target),
        description=description_key(spec),
        remote=remote,
        **fields,
    )


def _options(builder: OpBuilder, target: str) -> dict[str, Any]:
    options: dict[str, Any] = {"target": target, "debug": builder.debug, "sanitize": builder.sanitize}
    return options | ({"portable": True} if builder.portable else {})


class Outcome(NamedTuple):
    """The outcome of a unit. Its names are public: `--json` and `--report` print them.

    `state` is built, cached, prebuilt, skipped or failed. A worker also answers with refused (by its machine), and with
    interrupted.
    """

    name: str
    target: str
    state: str
    seconds: float = 0.0
    path: str = ""
    """The library on this machine; empty if a worker built it."""
    result: str = ""
    kind: str = ""
    """The class of the error. Empty if there was none."""
    reason: str = ""
    host: str = ""
    worker: str = ""
    """The worker's address, or its host if it has none."""
    remote: str = ""
    """The remote that has the result, if a worker built it."""
    bytes: int | None = None
    """Size of the library."""
    peak_bytes: int | None = None
    """The most memory of one of its compilers, if it was built in this run."""
    runs: int = 1
    """How often it was begun: more than once if a worker was lost."""

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Returns the outcome that a worker answered with; what a newer opforge adds is left out."""
        return cls(**{name: value for name, value in json.loads(text).items() if name in cls._fields})

    def measured(self) -> Outcome:
        """Returns the outcome with its host, and with the size and the memory of the library at `path`."""
        outcome = self if self.host else self._replace(host=socket.gethostname())
        if not self.path:
            return outcome
        size, peak = None, None
        try:
            size = os.stat(self.path).st_size
            build = schema.checked(read_json(os.path.join(os.path.dirname(self.path), BUILD)), PEAK)
            peak = build.get("peak_bytes")
        except (OSError, ValueError):
            pass  # what was fetched does not say how much memory its compilers needed
        return outcome._replace(bytes=size, peak_bytes=peak if self.state == "built" else None)
