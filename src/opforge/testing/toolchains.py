"""The contract of toolchains: how a compiler is identified, what it refuses, and the results of its builds."""

from __future__ import annotations

import os
import subprocess
from typing import Any
from unittest import mock

from opforge.builders.base import OpBuilder
from opforge.builders.load_op import find
from opforge.builders.planner import make_plan
from opforge.builders.toolchains import find_toolchain
from opforge.builders.toolchains.toolchain import Toolchain
from opforge.cache.current_store import current_store
from opforge.cache.filesystem.disk import Disk
from opforge.errors import ToolchainNotFoundError

from .contract import Contract, skip


class ToolchainContract(Contract):
    """The guarantees of every toolchain, as tests.

    It is tested with the compiler of this machine, and skipped without one::

        class TestAcmecc(ToolchainContract):
            device, other_device = "acme", "cpu"

            def make_toolchain(self):
                return Acme(*self.places())

            def make_builder(self):
                return AcmeScaleBuilder()

    Without `make_builder` nothing is built.
    """

    device: str = ""
    """The device that it builds for."""
    other_device: str = ""
    """A device that it does not build for."""

    def make_toolchain(self) -> Toolchain:
        """Returns a new toolchain. Override it."""
        raise NotImplementedError(f"{type(self).__name__} must override make_toolchain")

    def make_builder(self) -> OpBuilder | None:
        """Returns a new builder of an op that the toolchain builds. None: nothing is built."""
        return None

    def places(self) -> tuple[Any, Disk]:
        """Returns the arguments of a toolchain's class: the store's layout, and the disk."""
        return current_store().layout, Disk()

    def toolchain(self) -> Toolchain:
        """Returns a new toolchain. The test is skipped if its compiler is not installed."""
        try:
            return self.make_toolchain()
        except ToolchainNotFoundError as error:
            skip(str(error))

    def test_its_identity_names_a_version_and_no_path(self) -> None:
        identity = self.toolchain().identity()
        names = [name for name, text in identity if "version" in name and text]
        assert names, f"identity() is {identity}, expected a version: another compiler must lead to another key"
        paths = [(name, text) for name, text in identity if str(text).startswith("/")]
        assert not paths, f"identity() has the paths {paths}: the same compiler in another folder would build again"

    def test_its_identity_repeats(self) -> None:
        first, second = self.toolchain().identity(), self.toolchain().identity()
        assert first == second, (
            f"identity() is {first}, then {second}: with another key each time nothing is ever found"
        )

    def test_its_programs_are_absolute_paths_with_stamps(self) -> None:
        toolchain = self.toolchain()
        toolchain.identity()
        programs = toolchain.programs()
        assert programs, "programs() is empty: a compiler that is replaced would not be noticed"
        for path, stamp in programs.items():
            assert os.path.isabs(path), (
                f"programs() has {path!r}, expected an absolute path: the working folder changes"
            )
            assert stamp, f"programs() has no stamp of {path}: a compiler that is replaced would not be noticed"

    def test_it_refuses_another_device_with_a_reason(self) -> None:
        if not self.other_device:
            skip("other_device is empty")
        problem = self.toolchain().target_problem(self.other_device, ())
        assert problem and self.other_device in problem, (
            f"target_problem({self.other_device!r}) is {problem!r}, expected a reason that names {self.other_device}"
        )

    def test_it_accepts_its_own_device(self) -> None:
        builder = self._builder()
        problem = self.toolchain().target_problem(self.device, builder.target.arch)
        assert problem is None, f"target_problem({self.device!r}, {builder.target.arch}) is {problem!r}, expected None"

    def test_planning_starts_no_process_and_reads_no_content(self) -> None:

        spec = self._builder().spec()
        toolchain = find_toolchain(spec, current_store())

        def refuse(*_arguments: object, **_options: object) -> None:
            raise AssertionError("planning starts a process or reads a file: every look-up of the op would do that")

        with mock.patch.object(subprocess, "Popen", refuse), mock.patch.object(Disk, "digest", refuse):
            plan = make_plan(spec, toolchain)
        assert plan.toolchain, f"the plan of {spec.name} has no toolchain: it would have the key of any compiler"

    def test_what_it_builds_is_found_again(self) -> None:
        builder = self._builder()
        entry = builder.build()
        target = entry.record["target"]
        assert str(target).partition(":")[0] == self.device, f"the record has the target {target}, not {self.device}"
        paths = [text for text in _texts(entry.record) if os.path.isabs(text) and os.path.exists(text)]
        assert not paths, f"the record has the paths {paths}: it would be of no use on another machine"
        again = find(builder.spec()).entry
        assert again is not None and again.key == entry.key, (
            f"after the build the look-up finds {again}, expected {entry.key}: the op would be built at every load"
        )
        read = {os.path.basename(path) for _root, path, *_ in entry.build()["inputs"]["files"]}
        missing = [source for source in builder.spec().sources if os.path.basename(source) not in read]
        assert not missing, f"the build does not list {missing} as read: after an edit the old library would be loaded"

    def _builder(self) -> OpBuilder:
        self.toolchain()
        builder = self.make_builder()
        if builder is None:
            skip("make_builder() returns no builder")
        return builder


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for part in (*value, *value.values()) for text in _texts(part)]
    if isinstance(value, (list, tuple)):
        return [text for part in value for text in _texts(part)]
    return [value] if isinstance(value, str) else []
