"""Signed ops of a remote: fetched without a compiler from a real server, and refused if anything is not as signed."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from support import child_processes, declared_op, sample_ops
from support.remote import scripted, servers

pytestmark = pytest.mark.compile
pytest.importorskip("cryptography", reason="needs cryptography: pip install opforge[sign]")
LOAD = """
import logging, sys
logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stdout)
from plain_ops import Plain
op = Plain().load()
print(op.value(), op.origin)
"""


class User:
    """A user with a key, who has built and published on one machine and loads on another."""

    def __init__(self, scratch):
        self.scratch, self.folder, self.remote = scratch, scratch / "op", scratch / "remote"
        self.url = f"file://{self.remote}"
        self.variables = declared_op.variables(self.folder)

    def run(self, *words, code=0, **changes):
        """Runs a command; returns the document that it prints."""
        done = child_processes.run_command(*words, "--json", **{**self.variables, **changes})
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def load(self, url="", **changes):
        """Loads on a machine that remembers nothing, without a compiler; returns the lines that it prints."""
        shutil.rmtree(self.scratch / "node", ignore_errors=True)
        return self.load_again(url, **changes)

    def load_again(self, url="", **changes):
        """Loads on the same machine as before."""
        node = {"OPFORGE_CACHE_DIR": str(self.scratch / "node" / "store"), "PATH": str(self.scratch)}
        node["XDG_CACHE_HOME"] = str(self.scratch / "node" / "caches")
        env = {**self.variables, **node, "OPFORGE_REMOTES": url or self.url, **changes}
        process = child_processes.start_python(LOAD, env=env)
        out, err = process.communicate(timeout=100)
        return (out + err).splitlines()

    def refused(self, *texts, **changes):
        """Checks that the op is not fetched, for a reason that has one of these texts."""
        lines = self.load(**changes)
        assert not any(line.startswith("1 ") for line in lines), lines
        assert any(text in "\n".join(lines) for text in texts), lines

    def files(self, part):
        """Returns the paths of the files of the remote with this part in their path."""
        return [path for path in self.remote.rglob("*") if path.is_file() and part in path.as_posix()]


def published(scratch):
    """Makes the folders of a user who has published."""
    sample_ops.plain_op(scratch / "op")
    (scratch / "remote").mkdir()
    declared_op.declare(scratch / "op")
    user = User(scratch)
    user.run("key", "trust", user.run("key", "new", "ci")["public"], "--for", "op:*")
    assert child_processes.run_python(LOAD, env=user.variables) == "1 built\n"
    user.run("publish", user.url, "plain")


@pytest.fixture
def user(made_once, tmp_path):
    made_once(published, tmp_path)
    return User(tmp_path)


def test_an_op_is_built_once_signed_and_fetched_from_a_server_without_a_compiler(user):
    with servers.without_proxies(), servers.http_server() as server:
        shutil.copytree(user.remote, server.root, dirs_exist_ok=True)
        assert user.load(server.url)[-1] == f"1 {server.url}"
        assert user.load_again(server.url)[-1] == f"1 {server.url}"
    shutil.rmtree(user.remote)
    assert user.load_again(server.url)[-1].startswith("1 "), "what was fetched is in the cache"


def test_an_offer_of_a_key_that_nobody_trusts_is_refused(user):
    (user.scratch / "config" / "opforge" / "trust.json").unlink()
    user.refused("the key ci is not in the trust file")


def test_a_key_that_may_not_sign_the_op_or_was_revoked_is_refused(user):
    trust = user.scratch / "config" / "opforge" / "trust.json"
    before = trust.read_text()
    trust.write_text(before.replace("op:*", "op:other"))
    user.refused("no key that signed it may sign op:plain")
    trust.write_text(before)
    assert user.load()[-1] == f"1 {user.url}"
    user.run("key", "revoke", "ci")
    user.refused("was revoked")
    assert not any(line.startswith("1 ") for line in user.load_again()), "nor is what was fetched before loaded"


def test_a_trust_file_with_an_unknown_field_stops_fetching(user):
    trust = user.scratch / "config" / "opforge" / "trust.json"
    document = json.loads(trust.read_text())
    trust.write_text(json.dumps({**document, "allow_everything": True}))
    user.refused("allow_everything")


@pytest.mark.parametrize("part", ["topics", "blobs"])
def test_a_changed_byte_of_an_offer_or_a_library_is_refused(user, part):
    for path in user.files(part):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.chmod(0o644)
        path.write_bytes(content)
    assert user.files(part)
    user.refused("signature", "digest", "damaged", "SHA-256", "is not", "cannot")


def test_a_signed_offer_of_another_op_is_not_taken_in_its_place(user):
    """The file of one op's offers is put in place of the other's, signatures and all."""
    (offers,) = user.files("topics/op")
    (user.folder / "other.cpp").write_text(sample_ops.PLAIN_SOURCE.replace("return VALUE", "return 666"))
    with (user.folder / "plain_ops.py").open("a") as file:
        file.write('class Other(Plain):\n    name, sources = "other", [FOLDER + "/other.cpp"]\n')
    child_processes.run_python("from plain_ops import Other; Other().build()", env=user.variables)
    user.run("publish", user.url, "other")
    (others,) = (path for path in user.files("topics/op") if path != offers)
    shutil.copy(others, offers)
    user.refused("other")


def test_what_its_signer_has_withdrawn_is_refused_and_no_longer_loaded(user):
    assert user.load()[-1] == f"1 {user.url}"
    key = next(path.name for path in (user.scratch / "node" / "store" / "v2" / "entries").iterdir())
    user.run("withdraw", user.url, key, "--stop-loading", "--reason", "wrong")
    user.refused("withdrawn")
    state = user.scratch / "node" / "caches"
    shutil.rmtree(state, ignore_errors=True)
    assert not any(line.startswith("1 ") for line in user.load_again())


def test_a_bad_answer_costs_a_warning_and_the_op_is_built(user):
    def answer(_request, _number):
        return scripted.response(body=b"<html>" + b"x" * 100_000)

    with servers.without_proxies(), scripted.serve(answer) as server:
        *warnings, result = user.load(server.url, PATH=os.environ["PATH"])
    assert result == "1 built"
    assert [line for line in warnings if line.startswith("WARNING")] and "Traceback" not in "\n".join(warnings)


def test_an_endless_answer_is_cut(user):
    def answer(_request, _number):
        def parts():
            yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
            while True:
                yield chunk

        return parts()

    with servers.without_proxies(), scripted.serve(answer) as server:
        assert user.load(server.url, PATH=os.environ["PATH"])[-1] == "1 built"


def test_unsigned_offers_are_for_folders_and_this_machine_and_only_from_the_users_settings(user):
    (user.scratch / "config" / "opforge" / "trust.json").unlink()
    assert user.load(f"{user.url}?unsigned=1")[-1].startswith("1 ")
    lines = user.load("https://example.invalid/store?unsigned=1")
    assert "unsigned" in "\n".join(lines) and not any(line.startswith("1 ") for line in lines)


def test_report_and_config_show_this_machine_and_no_secret_key(user):
    (secret,) = (path for path in (user.scratch / "config" / "opforge").rglob("*") if "ci" in path.name)
    assert secret.stat().st_mode & 0o077 == 0
    text = secret.read_text().strip()
    report, settings = user.run("report"), user.run("config")
    assert report["compilers"] and report["accelerators"]["in_use"]["name"]
    shown = json.dumps([user.run("key", "list"), report, settings])
    assert "OPFORGE_CACHE_DIR" in shown
    assert text.partition(":")[2][8:40] not in shown
    secret.chmod(0o644)
    done = child_processes.run_command("publish", user.url, "plain", **user.variables)
    assert done.returncode == 1 and "mode 644: expected a file of your own with mode 600" in done.stderr
