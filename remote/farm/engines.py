"""Engines, which run units on other machines: Dask by the URL of its scheduler; or any executor.

An executor is what `concurrent.futures` calls one: `submit(function, text)` returns a future with `done`, `result` and
`cancel`. One that breaks as a whole when a worker dies is made again if there is a function that makes it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from pkgutil import resolve_name
from typing import Any, Protocol
from urllib.parse import urlsplit

from opforge.errors import ExtraNotInstalledError, FarmError, SettingError
from opforge.foundation import settings, working_folder

from . import worker

ENGINES = {"tcp": "opforge.remote.farm.engines:Dask", "tls": "opforge.remote.farm.engines:Dask"}
"""Schemes of URLs -> engine, as "module:class"."""
EXPECTED = "the URL of a Dask scheduler, such as tcp://scheduler:8786, or module:function that returns an executor"


class Engine(Protocol):
    """An engine that runs units. Every method may raise the errors of the engine's library."""

    def submit(self, text: str, avoid: Collection[str]) -> Any:
        """Returns the future of a unit; workers in `avoid` have refused it."""
        ...

    def identify(self, text: str) -> list[Any]:
        """Returns futures of what `worker.identify` says, on as many workers as are known."""
        ...

    def slots(self) -> int | None:
        """Returns how many units may be under way at once; None if the engine has a queue of its own."""
        ...

    def workers(self) -> Collection[str] | None:
        """Returns the workers; None if they are not known."""
        ...

    def renew(self) -> bool:
        """Makes an engine that has broken usable again; returns whether that is possible."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


class AnyExecutor:
    """An executor of any library."""

    def __init__(self, executor: Any, name: str = "") -> None:
        """Takes an executor, or a function that makes one and that is called again when the executor has broken.

        `name` is the executor's in messages. Raises FarmError if it is neither.
        """
        self._make: Callable[[], Any] | None = None if hasattr(executor, "submit") else executor
        self._name = name or type(executor).__name__
        self._executor = self._new(self._make) if self._make else executor

    def _new(self, make: Callable[[], Any]) -> Any:
        hint = "Expected an executor as concurrent.futures has them, or a function without arguments that makes one"
        try:
            executor = make()
        except Exception as error:
            reason = f"it made no executor: {type(error).__name__}: {error}"
            raise FarmError(self._name, reason, hint) from error
        if not hasattr(executor, "submit"):
            raise FarmError(self._name, f"it made a {type(executor).__name__}, which has no submit()", hint)
        return executor

    def submit(self, text: str, avoid: Collection[str]) -> Any:
        """Returns the future of a unit: an executor cannot be asked to avoid a machine."""
        return self._executor.submit(worker.run, text)

    def identify(self, text: str) -> list[Any]:
        """Returns the future of one worker's answer: which others there are is not known."""
        return [self._executor.submit(worker.identify, text)]

    def slots(self) -> int | None:
        """Returns the number of workers of a pool of this machine, else None."""
        workers = getattr(self._executor, "_max_workers", None)
        return workers if isinstance(workers, int) else None

    def workers(self) -> Collection[str] | None:
        """Returns None."""
        return None

    def renew(self) -> bool:
        """Makes another executor, if there is a function for it."""
        if self._make is None:
            return False
        self.close()
        self._executor = self._new(self._make)
        return True

    def close(self) -> None:
        """Shuts the executor down, if it was made here."""
        shutdown = getattr(self._executor, "shutdown", None)
        if self._make is not None and shutdown:
            shutdown(wait=False)


class Dask:
    """The workers of a Dask scheduler."""

    def __init__(self, url: str) -> None:
        """Opens a connection; TLS is configured as Dask has it. Raises ExtraNotInstalledError, FarmError."""
        try:
            distributed: Any = importlib.import_module("distributed")
        except ImportError as error:
            raise ExtraNotInstalledError("build-ops --on with Dask", "distributed", "farm") from error
        try:
            self._client = distributed.Client(url, set_as_default=False)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            hint = "Check that the scheduler runs, and for tls:// that Dask's TLS settings name the certificates"
            raise FarmError(url, f"no connection to the scheduler: {error}", hint) from error
        self._executor = self._client.get_executor(pure=False)

    def submit(self, text: str, avoid: Collection[str]) -> Any:
        """Returns the future of a unit. The workers that have refused it are used only if no other is there."""
        others = [address for address in self.workers() if address not in avoid] if avoid else []
        places = {"workers": others, "allow_other_workers": True} if others else {}
        return self._executor.submit(worker.run, text, **places)

    def identify(self, text: str) -> list[Any]:
        """Returns a future for each worker. If one is lost meanwhile, another answers."""
        places: dict[str, Any] = {"allow_other_workers": True}
        return [self._executor.submit(worker.identify, text, workers=[here], **places) for here in self.workers()]

    def slots(self) -> int | None:
        """Returns the threads of all workers: a unit that waits on a worker that dies would count as lost."""
        return int(sum(self._client.nthreads().values()))

    def workers(self) -> Collection[str]:
        """Returns the workers' addresses."""
        return [*self._client.nthreads()]

    def renew(self) -> bool:
        """Returns False: the scheduler is gone."""
        return False

    def close(self) -> None:
        """Ends the connection."""
        self._client.close(timeout=2)


def open_engine(on: Any) -> Engine:
    """Returns the engine of a URL, of module:function, of an executor or of what makes one.

    Raises SettingError, FarmError, ExtraNotInstalledError.
    """
    if not isinstance(on, str):
        return AnyExecutor(on)
    path = ENGINES.get(urlsplit(on).scheme, "") if "://" in on else ""
    if path:
        if not _has_port(on):
            raise SettingError("--on", on, EXPECTED)
        if settings.offline():
            raise FarmError(on, "OPFORGE_OFFLINE=1 forbids the network", "Unset it, or build here")
        engine: Engine = resolve_name(path)(on)
        return engine
    module, separator, name = on.partition(":")
    if "://" in on or not separator:
        raise SettingError("--on", on, EXPECTED)
    try:
        executor = getattr(working_folder.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SettingError("--on", on, f"{EXPECTED} ({error})") from error
    except Exception as error:  # of the module's own code
        raise SettingError("--on", on, f"{EXPECTED} ({type(error).__name__}: {error})") from error
    if not callable(executor) and not hasattr(executor, "submit"):
        raise SettingError("--on", on, f"{EXPECTED} ({on} is a {type(executor).__name__})")
    return AnyExecutor(executor, on)


def _has_port(url: str) -> bool:
    """Returns whether a URL names a host and a port: Dask waits for half a minute for a host without one."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False
