"""The trust file: whose signatures are accepted, for which names, until when; and who may write it."""

from __future__ import annotations

import json
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.owners import as_root

from opforge.cli.remote import keys
from opforge.errors import SignatureError, TrustFileError
from opforge.remote.signatures import signing, trust

DATA = b"signed bytes"
JULY = 1_782_900_000.0  # 2026-07-01


@pytest.fixture(autouse=True)
def own_config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def secret():
    return signing.new_secret("ci")


def trusted(secret, **fields):
    return trust.Trust("trust.json", (trust.TrustedKey(signing.public_of(secret), **fields),))


def refusal(content, *signatures, name="relu"):
    with pytest.raises(SignatureError) as raised:
        trust.allowed(content.signers("it", DATA, signatures, JULY), name, "it")
    return raised.value.reason


def test_a_trusted_key_is_accepted_for_its_names(secret):
    content = trusted(secret, namespaces=("my_*",), until="2026-12-31")
    signed = signing.sign(DATA, secret)
    (key,) = trust.allowed(content.signers("it", DATA, [signed], JULY), "my_relu", "it")
    assert key.key.name == "ci"


def test_an_unsigned_thing_is_refused(secret):
    assert refusal(trusted(secret)) == "it has no signature"


def test_an_unknown_key_is_refused(secret):
    other = signing.new_secret("lab")
    assert refusal(trusted(secret), signing.sign(DATA, other)) == "the key lab is not in the trust file"


def test_another_key_with_a_trusted_name_is_refused(secret):
    other = signing.new_secret("ci")
    assert refusal(trusted(secret), signing.sign(DATA, other)) == "the signature by ci is not of these bytes"


def test_a_signature_of_other_bytes_is_refused(secret):
    assert refusal(trusted(secret), signing.sign(b"other", secret)) == "the signature by ci is not of these bytes"


def test_a_key_that_has_ended_is_refused(secret):
    content = trusted(secret, until="2026-06-30")
    assert refusal(content, signing.sign(DATA, secret)) == "the key ci ended on 2026-06-30"


def test_a_key_is_used_on_its_last_day(secret):
    assert trusted(secret, until="2026-07-01").signers("it", DATA, [signing.sign(DATA, secret)], JULY)


def test_a_revoked_key_is_refused(secret):
    content = trusted(secret, revoked="2026-05-01")
    assert refusal(content, signing.sign(DATA, secret)) == "the key ci was revoked on 2026-05-01"


def test_a_name_out_of_the_keys_scope_is_refused(secret):
    content = trusted(secret, namespaces=("my_*", "our_relu"))
    signed = signing.sign(DATA, secret)
    assert refusal(content, signed) == "no key that signed it may sign 'relu': ci may sign my_*, our_relu"


def test_one_accepted_signature_of_several_is_enough(secret):
    other = signing.new_secret("lab")
    signatures = [signing.sign(DATA, other), signing.sign(DATA, secret)]
    assert trusted(secret).signers("it", DATA, signatures)


def test_two_keys_of_one_name_while_one_replaces_the_other(secret):
    newer = signing.new_secret("ci")
    content = trust.Trust("", (*trusted(secret, revoked="2026-05-01").keys, *trusted(newer).keys))
    assert content.signers("it", DATA, [signing.sign(DATA, newer)])


def test_the_file_reads_back(secret):
    content = trusted(secret, namespaces=("a*", "b"), until="2027-06-30", revoked="2026-05-01")
    written = content._replace(path=trust.read().path, revocation_days=7.0)
    trust.write(written)
    assert trust.read() == written


def test_without_a_file_no_key_is_trusted():
    assert trust.read().keys == ()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is damaged"),
        ("[]", "is damaged"),
        ("{" * 5000, "is damaged"),
        ('{"format": 2, "keys": []}', "its format is 2"),
        ('{"format": 1}', "is damaged"),
        ('{"format": 1, "keys": [{"key": "ci:AAAA"}]}', "expected name:base64"),
        ('{"format": 1, "keys": [], "revocation_days": 0}', "expected a number of days"),
        ('{"format": 1, "keys": [{"key": "%s", "until": "soon"}]}', "does not match format"),
        ('{"format": 1, "keys": [{"key": "%s", "namespaces": "*"}]}', "namespaces must be a list"),
    ],
)
def test_a_damaged_file_is_an_error(content, problem, secret):
    path = trust.read().path
    os.makedirs(os.path.dirname(path))
    with open(path, "w") as file:
        file.write(content.replace("%s", str(signing.public_of(secret))))
    with pytest.raises(TrustFileError, match=problem):
        trust.read()


def test_a_file_that_others_can_write_is_refused(secret):
    trust.write(trusted(secret)._replace(path=trust.read().path))
    os.chmod(trust.read().path, 0o666)
    with pytest.raises(TrustFileError, match=r"has mode 666, so others can change it\. Run: chmod go-w"):
        trust.read()


def test_a_folder_that_others_can_write_is_refused(secret):
    path = trust.read().path
    trust.write(trusted(secret)._replace(path=path))
    os.chmod(os.path.dirname(path), 0o777)
    with pytest.raises(TrustFileError, match="can be written by everybody"):
        trust.read()


@as_root
def test_a_file_of_another_user_is_refused(secret):
    path = trust.read().path
    trust.write(trusted(secret)._replace(path=path))
    os.chown(path, 65534, 65534)
    with pytest.raises(TrustFileError, match="it belongs to user 65534"):
        trust.read()


def test_a_file_that_all_users_read_stays_readable(tmp_path, monkeypatch, secret):
    path = tmp_path / "site.json"
    monkeypatch.setenv("OPFORGE_TRUST_FILE", str(path))
    trust.write(trusted(secret)._replace(path=str(path)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    trust.write(trusted(secret, revoked="2026-05-01")._replace(path=str(path)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_the_file_may_be_elsewhere(tmp_path, monkeypatch, secret):
    monkeypatch.setenv("OPFORGE_TRUST_FILE", str(tmp_path / "site.json"))
    (tmp_path / "site.json").write_text(json.dumps({"format": 1, "keys": [{"key": str(signing.public_of(secret))}]}))
    os.chmod(tmp_path / "site.json", 0o644)
    assert [key.key.name for key in trust.read().keys] == ["ci"]


def test_keys_that_are_changed_at_the_same_time_are_all_kept(secret, monkeypatch):
    path = trust.read().path
    trust.write(trusted(secret)._replace(path=path))
    write = trust.write

    def write_slowly(content):
        time.sleep(0.2)
        write(content)

    monkeypatch.setattr(trust, "write", write_slowly)
    publics = [str(signing.public_of(signing.new_secret(f"lab{number}"))) for number in range(2)]
    with ThreadPoolExecutor(3) as threads:
        added = [threads.submit(keys.trust_command.callback, public, (), "", False) for public in publics]
        added.append(threads.submit(keys.revoke_command.callback, "ci", False))
        for future in added:
            future.result(timeout=60)
    revoked = {entry.key.name: bool(entry.revoked) for entry in trust.read().keys}
    assert revoked == {"ci": True, "lab0": False, "lab1": False}


def test_a_trust_file_in_a_folder_that_cannot_be_written_is_an_error(monkeypatch):
    monkeypatch.setattr(trust, "can_write", lambda folder: False)  # of root it is never true
    with pytest.raises(TrustFileError, match=r"it cannot be written \(its folder is read-only\)"), trust.held():
        pass
