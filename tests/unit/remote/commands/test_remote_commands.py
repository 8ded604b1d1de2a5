"""`opforge key`, `publish`, `ls`, `verify`, `mirror`, `gc`: from a new key to a verified store; no output holds it."""

from __future__ import annotations

import json

from support.child_processes import run_command
from support.remote.nodes import Nodes

from opforge.remote.signatures import keys, signing


class TestCommands:
    """The commands, in processes of their own."""

    def run(self, *arguments, code=0, **env):
        done = run_command(*arguments, "--json", **env)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def test_from_a_new_key_to_a_verified_remote(self, nodes: Nodes, builder, built_entry, monkeypatch):
        monkeypatch.setenv("OPFORGE_CACHE_DIR", str(nodes.folder / "builder"))
        (nodes.folder / "second").mkdir()
        url = f"file://{nodes.folder}/second"
        public = self.run("key", "new", "lab")["public"]
        assert self.run("key", "trust", public, "--for", "op:pl*", "--until", "2099-01-01")["trusted"]["key"] == public
        listed = self.run("key", "list")
        assert [key["scopes"] for key in listed["trusted"]] == [["op:*", "package:*/*"], ["op:pl*"]]
        assert [key["name"] for key in listed["secret"]] == ["ci", "lab"]
        assert listed["secret"][1]["public"] == public
        (pushed,) = self.run("publish", url, "plain", "--key", "lab")["ops"]
        assert pushed["is_new"] and pushed["label"] == built_entry.key
        (offer,) = self.run("ls", url)
        assert (offer["kind"], offer["name"], offer["signers"], offer["problem"]) == ("op", "plain", ["lab"], "")
        assert self.run("verify", url) == {"checked": 1, "refused": []}
        assert self.run("mirror", url, nodes.url)["copied"][0]["statements"] == 1
        assert self.run("gc", url) == {"removed": [], "dry_run": False}
        withdrawn = self.run("withdraw", url, built_entry.key, "--stop-loading", "--key", "lab")["withdrawn"]
        assert withdrawn == {f"op:{built_entry.key}": {"stops": "loading", "reason": ""}}
        assert self.run("key", "revoke", "lab")["revoked"]["revoked"]
        (refused,) = self.run("verify", url, code=1)["refused"]
        assert "the key lab was revoked" in refused["problem"]

    def test_wrong_usage_says_what_was_expected(self, nodes):
        for arguments, text in (
            (("ls", "/shared"), "expected a URL"),
            (("key", "trust", "nonsense"), "is not a public key: expected name:base64"),
            (("key", "revoke", "nobody"), "is not a key in"),
            (("key", "trust", str(nodes.public), "--until", "soon"), ": expected a day such as"),
            (("fetch", "--remote", "nonsense"), "expected a URL"),
        ):
            done = run_command(*arguments)
            assert done.returncode in (1, 2)
            assert done.stderr.splitlines()[-1].startswith("error:") or "error:" in done.stderr
            assert text in done.stderr

    def test_a_remote_that_does_not_exist_is_one_error(self, nodes):
        done = run_command("ls", "file:///no/such/folder")
        assert done.returncode == 1
        assert done.stderr.startswith("error: file:///no/such/folder")

    def test_a_key_never_comes_to_light(self, nodes, built_entry, monkeypatch):
        monkeypatch.setenv("OPFORGE_CACHE_DIR", str(nodes.folder / "builder"))
        secret = signing.new_secret("hidden")
        log = nodes.folder / "log"
        done = run_command(
            "publish", nodes.url, "--all", OPFORGE_SIGNING_KEY=str(secret), OPFORGE_LOG=str(log), OPFORGE_REMOTES=None
        )
        assert done.returncode == 0, done.stderr
        shown = done.stdout + done.stderr + log.read_text()
        assert str(secret).partition(":")[2][:20] not in shown
        assert keys.names() == ["ci"]
