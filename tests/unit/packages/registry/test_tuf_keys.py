"""The keys of a registry with TUF metadata: they are replaced by those who have them, and by nobody else."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from opforge.cli import group
from opforge.errors import PublishError, SignatureError, TrustFileError
from opforge.remote.signatures import keys
from opforge.remote.stores import open_store
from opforge.remote.tuf import FOLDER, TIMESTAMP, client, roots

metadata = pytest.importorskip("opforge.remote.tuf.metadata", reason="needs pip install 'opforge[tuf]'")
rotation = pytest.importorskip("opforge.remote.tuf.rotation")
REFUSED = "its TUF metadata is refused"

BARE_ROOT = b'{"signed": {"_type": "root", "version": 1, "keys": {}, "roles": {"root": {"keyids": []}}}}'
"""It names no keys: it is trusted, and vouches for nothing."""


def trusted(registry):
    return roots.of_store(registry.store)


def test_keys_are_replaced_and_those_who_trust_the_first_root_follow(tuf, key_pairs):
    tuf.publish(number="1")
    new = key_pairs.pairs("root2", "root3")
    data = rotation.rotate(tuf.store, trusted(tuf), [keys.signer("root")], new, 2, key_pairs.pairs("ci2"))
    assert str(tuf.install().version) == "1", "by the root that was trusted first"
    with pytest.raises(SignatureError, match=r"the key ci may not sign it.*Sign with one of: ci2"):
        metadata.refresh(tuf.store, trusted(tuf), keys.signer("ci"))
    metadata.refresh(tuf.store, trusted(tuf), keys.signer("ci2"))
    roots.trust(tuf.url, data)
    assert str(tuf.install().version) == "1", "and by the new one alone"


def test_too_few_or_foreign_root_keys_cannot_replace_keys(tuf, key_pairs):
    new = key_pairs.pairs("mallory")
    arguments = (new, 1, new)
    with pytest.raises(SignatureError, match="the key mallory may not sign it"):
        rotation.rotate(tuf.store, trusted(tuf), [keys.signer("mallory")], *arguments)
    with pytest.raises(SignatureError, match="too few root keys have signed"):
        rotation.rotate(tuf.store, trusted(tuf), [], *arguments)
    assert not os.path.exists(tuf.path / FOLDER / "2.root.json")


def test_a_root_that_its_present_keys_did_not_sign_is_refused(tuf, key_pairs):
    tuf.publish()
    foreign = metadata.new_root(2, key_pairs.pairs("mallory"), 1, [key_pairs.public("mallory")])
    metadata.sign(foreign, keys.signer("mallory"), metadata.keys_of(foreign.signed, "root"))
    tuf.replace(f"{FOLDER}/2.root.json", foreign.to_bytes())
    with pytest.raises(SignatureError, match=f"{REFUSED}.*root was signed by"):
        tuf.install()
    with pytest.raises(SignatureError, match=REFUSED):
        metadata.refresh(tuf.store, trusted(tuf), keys.signer("ci"))


def test_one_who_was_killed_between_root_and_timestamp_can_repeat_it(tuf, key_pairs, monkeypatch):
    tuf.publish()
    arguments = (key_pairs.pairs("root2"), 1, key_pairs.pairs("ci2"))

    def killed(*_arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(rotation.State, "renew", killed)
        rotation.rotate(tuf.store, trusted(tuf), [keys.signer("root")], *arguments)
    rotation.rotate(tuf.store, trusted(tuf), [keys.signer("root2")], *arguments)
    assert str(tuf.install().version) == "1"


def test_a_root_that_others_can_replace_is_not_trusted(tuf):
    os.chmod(trusted(tuf).folder, 0o777)
    with pytest.raises(Exception, match=r"The trust file .*trusted-root\.json cannot be used"):
        tuf.install()


@pytest.mark.parametrize("text", ["", "{}", '{"signed": {"_type": "timestamp"}}', "[1]"])
def test_a_file_that_is_no_root_is_not_trusted(registry, text):
    with pytest.raises(Exception, match=r"The trust file .* cannot be used"):
        roots.trust(registry.url, text.encode())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"signed": {"_type": "snapshot"}}'])
def test_a_trusted_root_that_was_damaged_here_is_not_the_registrys_fault(tuf, text):
    with open(os.path.join(trusted(tuf).folder, roots.FILE), "w") as file:
        file.write(text)
    for action in (tuf.publish, tuf.install):
        with pytest.raises(TrustFileError, match=r"trusted-root\.json cannot be used: .* Trust the registry's root"):
            action()


def test_a_trusted_root_that_is_incomplete_is_an_error_of_publishing(tuf):
    roots.trust(tuf.url, BARE_ROOT)
    with pytest.raises(SignatureError, match="its root metadata, which you trust, cannot be read"):
        tuf.publish()


def test_without_a_file_to_write_nothing_is_begun(registry, key_pairs, tmp_path):
    for name in ("root", "ci"):
        key_pairs.public(name)
    words = ["tuf", "init", registry.url, "--root-key", "root", "--key", "ci", "--out", str(tmp_path / "no" / "x.json")]
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 2 and "cannot be written: expected a file in a folder of yours" in done.output
    assert registry.files() == []


def test_metadata_cannot_be_begun_twice_or_by_too_few_keys(tuf, key_pairs):
    with pytest.raises(PublishError, match="it has one already"):
        metadata.begin(tuf.store, key_pairs.pairs("root"), 1, key_pairs.pairs("ci"))
    with pytest.raises(ValueError, match="3 of 1 root keys cannot sign"):
        metadata.new_root(1, key_pairs.pairs("root"), 3, [key_pairs.public("ci")])


def test_one_who_was_killed_while_it_was_begun_can_repeat_it(registry, key_pairs, monkeypatch):
    put = type(registry.store).put_if_absent

    def killed(store, name, data):
        if name == TIMESTAMP:
            raise KeyboardInterrupt
        return put(store, name, data)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(registry.store), "put_if_absent", killed)
        metadata.begin(registry.store, key_pairs.pairs("root"), 1, key_pairs.pairs("ci"))
    with pytest.raises(PublishError, match="it has one already"):
        metadata.begin(registry.store, key_pairs.pairs("root"), 1, key_pairs.pairs("ci2"))
    roots.trust(registry.url, metadata.begin(registry.store, key_pairs.pairs("root"), 1, key_pairs.pairs("ci")))
    registry.publish(number="1")
    assert str(registry.install().version) == "1"


def test_trusting_another_root_never_leaves_the_registry_unprotected(tuf, monkeypatch):
    def killed(_folder):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(roots, "_forget", killed)
        roots.trust(tuf.url, trusted(tuf).data)
    assert trusted(tuf) is not None


def test_what_cannot_be_kept_of_a_registry_is_no_attack(tuf):
    tuf.publish()
    os.unlink(os.path.join(trusted(tuf).folder, "timestamp.json"))
    os.makedirs(os.path.join(trusted(tuf).folder, "timestamp.json", "x"))
    with pytest.raises(TrustFileError, match="its folder cannot be written"):
        tuf.install()


class Clients:
    """Processes that read an index again and again, each time as a new user who trusts the first root."""

    def __init__(self, tuf, folder, processes=1, users=""):
        self._folder, self._pids = folder, []
        self._stop = folder / "stop"
        for number in range(processes):
            pid = os.fork()
            if pid == 0:
                self._poll(tuf.url, trusted(tuf), f"{folder}/{users or number}", folder / f"{number}.log")
            self._pids.append(pid)

    def _poll(self, url, root, config, log):
        lines, store = [], open_store(url)
        try:
            while not self._stop.exists() or len(lines) < 3:
                os.environ["XDG_CONFIG_HOME"] = config if "shared" in config else f"{config}-{len(lines)}"
                try:
                    if roots.by_url(url) is None:
                        roots.trust(url, root.data)
                    reader = client.Reader(store, roots.by_url(url))
                    lines.append("read" if reader.listing("package", "acme/plain") else "none")
                except Exception as error:
                    lines.append(f"{type(error).__name__}: {error}")
        finally:
            log.write_text("\n".join(lines))
            os._exit(0)

    def stop(self):
        """Returns what became of each look."""
        self._stop.touch()
        for pid in self._pids:
            os.waitpid(pid, 0)
        texts = [(self._folder / f"{number}.log").read_text() for number in range(len(self._pids))]
        return [line for text in texts for line in text.splitlines()]


def test_nobody_is_refused_while_the_key_that_publishes_is_replaced(tuf, key_pairs, tmp_path):
    tuf.publish(number="1")
    (tmp_path / "clients").mkdir()
    clients = Clients(tuf, tmp_path / "clients")
    root = ([keys.signer("root")], key_pairs.pairs("root"), 1)
    for number in range(10):
        old, new = f"ci{number or ''}", f"ci{number + 1}"
        rotation.rotate(tuf.store, trusted(tuf), *root, key_pairs.pairs(old, new))
        metadata.refresh(tuf.store, trusted(tuf), keys.signer(new))
        metadata.refresh(tuf.store, trusted(tuf), keys.signer(old))
        rotation.rotate(tuf.store, trusted(tuf), *root, key_pairs.pairs(new))
        with pytest.raises(SignatureError, match="may not sign it"):
            metadata.refresh(tuf.store, trusted(tuf), keys.signer(old))
    lines = clients.stop()
    assert {*lines} == {"read"} and len(lines) > 2, lines


def test_what_the_old_key_signs_during_the_replacement_is_signed_again(tuf, key_pairs, monkeypatch):
    tuf.publish(number="1")
    root = ([keys.signer("root")], key_pairs.pairs("root"), 1)
    rotation.rotate(tuf.store, trusted(tuf), *root, key_pairs.pairs("ci", "ci2"))
    put = type(tuf.store).put_if_absent

    def late(store, name, data):
        if name.endswith("3.root.json"):
            metadata.refresh(tuf.store, trusted(tuf), keys.signer("ci"))
            with pytest.raises(SignatureError, match=r"the key ci may not sign it.*Sign with one of: ci2"):
                tuf.publish(number="2", text="VALUE = 2\n")
        return put(store, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(type(tuf.store), "put_if_absent", late)
        rotation.rotate(tuf.store, trusted(tuf), *root, key_pairs.pairs("ci2"))
    assert str(tuf.install().version) == "1"


def test_a_key_that_may_not_publish_is_refused_before_anything_is_stored(tuf, key_pairs):
    tuf.publish(number="1")
    rotation.rotate(tuf.store, trusted(tuf), [keys.signer("root")], key_pairs.pairs("root"), 1, key_pairs.pairs("ci2"))
    before = {name: tuf.content(name) for name in tuf.files()}
    with pytest.raises(SignatureError, match=r"the key ci may not sign it.*Sign with one of: ci2"):
        tuf.publish(number="2", text="VALUE = 2\n")
    assert {name: tuf.content(name) for name in tuf.files()} == before


def test_many_processes_of_one_user_read_at_once(tuf, tmp_path):
    tuf.publish(number="1")
    (tmp_path / "clients").mkdir()
    lines = Clients(tuf, tmp_path / "clients", processes=8, users="shared").stop()
    assert {*lines} == {"read"} and len(lines) >= 24, lines


def test_renewing_the_root_forgets_nothing_that_was_seen(tuf, tmp_path):
    tuf.publish(number="1")
    earlier = tuf.content(TIMESTAMP)
    tuf.publish(number="2", text="VALUE = 2\n")
    words = ["--old-root-key", "root", "--root-key", "root", "--key", "ci", "--out", str(tmp_path / "root.json")]
    assert CliRunner().invoke(group, ["tuf", "rotate", tuf.url, *words], catch_exceptions=False).exit_code == 0
    tuf.replace(TIMESTAMP, earlier)
    with pytest.raises(SignatureError, match=r"its timestamp is version 2, and version \d was seen before"):
        tuf.publish(number="3", text="VALUE = 3\n")
    with pytest.raises(SignatureError, match=REFUSED):
        tuf.install()


def test_a_registry_in_a_folder_is_protected_with_and_without_a_host(tuf):
    tuf.publish()
    assert roots.by_url(tuf.url.replace("file://", "file://localhost")) == trusted(tuf)


@pytest.mark.parametrize(
    "url",
    [
        "https://kernels.example/ops/",
        "https://KERNELS.example/ops",
        "HTTPS://kernels.example:443/ops",
        "https://kernels.example//ops",
        "https://kernels.example/x/../ops",
        "https://kernels.example/%6fps",
    ],
)
def test_a_registry_is_protected_however_its_url_is_spelled(url, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    roots.trust("https://kernels.example/ops", BARE_ROOT)
    assert roots.by_url(url) is not None
    for other in ("http://kernels.example/ops", "https://kernels.example:8443/ops", "https://kernels.example/opsx"):
        assert roots.by_url(other) is None


def test_one_who_renews_the_timestamp_at_the_same_time_is_no_attack(tuf, monkeypatch):
    """Another process of this user signs a newer one right after this one was read."""
    state = pytest.importorskip("opforge.remote.tuf.state")
    load = state.State.load

    def slower(self, kind, file, *arguments, **more):
        loaded = load(self, kind, file, *arguments, **more)
        if file == "timestamp.json":
            monkeypatch.setattr(state.State, "load", load)
            metadata.refresh(tuf.store, trusted(tuf), keys.signer("ci"))
        return loaded

    monkeypatch.setattr(state.State, "load", slower)
    tuf.publish(number="1")
    assert str(tuf.install().version) == "1"
