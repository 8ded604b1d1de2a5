"""The installed version of a package that opforge changes from outside, compared with those that its tests ran with."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("opforge")


def installed_version(package: str, title: str, tested: str, error: Callable[[str, str], Exception]) -> str:
    """Returns the version of a package, and warns if it is untested.

    `title` names the package in the warning. Raises what `error` makes of the problem and `tested` if there is none.
    """
    from importlib.metadata import PackageNotFoundError, version

    from packaging.specifiers import SpecifierSet

    try:
        installed = version(package)
    except PackageNotFoundError:
        raise error("it is not installed", tested) from None
    if installed not in SpecifierSet(tested):
        log.warning("%s %s is installed, and opforge was tested with %s%s only", title, installed, title, tested)
    return installed
