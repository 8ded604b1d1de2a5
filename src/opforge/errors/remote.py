"""Errors about remotes: a store that fails, a signature that is not accepted, a result that cannot be published."""

from __future__ import annotations

from .base import OpforgeError


class RemoteError(OpforgeError, RuntimeError):
    """Base class of the errors about remotes. A `load()` warns about them and builds the op instead."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class StoreError(RemoteError):
    """A request to a store failed. `url` holds no credentials, and neither does the message."""

    def __init__(self, url: str, operation: str, reason: str, hint: str) -> None:
        super().__init__(f"{url}: {operation} failed: {reason}. {hint}.")
        self.url, self.operation, self.reason, self.hint = url, operation, reason, hint


class DamagedListError(StoreError):
    """A list of withdrawals is damaged. The lists of other keys are not concerned, nor is the store."""


class SignatureError(RemoteError):
    """Something from a remote has no signature that is accepted for it; it is not used."""

    def __init__(self, what: str, reason: str, hint: str) -> None:
        super().__init__(f"{what} is rejected: {reason}. {hint}.")
        self.what, self.reason, self.hint = what, reason, hint


class StoreBehindError(SignatureError):
    """A store has older lists than were seen before, or was not renewed: it is skipped if another store is current."""


class WithdrawnError(SignatureError):
    """The signer of an artifact has withdrawn it, so the artifact is no longer loaded."""


class PublishError(RemoteError):
    """A result was not published to a remote, or the remote's content was not changed."""

    def __init__(self, what: str, url: str, reason: str, hint: str, action: str = "published to") -> None:
        super().__init__(f"{what} was not {action} {url}: {reason}. {hint}.")
        self.what, self.url, self.reason, self.hint, self.action = what, url, reason, hint, action


class KeyFileError(RemoteError):
    """A secret key is missing, can be read by others, or does not sign."""


class TrustFileError(RemoteError):
    """The trust file, which names the accepted keys, cannot be used."""

    def __init__(self, path: str, reason: str, hint: str) -> None:
        super().__init__(f"The trust file {path} cannot be used: {reason}. {hint}.")
        self.path, self.reason, self.hint = path, reason, hint


class FarmError(RemoteError):
    """Units cannot be built on other machines: the engine that runs them fails, or its machines differ."""

    def __init__(self, engine: str, reason: str, hint: str) -> None:
        super().__init__(f"{engine}: {reason}. {hint}.")
        self.engine, self.reason, self.hint = engine, reason, hint
