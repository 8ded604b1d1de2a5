"""Secret keys: files that only their owner can read, a variable for CI, or a command that signs."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from collections.abc import Callable

from opforge.errors import KeyFileError, SettingError
from opforge.foundation import environment, settings
from opforge.foundation.file_owners import own_id
from opforge.foundation.files import folder_names, fsync, make_folder, read_file

from . import signing

FOLDER, SUFFIX = "keys", ".secret"
COMMAND_SECONDS = 60.0
"""How long a command that signs may take: it may ask a device for a touch."""
Signer = Callable[[bytes], signing.Named]
"""Returns the signature of bytes."""


def folder() -> str:
    """Returns the folder of this user's secret keys."""
    return os.path.join(environment.config_dir(), FOLDER)


def path_of(name: str) -> str:
    """Returns the file of the secret key `name`."""
    return os.path.join(folder(), name + SUFFIX)


def names() -> list[str]:
    """Returns the names of this user's secret keys."""
    return sorted(name.removesuffix(SUFFIX) for name in folder_names(folder()) if name.endswith(SUFFIX))


def create(name: str) -> signing.Named:
    """Makes a key pair, keeps the secret key in a file of mode 0600, and returns the public key.

    Raises KeyFileError if there is such a key already or it cannot be written, SettingError for a name that no key can
    have.
    """
    secret = signing.new_secret(name)
    try:
        make_folder(folder())
    except OSError as error:
        raise _unwritable(name, error) from error
    try:
        handle = os.open(path_of(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise KeyFileError(f"{path_of(name)} exists: a key is never replaced. Choose another name.") from None
    except OSError as error:
        raise _unwritable(name, error) from error
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{secret}\n")
            file.flush()
            fsync(file.fileno())
    except BaseException as error:  # what is left of it would be a key that is damaged, and is never replaced
        os.unlink(path_of(name))
        if isinstance(error, OSError):
            raise _unwritable(name, error) from error
        raise
    return signing.public_of(secret)


def _unwritable(name: str, error: OSError) -> KeyFileError:
    advice = "Set XDG_CONFIG_HOME to a folder that you can write"
    return KeyFileError(f"The secret key {path_of(name)} cannot be written: {error.strerror}. {advice}.")


def read(name: str) -> signing.Named:
    """Returns the secret key `name`.

    Raises KeyFileError if nobody but its owner should have read it, or it is none; SettingError for a name that no key
    can have.
    """
    path = path_of(signing.check_name(name))
    try:
        status = os.lstat(path)
        text = read_file(path, 4096).decode("ascii")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise KeyFileError(f"The secret key {path} cannot be read: {reason}. Make one: opforge key new NAME") from error
    if status.st_uid != own_id() or not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
        raise KeyFileError(
            f"The secret key {path} belongs to user {status.st_uid} and has mode {stat.S_IMODE(status.st_mode):o}:"
            f" expected a file of your own with mode 600. Make a new key, and revoke this one: others may have read it."
        )
    try:
        return signing.parse(text, signing.SECRET_BYTES)
    except ValueError as error:
        raise KeyFileError(f"The secret key {path} is damaged: {error}.") from None


def signer(name: str = "") -> Signer:
    """Returns the signer: OPFORGE_SIGNING_KEY, OPFORGE_SIGNING_COMMAND, or this user's key file.

    `name` chooses one of several files. Raises SettingError, KeyFileError.
    """
    text, command = settings.signing_key(), settings.signing_command()
    if text and not name:
        try:
            secret = signing.parse(text, signing.SECRET_BYTES)
        except ValueError as error:
            raise SettingError("OPFORGE_SIGNING_KEY", "(secret)", f"a secret key ({error})") from None
        return lambda data: signing.sign(data, secret)
    if command and not name:
        return lambda data: _by_command(command, data)
    own = names()
    if not name and len(own) > 1:
        raise KeyFileError(
            f"{len(own)} secret keys are in {folder()}, and none is chosen to sign: {', '.join(own)}. Name it"
            f" with --key, such as --key {own[0]}. Where there is no such option, as for a load with ?push=1, set it"
            f' in the environment: OPFORGE_SIGNING_KEY="$(cat {path_of(own[0])})".'
        )
    if not name and not own:
        raise KeyFileError(
            "No signing key is configured: expected a key (opforge key new NAME), OPFORGE_SIGNING_KEY or"
            " OPFORGE_SIGNING_COMMAND."
        )
    secret = read(name or own[0])
    return lambda data: signing.sign(data, secret)


def _by_command(command: str, data: bytes) -> signing.Named:
    """Returns the signature that a command prints for the bytes on its standard input."""
    try:
        done = subprocess.run(
            shlex.split(command), input=data, capture_output=True, timeout=COMMAND_SECONDS, check=True
        )
        return signing.parse(done.stdout.decode("ascii"), signing.SIGNATURE_BYTES)
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip()[-500:]
        problem = f"it ended with exit code {error.returncode}{words and ': '}{words}"
    except subprocess.TimeoutExpired:
        problem = f"it took longer than {COMMAND_SECONDS:g} s"
    except (OSError, ValueError) as error:
        problem = str(error)
    raise KeyFileError(
        f"OPFORGE_SIGNING_COMMAND={command!r} did not sign: {problem}. Expected a command that reads bytes from its"
        f" standard input and prints their signature as name:base64."
    )
