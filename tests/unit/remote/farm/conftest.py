from __future__ import annotations

import os

import pytest


class RemoteOfFarm:
    """A remote in a folder, and a key that signs and is trusted, for processes started with `env`."""

    def __init__(self, folder):
        from opforge.remote.signatures import keys, trust

        self.folder = folder
        os.makedirs(folder / "remote")
        self.url = f"file://{folder}/remote"
        self.env = {"XDG_CONFIG_HOME": str(folder / "config")}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CONFIG_HOME", self.env["XDG_CONFIG_HOME"])
            trust.write(trust.read()._replace(keys=(trust.TrustedKey(keys.create("ci")),)))

    @property
    def asking(self):
        """The environment of who asks."""
        return {**self.env, "OPFORGE_REMOTES": f"{self.url}?push=1"}

    def offers(self):
        """Returns the offers that the remote has."""
        from opforge.remote import maintenance
        from opforge.remote.stores import open_store

        return list(maintenance.offered(open_store(self.url)))

    def claims(self):
        """Returns the claims that the remote has."""
        return [*(self.folder / "remote").rglob("v1/claims/*.json")]


@pytest.fixture(scope="module")
def remote(tmp_path_factory, nothing_of_the_machines):
    return RemoteOfFarm(tmp_path_factory.mktemp("farm-remote"))
