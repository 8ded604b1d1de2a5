"""A registry in a folder, with a key that is trusted, and packages without a library, which need no compiler."""

from __future__ import annotations

import os
from typing import Any

from support.kernels.projects import python_project

from opforge.foundation import settings
from opforge.packages.form import version
from opforge.packages.installed.layout import Root
from opforge.packages.pack.run import Options, pack
from opforge.packages.registry import install_release, publish, selection
from opforge.packages.sources import reading
from opforge.remote.signatures import keys, trust_file
from opforge.remote.stores import open_store

QUICK = Options(tried=False)


class Registry:
    """A folder with packages, a key, and a root to install into."""

    def __init__(self, folder: Any) -> None:
        """Makes it in `folder`. XDG_CONFIG_HOME must be the test's own."""
        self.scratch = folder
        self.path = folder / "registry"
        self.path.mkdir()
        self.url = f"file://{self.path}"
        self.store = open_store(self.url)
        self.root = Root(str(folder / "installed"), "folder")
        self.key = keys.create("ci")
        self.trust("acme/*")
        self._count = 0

    def trust(self, *names: str) -> None:
        """Trusts the registry's key for packages of these names alone."""
        scopes = tuple(f"package:{name}" for name in names)
        trust_file.write(
            trust_file.Trust(settings.trust_file(), (trust_file.TrustedKey(self.key, scopes),) if scopes else ())
        )

    def packed(
        self, name: str = "acme/plain", number: str = "1", text: str = "VALUE = 1\n", depends: Any = None
    ) -> str:
        """Packs a package without a library and returns its folder."""
        self._count += 1
        folder = self.scratch / f"project-{self._count}"
        python_project(folder, name, number, text)
        if depends:
            lines = "".join(f'"{needed}" = "{numbers}"\n' for needed, numbers in depends.items())
            with (folder / "kernel.toml").open("a") as file:
                file.write(f"[depends]\n{lines}")
        pack(reading.read(str(folder)), str(folder), QUICK)
        return str(folder)

    def publish(self, name: str = "acme/plain", number: str = "1", **more: Any) -> publish.Published:
        """Packs and publishes a package."""
        return publish.publish(self.store, self.packed(name, number, **more), keys.signer("ci"))

    def sources(self) -> list[selection.Source]:
        """Returns this registry as what is asked."""
        return selection.sources([self.url])

    def install(self, name: str = "acme/plain", numbers: Any = None, **more: Any) -> Any:
        """Installs a package; returns the installed release."""
        choice = selection.choose(name, version.parse_range(numbers), self.sources(), **more)
        return install_release.install_release(self.root, choice)[0]

    def files(self) -> list[str]:
        """Returns the paths of all files in the folder of the registry, sorted."""
        paths = [os.path.join(parent, name) for parent, _folders, names in os.walk(self.path) for name in names]
        return sorted(os.path.relpath(path, self.path) for path in paths)

    def content(self, name: str) -> bytes:
        """Returns the bytes of a file of the registry."""
        with open(os.path.join(self.path, name), "rb") as file:
            return file.read()

    def replace(self, name: str, data: bytes) -> None:
        """Puts other bytes into the place of a file of the registry, as whoever can write there may do."""
        path = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):
            os.chmod(path, 0o644)
        with open(path, "wb") as file:
            file.write(data)
