"""What is said to a call of `get_kernel` or `get_local_kernel` with an argument of the hub's own loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opforge.foundation import tracebacks

INSTEAD = {
    "revision": "a branch, tag or commit is the version of a kernel of the hub:"
    " get_kernel({name!r}, {value!r}, hub=True)",
    "backend": "the variant that fits this machine is loaded, and `variant` takes the label of another one",
    "trust_remote_code": "the trust file says whose packages are accepted; leave the argument out",
    "check_arch": "a variant that the device cannot run is passed over, and a package may have one in Triton for it;"
    " leave the argument out",
    "user_agent": "nothing is downloaded; leave the argument out",
}
"""Each argument with what does the same here."""


def explain(
    error: Exception, function: Callable[..., Any], arguments: Sequence[object], named: Mapping[str, object]
) -> None:
    """Says what does the same, or which argument was probably meant. Changes nothing if another error has come.

    Raises SettingError for an argument that does not fit its annotation.
    """
    tracebacks.explain_call(error, function, arguments, named)
    head = f"{function.__name__}() got an unexpected keyword argument "
    for keyword, instead in INSTEAD.items():
        if str(error).startswith(f"{head}{keyword!r}"):
            name = arguments[0] if arguments else named.get("name")
            error.args = (f"{head}{keyword!r}: {instead.format(name=name, value=named[keyword])}",)
