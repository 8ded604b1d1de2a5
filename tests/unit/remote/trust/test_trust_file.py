"""The trust file: whose signatures are accepted, for which names, until when; and who may write it."""

from __future__ import annotations

import errno
import json
import os
import shlex
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from support.owners import as_root

from opforge.cli import group
from opforge.cli.remote import keys
from opforge.errors import SignatureError, TrustFileError
from opforge.remote.signatures import signing, trust_file

DATA = b"signed bytes"
JULY = 1_782_900_000.0  # 2026-07-01


@pytest.fixture(autouse=True)
def own_config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def secret():
    return signing.new_secret("ci")


def trusted(secret, **fields):
    return trust_file.Trust(
        "trust.json", (trust_file.TrustedKey(signing.public_of(secret), **{"scopes": ("op:*",), **fields}),)
    )


def refusal(content, *signatures, name="op:relu"):
    with pytest.raises(SignatureError) as raised:
        trust_file.allowed(content.signers("it", DATA, signatures, JULY), name, "it")
    return raised.value.reason


def test_a_trusted_key_is_accepted_for_its_names(secret):
    content = trusted(secret, scopes=("op:my_*",), until="2026-12-31")
    signed = signing.sign(DATA, secret)
    (key,) = trust_file.allowed(content.signers("it", DATA, [signed], JULY), "op:my_relu", "it")
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
    with pytest.raises(
        SignatureError, match="Somebody has changed it in the remote, or the key's holder has another key"
    ):
        trusted(secret).signers("it", DATA, [signing.sign(b"other", secret)], JULY)


def test_a_key_that_has_ended_is_refused(secret):
    content = trusted(secret, until="2026-06-30")
    assert refusal(content, signing.sign(DATA, secret)) == "the key ci ended on 2026-06-30"


def test_a_key_is_used_on_its_last_day(secret):
    assert trusted(secret, until="2026-07-01").signers("it", DATA, [signing.sign(DATA, secret)], JULY)


@pytest.mark.parametrize("day", ["0027-06-30", "0999-12-31", "2026-1-2"])
def test_a_year_of_less_than_four_digits_has_passed(secret, day):
    """Such as 0027 in the place of 2027: by the order of texts, 27 comes after 2026."""
    until = trust_file.check_date(day)
    assert until == "2026-01-02" or until == day
    with pytest.raises(SignatureError, match=f"the key ci ended on {until}"):
        trusted(secret, until=until).signers("relu", DATA, [signing.sign(DATA, secret)])


def test_a_revoked_key_is_refused(secret):
    content = trusted(secret, revoked="2026-05-01")
    assert refusal(content, signing.sign(DATA, secret)) == "the key ci was revoked on 2026-05-01"


def test_a_name_out_of_the_keys_scope_is_refused(secret):
    content = trusted(secret, scopes=("op:my_*", "op:our_relu"))
    signed = signing.sign(DATA, secret)
    assert refusal(content, signed) == "no key that signed it may sign op:relu: ci may sign op:my_*, op:our_relu"


def test_the_command_that_widens_a_keys_scope_keeps_what_it_had(secret):
    content = trusted(secret, scopes=("op:my_*",), until="2999-06-30")
    with pytest.raises(SignatureError) as caught:
        trust_file.verify("relu", DATA, [signing.sign(DATA, secret)], "op:relu", content)
    trust_file.write(content._replace(path=trust_file.read().path))
    words = shlex.split(str(caught.value).partition("If it may: opforge ")[2].rstrip("."))
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 0, done.output
    (entry,) = trust_file.read().keys
    assert (entry.scopes, entry.until) == (("op:my_*", "op:relu"), "2999-06-30")


@pytest.mark.parametrize(
    ("scope", "name", "is_accepted"),
    [
        ("op:*", "op:relu", True),
        ("op:re?u", "op:relu", True),
        ("op:*", "package:acme/relu", False),
        ("package:*/*", "op:relu", False),
        ("package:acme/*", "package:acme/relu", True),
        ("package:acme/*", "package:acme2/relu", False),
        ("package:*/relu", "package:acme/relu", True),
        ("package:acme/relu", "package:acme/relu2", False),
    ],
)
def test_ops_and_packages_are_named_apart(secret, scope, name, is_accepted):
    assert trusted(secret, scopes=(scope,)).keys[0].may_sign(name) is is_accepted


def test_one_accepted_signature_of_several_is_enough(secret):
    other = signing.new_secret("lab")
    signatures = [signing.sign(DATA, other), signing.sign(DATA, secret)]
    assert trusted(secret).signers("it", DATA, signatures)


def test_two_keys_of_one_name_while_one_replaces_the_other(secret):
    newer = signing.new_secret("ci")
    content = trust_file.Trust("", (*trusted(secret, revoked="2026-05-01").keys, *trusted(newer).keys))
    assert content.signers("it", DATA, [signing.sign(DATA, newer)])


def test_the_file_reads_back(secret):
    content = trusted(secret, scopes=("op:a*", "package:b/c"), until="2027-06-30", revoked="2026-05-01")
    written = content._replace(path=trust_file.read().path, withdrawal_days=7.0)
    trust_file.write(written)
    assert trust_file.read() == written


def test_without_a_file_no_key_is_trusted():
    assert trust_file.read().keys == ()


HEAD = '{"format": 1,\n "keys": [\n'
"""What comes after it begins in line 3."""


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "line 1: it is not valid JSON (Expecting value: "),
        ("[]", "line 1: it is a list of 0 items: expected an object"),
        ("{" * 5000, "line 1: it is not valid JSON"),
        ('{"format": 1, "keys": ' + "[" * 50_000 + "]" * 50_000 + "}", "line 1: it is nested too deeply"),
        ('{"format": 1,\n"keys": [],\n}', "line 3: it is not valid JSON"),
        ('{"format": 1,\n"keys": \xff[]}', "line 2: it is not valid JSON ('utf-8' codec can't decode byte 0xff"),
        ('{"format": 1,\n"keys": [],\n"format": 1}', "line 3: it is not valid JSON ('format' is in it twice)"),
        ('{"format": 2, "keys": []}', "line 1: 'format' is 2, and this opforge reads 1: update opforge"),
        ('{"format": true, "keys": []}', "line 1: 'format' is True, and this opforge reads 1"),
        ('{"format": 1}', "line 1: 'keys' is missing"),
        ('{"format": 1, "keys": {}}', "line 1: 'keys' is an object of 0 fields: expected a list"),
        (
            '{"format": 1, "keys": [],\n"withdrawal_days": 0}',
            "line 2: 'withdrawal_days' is 0: expected a number of days, more than 0",
        ),
        (
            '{"format": 1, "keys": [], "withdrawal_days": "30"}',
            "line 1: 'withdrawal_days' is '30': expected a number",
        ),
        ('{"format": 1, "keys": [], "withdrawal_days": true}', "line 1: 'withdrawal_days' is True: expected a number"),
        ('{"format": 1, "keys": [], "withdrawal_days": NaN}', "line 1: it is not valid JSON (NaN is not a JSON value)"),
        (
            '{"format": 1, "keys": [], "withdrawal_days": -Infinity}',
            "line 1: it is not valid JSON (-Infinity is not",
        ),
        (
            '{"format": 1, "keys": [],\n\n"withdrawal_days": 1e999}',
            "line 3: it is not valid JSON (1e999 is too large a",
        ),
        (
            '{"format": 1, "keys": [],\n\n"withdrawal_days": ' + "1" * 5000 + "}",
            f"line 3: it is not valid JSON ({'1' * 60} is too large a number)",
        ),
        ('{"format": 1, "keys": [],\n\n"x": "\\ud800"}', "line 3: it is not valid JSON ('utf-8' codec can't encode"),
        ('{"format": 1, "keys": [],\n\n"\\ud800": 1}', "line 3: it is not valid JSON ('utf-8' codec can't encode"),
        (
            '{"format": 1, "keys": [],\n\n"withdrawal_day": 7}',
            "line 3: 'withdrawal_day' is not a field that is read; did you mean 'withdrawal_days'?",
        ),
        (
            HEAD + '{"key": "ci:AAAA", "for": ["op:*"]}]}',
            "line 3: 'keys[0].key' is not a public key: expected name:b",
        ),
        (HEAD + "4]}", "line 3: 'keys[0]' is 4: expected an object"),
        (
            HEAD + '{"key": "%s"}]}',
            "line 3: 'keys[0].for' is missing",
        ),
        (HEAD + '{"key": "%s", "for": []}]}', "line 3: 'keys[0].for' is a list of 0 items: expected a list of 1"),
        (HEAD + '{"key": "%s", "for": "op:*"}]}', "line 3: 'keys[0].for' is 'op:*': expected a list of 1"),
        (
            HEAD + '{"key": "%s",\n"for": ["*"]}]}',
            "line 4: 'keys[0].for[0]' is '*': expected op:NAME, program:NAME, tuned:NAME",
        ),
        (HEAD + '{"key": "%s", "for": ["package:*"]}]}', "line 3: 'keys[0].for[0]' is 'package:*': expected op:NAME"),
        (
            HEAD + '{"key": "%s", "for": ["op:*",\n"note:x"]}]}',
            "line 4: 'keys[0].for[1]' is 'note:x': expected op:",
        ),
        (HEAD + '{"key": "%s", "for": [5]}]}', "line 3: 'keys[0].for[0]' is 5: expected a text"),
        (
            HEAD + '{"key": "%s", "for": ["op:*"],\n"until": "soon"}]}',
            "line 4: 'keys[0].until' is 'soon': expected a day such as",
        ),
        (
            HEAD + '{"key": "%s", "for": ["op:*"], "until": null}]}',
            "line 3: 'keys[0].until' is None: expected a day",
        ),
        (
            HEAD + '{"key": "%s", "for": ["op:*"], "revoked": 1}]}',
            "line 3: 'keys[0].revoked' is 1: expected a day",
        ),
        (
            HEAD + '{"key": "%s", "for": ["op:*"],\n"untill": "2026-12-31"}]}',
            "line 4: 'keys[0].untill' is not a field that is read; did you mean 'until'?",
        ),
        (
            HEAD + '{"key": "%s", "for": ["op:*"],\n"namespace": ["x"]}]}',
            "line 4: 'keys[0].namespace' is not a field that is read",
        ),
        (
            HEAD + '{"key": "%s", "for": ["op:*"], "revoked": "2026-01-01"},\n{"key": "%s", "for": ["op:*"]}]}',
            "line 4: the key ci is in line 3 already",
        ),
    ],
)
def test_a_damaged_file_is_one_error_that_names_the_line(content, problem, secret):
    path = trust_file.read().path
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as file:
        file.write(content.replace("%s", str(signing.public_of(secret))).encode("latin-1"))
    with pytest.raises(TrustFileError) as error:
        trust_file.read()
    assert f"The trust file {path} cannot be used: {problem}" in str(error.value)
    assert "Correct that line: nothing is fetched or installed before." in str(error.value)


def test_a_secret_key_in_the_file_is_not_shown(secret):
    path = trust_file.read().path
    os.makedirs(os.path.dirname(path))
    with open(path, "w") as file:
        file.write(json.dumps({"format": 1, "keys": [{"key": str(secret), "for": ["op:*"]}]}))
    with pytest.raises(TrustFileError) as error:
        trust_file.read()
    assert str(secret).partition(":")[2][:8] not in str(error.value)


def test_a_file_that_others_can_write_is_refused(secret):
    trust_file.write(trusted(secret)._replace(path=trust_file.read().path))
    os.chmod(trust_file.read().path, 0o666)
    with pytest.raises(TrustFileError, match=r"has mode 666, so others can change it\. Run: chmod go-w"):
        trust_file.read()


def test_a_folder_that_others_can_write_is_refused(secret):
    path = trust_file.read().path
    trust_file.write(trusted(secret)._replace(path=path))
    os.chmod(os.path.dirname(path), 0o777)
    with pytest.raises(TrustFileError, match="can be written by everybody"):
        trust_file.read()


@as_root
def test_a_file_of_another_user_is_refused(secret):
    path = trust_file.read().path
    trust_file.write(trusted(secret)._replace(path=path))
    os.chown(path, 65534, 65534)
    with pytest.raises(TrustFileError, match="it belongs to user 65534"):
        trust_file.read()


def test_a_file_that_all_users_read_stays_readable(tmp_path, monkeypatch, secret):
    path = tmp_path / "site.json"
    monkeypatch.setenv("OPFORGE_TRUST_FILE", str(path))
    trust_file.write(trusted(secret)._replace(path=str(path)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    trust_file.write(trusted(secret, revoked="2026-05-01")._replace(path=str(path)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_the_file_may_be_elsewhere(tmp_path, monkeypatch, secret):
    monkeypatch.setenv("OPFORGE_TRUST_FILE", str(tmp_path / "site.json"))
    (tmp_path / "site.json").write_text(
        json.dumps({"format": 1, "keys": [{"key": str(signing.public_of(secret)), "for": ["op:*"]}]})
    )
    os.chmod(tmp_path / "site.json", 0o644)
    assert [key.key.name for key in trust_file.read().keys] == ["ci"]


def test_keys_that_are_changed_at_the_same_time_are_all_kept(secret, monkeypatch):
    path = trust_file.read().path
    trust_file.write(trusted(secret)._replace(path=path))
    write = trust_file.write

    def write_slowly(content):
        time.sleep(0.2)
        write(content)

    monkeypatch.setattr(trust_file, "write", write_slowly)
    publics = [str(signing.public_of(signing.new_secret(f"lab{number}"))) for number in range(2)]
    with ThreadPoolExecutor(3) as threads:
        added = [threads.submit(keys.trust_command.callback, public, ("op:*",), "", False) for public in publics]
        added.append(threads.submit(keys.revoke_command.callback, "ci", False))
        for future in added:
            future.result(timeout=60)
    revoked = {entry.key.name: bool(entry.revoked) for entry in trust_file.read().keys}
    assert revoked == {"ci": True, "lab0": False, "lab1": False}


def test_a_trust_file_that_its_owner_alone_can_read_is_an_error_for_others(monkeypatch):
    """As root's is in /etc, which `opforge key trust` makes with mode 0600."""
    trust_file.write(trust_file.read())

    def closed(*_arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(trust_file, "read_file", closed)
    with pytest.raises(
        TrustFileError, match=r"Permission denied\. Its owner runs: chmod a\+r .*trust\.json, and a\+x for"
    ):
        trust_file.read()


def test_a_trust_file_in_a_folder_that_cannot_be_written_is_an_error(monkeypatch):
    monkeypatch.setattr(trust_file, "can_write", lambda folder: False)  # of root it is never true
    with pytest.raises(TrustFileError, match=r"it cannot be written \(its folder is read-only\)"), trust_file.held():
        pass
