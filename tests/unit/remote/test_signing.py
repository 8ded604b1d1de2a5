"""Keys and signatures: the vectors of RFC 8032, the text form, and where secret keys come from."""

from __future__ import annotations

import errno
import os
import string
import sys

import pytest
from click.testing import CliRunner
from support import text_files

from opforge.cli import group
from opforge.errors import KeyFileError, SettingError
from opforge.remote.signatures import keys, signing

RFC_8032 = (
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
)
"""Secret key, public key, message and signature of the tests 1 to 3 in section 7.1 of RFC 8032, in hex."""


@pytest.fixture(autouse=True)
def own_config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.parametrize(("secret", "public", "message", "signature"), RFC_8032)
def test_the_vectors_of_rfc_8032(secret, public, message, signature):
    key = signing.Named("test", bytes.fromhex(secret + public))
    signed = signing.sign(bytes.fromhex(message), key)
    assert signed.data.hex() == signature
    assert signing.is_signed(bytes.fromhex(message), signed, signing.public_of(key))
    assert not signing.is_signed(bytes.fromhex(message) + b"x", signed, signing.public_of(key))


def test_a_key_is_text_that_reads_back():
    secret = signing.new_secret("ci-1.example")
    assert signing.parse(f" {secret}\n", signing.SECRET_BYTES) == secret
    assert str(signing.public_of(secret)).startswith("ci-1.example:")
    assert len(signing.public_of(secret).data) == 32


@pytest.mark.parametrize("text", ["", "ci", "ci:", "ci:AAAA", ":AAAA", "c i:AAAA", "ci:*", "ci:Ä", "../ci:AAAA"])
def test_what_is_no_key_is_refused(text):
    with pytest.raises(ValueError, match="expected name:base64"):
        signing.parse(text, signing.PUBLIC_BYTES)


def test_a_secret_key_is_not_in_its_repr():
    secret = signing.new_secret("ci")
    assert repr(secret) == "<64 bytes of ci>"


def test_a_secret_key_whose_halves_do_not_belong_together_signs_nothing():
    secret, other = signing.new_secret("ci"), signing.new_secret("ci")
    mixed = signing.Named("ci", secret.data[:32] + other.data[32:])
    with pytest.raises(KeyFileError, match="The secret key ci is damaged: its two halves do not belong together"):
        signing.sign(b"", mixed)


def test_a_new_key_is_a_file_that_only_its_owner_reads():
    old = os.umask(0)
    try:
        public = keys.create("ci")
    finally:
        os.umask(old)
    assert os.stat(keys.path_of("ci")).st_mode & 0o777 == 0o600
    assert signing.public_of(keys.read("ci")) == public
    assert keys.names() == ["ci"]


def test_the_same_bytes_have_one_text():
    secret = signing.new_secret("ci")
    texts = {signing.PUBLIC_BYTES: str(signing.public_of(secret)), signing.SIGNATURE_BYTES: str(secret)}
    for size, text in texts.items():
        assert signing.parse(text, size)
        digits = text.rstrip("=")
        for other in set(string.ascii_letters + string.digits + "+/") - {digits[-1]}:
            changed = digits[:-1] + other + text[len(digits) :]
            try:
                assert signing.parse(changed, size).data != signing.parse(text, size).data
            except ValueError as error:
                assert str(error) == f"expected {signing.EXPECTED}, and {size} bytes"
        with pytest.raises(ValueError, match="expected name:base64"):
            signing.parse(digits, size)


def test_a_signature_has_the_name_of_its_key():
    secret = signing.new_secret("ci")
    signature = signing.sign(b"data", secret)
    assert signing.is_signed(b"data", signature, signing.public_of(secret))
    assert not signing.is_signed(b"data", signature._replace(name="ch"), signing.public_of(secret))


def test_a_key_is_never_replaced():
    keys.create("ci")
    with pytest.raises(KeyFileError, match=r"ci\.secret exists: a key is never replaced"):
        keys.create("ci")


def test_of_a_key_that_could_not_be_written_nothing_is_left(monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    text = (
        r"/ci\.secret cannot be written: No space left on device\. Set XDG_CONFIG_HOME to a folder that you can write"
    )
    with monkeypatch.context() as patched, pytest.raises(KeyFileError, match=text):
        patched.setattr(keys, "fsync", full)
        keys.create("ci")
    assert keys.names() == []
    keys.create("ci")


def test_a_key_whose_folder_cannot_be_made_is_an_error_with_the_variable_that_names_another(monkeypatch, tmp_path):
    text_files.write(tmp_path, "opforge", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(
        KeyFileError, match=r"cannot be written: .*\. Set XDG_CONFIG_HOME to a folder that you can write"
    ):
        keys.create("ci")


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a b", "x" * 64])
def test_a_name_that_no_key_can_have(name):
    with pytest.raises(SettingError, match="at most 63 letters"):
        keys.create(name)


def test_a_key_file_that_others_can_read_is_refused():
    keys.create("ci")
    os.chmod(keys.path_of("ci"), 0o640)
    with pytest.raises(KeyFileError, match="mode 640: expected a file of your own with mode 600"):
        keys.signer()


def test_a_key_file_that_is_damaged_is_refused():
    keys.create("ci")
    with open(keys.path_of("ci"), "w") as file:
        file.write("ci:AAAA")
    with pytest.raises(KeyFileError, match="is damaged: expected name:base64"):
        keys.signer()


@pytest.mark.parametrize("command", [("publish", "--all"), ("withdraw",)])
def test_a_command_that_signs_by_a_damaged_key_says_so(tmp_path, command):
    keys.create("ci")
    secret = keys.read("ci")
    with open(keys.path_of("ci"), "w") as file:
        file.write(str(secret._replace(data=secret.data[:-1] + bytes([secret.data[-1] ^ 1]))))
    (tmp_path / "remote").mkdir()
    done = CliRunner().invoke(group, [*command, f"file://{tmp_path}/remote"])
    assert done.exit_code == 1 and done.output.startswith("error: The secret key ci is damaged: its two halves")


def test_without_a_key_the_error_says_how_to_make_one():
    with pytest.raises(KeyFileError, match=r"expected a key \(opforge key new NAME\)"):
        keys.signer()


def test_of_several_keys_one_must_be_named():
    keys.create("ci")
    keys.create("lab")
    with pytest.raises(KeyFileError, match=r"none is chosen to sign: ci, lab\. Name it with --key"):
        keys.signer()
    assert keys.signer("lab")(b"x").name == "lab"


def test_a_variable_holds_the_key_in_ci(monkeypatch):
    secret = signing.new_secret("ci")
    monkeypatch.setenv("OPFORGE_SIGNING_KEY", str(secret))
    assert keys.signer()(b"x") == signing.sign(b"x", secret)


def test_a_damaged_key_in_the_variable_is_not_in_the_message(monkeypatch):
    monkeypatch.setenv("OPFORGE_SIGNING_KEY", "ci:c2VjcmV0")
    with pytest.raises(SettingError) as raised:
        keys.signer()
    assert "c2VjcmV0" not in str(raised.value)


def test_a_command_signs(tmp_path, monkeypatch):
    secret = signing.new_secret("hsm")
    script = tmp_path / "sign.py"
    script.write_text(
        "import sys; from opforge.remote.signatures import signing\n"
        f"print(signing.sign(sys.stdin.buffer.read(), signing.parse({str(secret)!r}, 64)))"
    )
    monkeypatch.setenv("OPFORGE_SIGNING_COMMAND", f"{sys.executable} {script}")
    assert signing.is_signed(b"data", keys.signer()(b"data"), signing.public_of(secret))


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("false", "exit code 1"),
        ("echo nonsense", "expected name:base64"),
        ("/no/such/program", "No such file"),
        ("'", "No closing quotation"),
    ],
)
def test_a_command_that_does_not_sign(command, problem, monkeypatch):
    monkeypatch.setenv("OPFORGE_SIGNING_COMMAND", command)
    with pytest.raises(KeyFileError, match=problem):
        keys.signer()(b"data")
