"""Signatures: ed25519 over bytes. Keys and signatures are text, `name:base64`, as Nix has them."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, NamedTuple

from opforge.errors import ExtraNotInstalledError, KeyFileError, SettingError

if TYPE_CHECKING:
    from types import ModuleType

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
PUBLIC_BYTES, SECRET_BYTES, SIGNATURE_BYTES = 32, 64, 64
"""A secret key is the seed, and the public key after it."""
EXPECTED = "name:base64, a name of letters, digits, '.', '_' and '-'"


class Named(NamedTuple):
    """Bytes with the name of a key: a public key, a secret key, or a signature."""

    name: str
    data: bytes

    def __str__(self) -> str:
        """Returns `name:base64`."""
        return f"{self.name}:{base64.b64encode(self.data).decode()}"

    def __repr__(self) -> str:
        """Returns the name alone: what is secret must not be in a log."""
        return f"<{len(self.data)} bytes of {self.name}>"


def parse(text: str, size: int) -> Named:
    """Returns the name and the bytes in `name:base64`. Raises ValueError for another form, or another number of bytes.

    The same bytes have one text: base64 whose last digit has bits that belong to no byte is refused.
    """
    name, _, encoded = text.strip().partition(":")
    try:
        data = base64.b64decode(encoded.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        data = b""
    if not NAME.fullmatch(name) or len(data) != size or base64.b64encode(data).decode() != encoded:
        raise ValueError(f"expected {EXPECTED}, and {size} bytes")
    return Named(name, data)


def check_name(name: str) -> str:
    """Returns the name of a key. Raises SettingError for one that no key can have."""
    if not NAME.fullmatch(name):
        raise SettingError("key name", name, "at most 63 letters, digits, '.', '_' and '-', the first no sign")
    return name


def new_secret(name: str) -> Named:
    """Returns a new secret key. Raises SettingError for a name that no key can have."""
    check_name(name)
    key = _ed25519().Ed25519PrivateKey.generate()
    return Named(name, key.private_bytes_raw() + key.public_key().public_bytes_raw())


def public_of(secret: Named) -> Named:
    """Returns the public key of a secret key."""
    return Named(secret.name, secret.data[PUBLIC_BYTES:])


def sign(data: bytes, secret: Named) -> Named:
    """Returns the signature of the bytes. Raises KeyFileError if the two halves of the key do not belong together."""
    key = _ed25519().Ed25519PrivateKey.from_private_bytes(secret.data[:PUBLIC_BYTES])
    if key.public_key().public_bytes_raw() != secret.data[PUBLIC_BYTES:]:
        problem = f"The secret key {secret.name} is damaged: its two halves do not belong together"
        raise KeyFileError(f"{problem}. Take it from its backup, or make a new one: opforge key new NAME.")
    return Named(secret.name, key.sign(data))


def is_signed(data: bytes, signature: Named, public: Named) -> bool:
    """Returns whether the signature is that of these bytes by this key, and has the key's name."""
    if signature.name != public.name:
        return False
    ed25519 = _ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public.data).verify(signature.data, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _ed25519() -> ModuleType:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ExtraNotInstalledError("The signature of a remote's offer", "cryptography", "sign") from error
    return ed25519
