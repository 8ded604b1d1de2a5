"""What is said to a call of `get_kernel` or `get_local_kernel` with an argument of the hub's own loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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


def error(function: Callable[..., Any], name: object, unknown: Mapping[str, Any]) -> TypeError:
    """Returns the error for arguments that a function does not have. `name` is the package that was asked for."""
    keyword, value = next(iter(unknown.items()))
    text = f"{function.__name__}() got an unexpected keyword argument {keyword!r}"
    if keyword in INSTEAD:
        return TypeError(f"{text}: {INSTEAD[keyword].format(name=name, value=value)}")
    import inspect

    from opforge.foundation import tracebacks

    return TypeError(text + tracebacks.nearest(keyword, inspect.signature(function).parameters))
