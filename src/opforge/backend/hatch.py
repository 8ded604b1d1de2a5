"""A build hook of hatchling: puts a project's ops into the wheel.

[build-system]
requires = ["hatchling", "opforge", "torch>=2.10"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel.hooks.opforge]

[tool.opforge]
ops = ["my_package.ops:MyBuilder"]
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

from opforge.builders.wheel_tag import Tag, combined
from opforge.cache.layout import PACKAGE_LAYER
from opforge.errors import BuilderError

from .project import WHO, build_layers, ops_of, read_table, write_variants


class OpsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the ops before the wheel is written."""

    PLUGIN_NAME = "opforge"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds the ops into a temporary folder, and has hatchling take them from there.

        An editable install builds them when they are loaded.
        """
        self._remove: Callable[[], object] | None = None
        if self.target_name != "wheel" or version == "editable":
            return
        config = ops_of(read_table(self.root))
        folder = tempfile.mkdtemp(prefix="opforge-hatch-")
        # At the latest when the process ends: after an error, hatchling calls `finalize` no more.
        self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        sources, built = os.path.join(folder, "files"), os.path.join(folder, "built")
        self._copy_included(sources, build_data)
        tag = self._tag(build_data, build_layers(config, sources, built))
        for package in config.by_package():
            build_data["force_include"][os.path.join(built, package, PACKAGE_LAYER)] = f"{package}/{PACKAGE_LAYER}"
        build_data["pure_python"] = False
        build_data["tag"] = f"{tag.python}-{tag.abi}-{tag.platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Writes the wheel's variants, if the project asks for them, and removes the temporary folder."""
        if self._remove:
            self._remove()
            try:
                write_variants(ops_of(read_table(self.root)), artifact_path, os.path.dirname(artifact_path))
            except BaseException:
                os.unlink(artifact_path)  # a wheel that is refused is not left there
                raise

    def _copy_included(self, folder: str, build_data: dict[str, Any]) -> None:
        """Copies the files that the wheel will hold, also those that earlier hooks have made.

        A source that it lacks fails the build.
        """
        with self.build_config.set_build_data(build_data):
            for included in self.build_config.builder.recurse_included_files():
                target = os.path.join(folder, included.distribution_path)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copyfile(included.path, target)

    def _tag(self, build_data: dict[str, Any], ops: Tag) -> Tag:
        """Returns the tag of what earlier hooks have put into the wheel, and of its ops. Raises BuilderError."""
        builder = self.build_config.builder
        inferred = builder.get_best_matching_tag if build_data["infer_tag"] else builder.get_default_tag
        try:
            return combined(Tag(*(build_data.get("tag") or inferred()).split("-")), ops)
        except ValueError as error:
            raise BuilderError(
                WHO, f"the files of other hooks: {error}", "Correct `targets` in [tool.opforge]"
            ) from error


@hookimpl
def hatch_register_build_hook() -> type[OpsHook]:
    """Returns the hook, for hatchling."""
    return OpsHook
