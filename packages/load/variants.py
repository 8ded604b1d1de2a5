"""Loads the best of some variants that are on disk: each is judged before it is opened, then the next one is tried."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.errors import KernelDependencyError, OpforgeError
from opforge.foundation.files import changed_path
from opforge.packages.choose import candidate
from opforge.packages.choose.candidate import VariantCandidate
from opforge.packages.form.properties import SOURCE, TVM
from opforge.packages.installed import receipt
from opforge.packages.installed.releases import InstalledVariant

from .tree import has_bytecode, id_problem, import_tree

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opforge.packages.form.metadata import Dependency

log = logging.getLogger("opforge.kernels")


class Attempt:
    """The facts that one call of `get_kernel` has found."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        """Why variants cannot be used."""
        self.is_per_device = False
        """Whether another current device may need another variant."""
        self.needs_more = False
        """Whether more than the machine's processor and torch decided: devices, Python packages, what another lacks."""
        self.scope = ""
        """What the folder is for in which the release that was tried last is installed; or a checkout."""
        self.load_needed: Callable[[Dependency], ModuleType] | None = None
        """Loads a package that another one needs."""
        self.refusal: Callable[[str], str] = lambda folder: ""
        """Returns why the variant in a folder is not accepted although its digests are right."""
        self.choice: Loadable | None = None
        """The variant that was loaded, with the stamps that its files had when its digests were right."""


class Loadable(NamedTuple):
    """A variant on disk."""

    candidate: VariantCandidate
    folder: str
    where: str
    """For messages: the label, and where it lies."""
    module: str
    """The name of its module in sys.modules."""
    installed: InstalledVariant | None = None
    receipt: Mapping[str, Any] = {}
    """The stamps of its files; empty if they are not known."""
    inner: str = ""
    """The folder in it that is imported; empty if it is imported itself."""
    content: str = ""
    """The digest of its files; empty if none are stated."""
    has_bytecode: bool = False
    """Whether its bytecode is what the installation has made. Otherwise its sources are compiled."""
    version: str = ""
    """Of the package; empty if it is not stated."""


def best(name: str, variants: Sequence[Loadable], label: str | None, attempt: Attempt) -> ModuleType | None:
    """Returns the module of the best variant that can be loaded, or None. Raises KernelLoadError."""
    from opforge.packages.choose import environment, order

    reasons = attempt.reasons
    if label is not None:
        reasons += [f"{choice.where}: {label} is requested" for choice in variants if choice.candidate.label != label]
        variants = [choice for choice in variants if choice.candidate.label == label]
    backends = candidate.asked_for(choice.candidate for choice in variants)
    by_candidate = {id(choice.candidate): choice for choice in variants}
    whole = environment.here(backends)
    # A variant for what torch was not built for is refused by that alone, which the name of what is remembered covers.
    attempt.needs_more |= bool(backends & {whole.backend, TVM} - {"cpu"})
    here = environment.of_current_device(whole)
    attempt.is_per_device = attempt.is_per_device or here is not whole
    for decision in order.decide([choice.candidate for choice in variants], here):
        choice = by_candidate[id(decision.candidate)]
        problem = decision.problem or _requirement_problem(choice.candidate.python_depends)
        if not problem and choice.installed:
            choice, problem = _compared(choice)
        module = problem or id_problem(choice.module, choice.content) or _imported(name, choice, attempt)
        if isinstance(module, str):
            attempt.needs_more |= not decision.problem  # its files, or what it requires, may be there next time
            reasons.append(f"{choice.where}: {module}")
            continue
        log.debug("%s: %s", name, choice.where)
        attempt.choice = choice
        # Sources are built by whatever compiler is here.
        attempt.needs_more |= bool(choice.candidate.python_depends) or choice.candidate.properties.framework == SOURCE
        attempt.needs_more |= bool(choice.candidate.depends)
        return module
    return None


def _imported(name: str, choice: Loadable, attempt: Attempt) -> ModuleType | str:
    """Returns the module of a variant, or why it cannot be loaded: the next one may be. Raises KernelLoadError."""
    try:
        folder = os.path.join(choice.folder, choice.inner) if choice.inner else choice.folder
        around = _with_needed(name, choice, attempt)
        return import_tree(folder, choice.module, choice.has_bytecode, around, choice.content, choice.version)
    except OSError as error:  # dlopen's, for one
        return str(error)
    except KernelDependencyError:
        raise
    except Exception as error:
        if choice.candidate.properties.framework == SOURCE and isinstance(error, OpforgeError):
            return f"it cannot be built here: {error}"
        raise _import_failed(name, choice.folder, error) from error


def _with_needed(name: str, choice: Loadable, attempt: Attempt) -> AbstractContextManager[None] | None:
    """Returns the scope that offers other packages to a variant while it is imported; None if it requests none."""
    if not choice.candidate.depends or attempt.load_needed is None:
        return None
    from . import needed

    asked = needed.asks(choice.folder)
    return needed.offered(name, asked, attempt.load_needed) if asked else None


def _compared(choice: Loadable) -> tuple[Loadable, str]:
    """Returns an installed variant with the stamps of its files; and why it is not what was installed, or ""."""
    part = choice.installed
    assert part is not None
    if not changed_path(choice.folder, part.receipt):
        return choice._replace(receipt=part.receipt, has_bytecode=has_bytecode(part.files, part.bytecode)), ""
    # A copied environment has other stamps. Then the contents decide.
    try:
        stamps = receipt.stamps(choice.folder, part.bytecode)
    except (OSError, ValueError):
        stamps = {}  # hashing it says what is wrong
    problem = receipt.digest_problem(choice.folder, part.files, part.metadata_sha256)
    changed = f"it was changed after it was installed ({problem}): install it again" if problem else ""
    is_own = not receipt.changed_bytecode(choice.folder, part.bytecode)
    is_used = is_own and has_bytecode(part.files, part.bytecode)
    return choice._replace(receipt=stamps if is_own else {}, has_bytecode=is_used), changed


def _requirement_problem(requirements: Sequence[str]) -> str:
    if not requirements:
        return ""
    from . import requirements as installed

    return installed.problem(requirements)


def _import_failed(name: str, folder: str, error: Exception) -> Exception:
    from opforge.errors import KernelLoadError, KernelNotFoundError

    problem = f"importing it failed: {type(error).__name__}: {error}"
    is_missing = isinstance(error, KernelNotFoundError)
    advice = f"{name} needs it" if is_missing else "The error above is the package's own: report it to its author"
    return KernelLoadError(name, folder, problem, advice)
