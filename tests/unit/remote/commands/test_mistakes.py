"""Mistakes in commands about remotes: one error that says what to do, and nothing left behind."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner
from support.remote import farm as farms
from support.remote import servers
from support.remote.scripted import response, serve

from opforge.cli import publish
from opforge.cli.prebuild import command
from opforge.cli.remote import fetch, keys, mirror
from opforge.remote.op_statements import OP
from opforge.remote.signatures import keys as own_keys
from opforge.remote.signatures import signing

EXECUTORS = """
def broken():
    1 / 0

def wrong():
    return "no executor"

raising = 3
"""
DEAD = "http://127.0.0.1:9/ops"
"""Nothing listens there."""


def run(function, *arguments, code=1):
    """Runs a command; returns what it printed. Its exit code must be `code`."""
    done = CliRunner().invoke(function, list(arguments))
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture(autouse=True)
def no_proxies():
    with servers.without_proxies():
        yield


class TestKeys:
    @pytest.mark.parametrize("damage", ["", "cut", "longer"])
    @pytest.mark.parametrize("place", ["typed", "in a file"])
    def test_a_secret_key_that_is_typed_by_mistake_is_not_repeated(self, nodes, tmp_path, place, damage):
        text = str(own_keys.read("ci"))
        typed = {"": text, "cut": text[:-20], "longer": text + "AAAA"}[damage]
        if place == "in a file":
            (tmp_path / "key").write_text(typed)
            typed = str(tmp_path / "key")
        shown = run(keys.group, "trust", typed, code=2)
        assert text.partition(":")[2][:6] not in shown
        if not damage:
            assert "is a secret key" in shown and "opforge key list" in shown
        else:
            assert "is not a public key: expected name:base64" in shown

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            (("--for", "op:*", "--until", "2020-01-01"), "--until '2020-01-01' has passed: expected today or a later"),
            ((), f"--for is missing: {keys.FORMS}"),
            (("--for", ""), f"--for '': {keys.FORMS}"),
            (("--for", "op:*", "--for", "acme/*"), "--for 'acme/*': expected what the"),
            (
                ("--for", "triton:*"),
                "; in place of triton:NAME jit:triton/LABEL for kernels, and jit:triton-host/LABEL for",
            ),
        ],
    )
    def test_a_key_that_could_sign_nothing_is_not_trusted(self, nodes, options, problem):
        before = (nodes.folder / "config" / "opforge" / "trust.json").read_bytes()
        assert problem in " ".join(run(keys.group, "trust", str(nodes.public), *options, code=2).split())
        assert (nodes.folder / "config" / "opforge" / "trust.json").read_bytes() == before

    def test_keys_of_one_name_can_be_told_apart(self, nodes):
        other = signing.public_of(signing.new_secret("ci"))
        shown = run(keys.group, "trust", str(other), "--for", "op:*", code=0)
        assert f"note: another key of the name ci is trusted too: {nodes.public}" in shown
        listed = run(keys.group, "list", code=0)
        assert str(other) in listed and str(nodes.public) in listed.partition("note: your own")[0]

    def test_a_revoked_key_is_not_trusted_again_without_a_word(self, nodes):
        run(keys.group, "revoke", "ci", code=0)
        shown = run(keys.group, "trust", str(nodes.public), "--for", "op:*", code=0)
        assert "note: this key was revoked on " in shown

    def test_what_a_key_may_no_longer_sign_is_said(self, nodes):
        public = str(nodes.public)
        run(keys.group, "trust", public, "--for", "op:*", "--for", "tuned:*", code=0)
        shown = run(keys.group, "trust", public, "--for", "jit:inductor/encoder", "--for", "op:*", code=0)
        assert "note: this key may no longer sign tuned:*: one command names all, each by --for" in shown

    def test_the_name_of_a_key_is_no_path(self, nodes):
        shown = run(publish.command, nodes.url, "--all", "--key", "../../ci")
        assert "key name='../../ci' cannot be used" in shown


class TestPush:
    def test_a_path_is_no_url_and_the_url_is_named(self, nodes):
        assert "expected a URL: write file:///shared/ops." in run(publish.command, "/shared/ops", "--all", code=2)

    def test_of_several_keys_one_must_be_named(self, nodes, built_entry):
        nodes.enter("builder")
        own_keys.create("lab")
        shown = " ".join(run(publish.command, nodes.url, "--all").split())
        assert shown.startswith(
            f"error: 2 secret keys are in {own_keys.folder()}, and none is chosen to sign: ci, lab."
            " Name it with --key, such as --key ci."
        )
        assert f'OPFORGE_SIGNING_KEY="$(cat {own_keys.path_of("ci")})"' in shown
        assert "1 entry published" in run(publish.command, nodes.url, "--all", "--key", "lab", code=0)

    def test_a_server_that_is_away_is_one_error(self, nodes, built_entry):
        nodes.enter("builder")
        shown = run(publish.command, DEAD, "--all")
        assert shown.count("Connection refused") == 1 and shown.startswith("error: ")

    def test_a_command_that_does_not_sign_is_one_error(self, nodes, built_entry, monkeypatch):
        nodes.enter("builder")
        monkeypatch.setenv("OPFORGE_SIGNING_COMMAND", "false")
        before = sorted((nodes.folder / "remote").rglob("*"))
        shown = run(publish.command, nodes.url, "--all")
        assert shown.count("did not sign: it ended with exit code 1. Expected") == 1 and shown.startswith("error: ")
        assert sorted((nodes.folder / "remote").rglob("*")) == before

    def test_an_empty_cache_is_published_to_a_folder_that_is_there(self, nodes):
        nodes.enter("empty")
        assert "0 entries published" in run(publish.command, nodes.url, "--all", code=0)
        assert os.listdir(nodes.folder / "remote" / "v1" / "withdrawals") == ["ci.json"]
        assert "the folder does not exist" in run(publish.command, "file:///no/such/folder", "--all")


class TestFetch:
    def test_a_remote_that_fails_is_asked_once(self, nodes, tmp_path, monkeypatch):
        nodes.enter("node")
        ops = farms.ops_module(tmp_path, ["first", "second"], module="typed_ops")
        monkeypatch.chdir(tmp_path)
        with serve(lambda *_request: response("500 Internal Server Error")) as script:
            shown = run(fetch.command, "--remote", script.url, *ops)
        assert len(script.requests) == 3  # its tries for the list of withdrawals
        assert [line for line in shown.splitlines() if "missing" in line] == [
            f"missing {op} for {line.rpartition(' ')[2]}" for op, line in zip(ops, shown.splitlines()[::2], strict=True)
        ]
        first, second = shown.splitlines()[1::2]
        assert first == second and "500 Internal Server Error (tried 3" in first
        assert first.startswith(f"  {script.url}: it is not asked again: get v1/withdrawals/ci.json failed")

    def test_an_offer_that_is_rejected_names_the_op_once(self, nodes, builder, entry, caplog):
        nodes.trust(signing.public_of(signing.new_secret("lab")))
        nodes.fetch(builder)
        assert f"plain: an offer of {nodes.url} is rejected: the key ci is not" in caplog.text
        assert "plain: plain:" not in caplog.text

    def test_a_remote_that_is_no_url_is_wrong_usage(self, nodes):
        assert "expected a URL such as https" in run(fetch.command, "--remote", "nonsense", code=2)


class TestBuildOps:
    @pytest.fixture
    def op(self, nodes, tmp_path, monkeypatch):
        nodes.enter("asking")
        monkeypatch.setenv("OPFORGE_REMOTES", f"{nodes.url}?push=1")
        (name,) = farms.ops_module(tmp_path, ["typed"], "// typed\n", "typed_builders")
        (tmp_path / "typed_executors.py").write_text(EXECUTORS)
        monkeypatch.chdir(tmp_path)
        return name

    @pytest.mark.parametrize(
        ("engine", "problem"),
        [
            ("", "--on='' cannot be used: expected the URL of a Dask scheduler"),
            ("tcp://127.0.0.1", "--on='tcp://127.0.0.1' cannot be used: expected the URL of a Dask scheduler"),
            ("tcp://127.0.0.1:99999", "--on='tcp://127.0.0.1:99999' cannot be used"),
            ("tcp://:8786", "--on='tcp://:8786' cannot be used"),
            ("typed_executors:broken", "typed_executors:broken: it made no executor: ZeroDivisionError: division by"),
            ("typed_executors:wrong", "typed_executors:wrong: it made a str, which has no submit()"),
            ("typed_executors:raising", "--on='typed_executors:raising' cannot be used"),
            ("no_such_executors:make", "(No module named 'no_such_executors')"),
        ],
    )
    def test_what_is_no_engine(self, op, nodes, engine, problem):
        shown = run(command.command, op, "--on", engine)
        assert shown.startswith("error: ") and problem in shown
        assert not list(nodes.store.list(""))

    def test_a_module_that_fails_is_no_engine(self, op, tmp_path):
        (tmp_path / "typed_failing.py").write_text("1 / 0")
        assert "(ZeroDivisionError: division by zero)" in run(command.command, op, "--on", "typed_failing:make")

    def test_no_scheduler_is_asked_if_the_network_is_forbidden(self, op, monkeypatch):
        monkeypatch.setenv("OPFORGE_OFFLINE", "1")
        shown = run(command.command, op, "--on", "tcp://127.0.0.1:9")
        assert "tcp://127.0.0.1:9: OPFORGE_OFFLINE=1 forbids the network. Unset it" in shown

    def test_a_report_that_cannot_be_written_stops_the_run_before_a_build(self, op, nodes):
        shown = run(command.command, op, "--report", "/no/such/folder/report.json", code=2)
        assert "--report '/no/such/folder/report.json': there is no folder '/no/such/folder'" in shown
        assert not list(nodes.store.list(""))

    def test_a_share_without_an_op_says_so(self, op):
        shown = run(command.command, op, "--shard", "2/2", code=0)
        assert shown == "shard 2/2 has no op: nothing to build\n"


class TestMirror:
    def test_a_name_that_nothing_has_is_an_error(self, nodes, entry, tmp_path):
        (tmp_path / "to").mkdir()
        shown = run(mirror.command, nodes.url, f"file://{tmp_path}/to", "plain", "plian")
        assert "1 statement copied" in shown
        assert f"error: {nodes.url} does not offer 'plian'. It offers: plain" in shown
        assert (tmp_path / "to" / OP.topic_file(entry.record["description"])).exists()
        shown = run(mirror.command, nodes.url, f"file://{tmp_path}/to", "plian", "--json")
        assert json.loads(shown)["problems"] == [f"{nodes.url} does not offer 'plian'. It offers: plain"]
