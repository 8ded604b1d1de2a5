from __future__ import annotations

import importlib
import os

import pytest
from support.remote import farm as farms

from opforge.remote.farm import dispatch


class RemoteOfFarm:
    """A remote in a folder, and a key that signs and is trusted, for processes started with `env`."""

    def __init__(self, folder):
        from opforge.remote.signatures import keys, trust_file

        self.folder = folder
        os.makedirs(folder / "remote")
        self.url = f"file://{folder}/remote"
        self.env = {"XDG_CONFIG_HOME": str(folder / "config")}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CONFIG_HOME", self.env["XDG_CONFIG_HOME"])
            trust_file.write(trust_file.read()._replace(keys=(trust_file.TrustedKey(keys.create("ci"), ("op:*",)),)))

    @property
    def asking(self):
        """The environment of who asks."""
        return {**self.env, "OPFORGE_REMOTES": f"{self.url}?push=1"}

    def offers(self):
        """Returns the offers that the remote has."""
        from opforge.remote import contents
        from opforge.remote.stores import open_store

        return list(contents.items(open_store(self.url)))

    def claims(self):
        """Returns the claims that the remote has."""
        return [*(self.folder / "remote").rglob("v1/claims/*.json")]


@pytest.fixture(scope="module")
def remote(tmp_path_factory, nothing_of_the_machines):
    return RemoteOfFarm(tmp_path_factory.mktemp("farm-remote"))


DEADLY = """
import os, signal
class DeadlyBuilder(AlphaBuilder):
    name = "deadly"
    def spec(self):
        if os.environ.get("IN_WORKER"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().spec()
class LeavingBuilder(AlphaBuilder):
    name = "leaving"
    def spec(self):
        if os.environ.get("IN_WORKER"):
            raise SystemExit("it has no licence")
        return super().spec()
"""


@pytest.fixture
def here(remote, monkeypatch):
    """This process asks, and its threads are workers."""
    monkeypatch.setenv("XDG_CONFIG_HOME", remote.env["XDG_CONFIG_HOME"])
    monkeypatch.setenv("OPFORGE_REMOTES", f"{remote.url}?push=1")
    monkeypatch.setattr(dispatch, "PAUSE_SECONDS", 0.01)


@pytest.fixture
def ops(here, tmp_path, monkeypatch, request):
    """Returns (the module of three plain ops, their builders)."""
    module = f"executor_ops_{abs(hash(request.node.name))}"
    farms.ops_module(tmp_path / "ops", ["alpha", "beta", "gamma"], f"// {module}\n", module)
    with open(tmp_path / "ops" / f"{module}.py", "a") as file:
        file.write(DEADLY)
    monkeypatch.chdir(tmp_path / "ops")
    monkeypatch.syspath_prepend(str(tmp_path / "ops"))
    importlib.invalidate_caches()
    loaded = importlib.import_module(module)
    return loaded, [loaded.AlphaBuilder(), loaded.BetaBuilder(), loaded.GammaBuilder()]
