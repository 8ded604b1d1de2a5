"""What `opforge inspect --env` says of extensions of torch, compared with torch-abi-audit."""

from pathlib import Path

from support.sample_extensions import SAMPLES, install
from torch_abi_audit import torch_versions
from torch_abi_audit.inspect import inspect_extension

from opforge.builders.declaration.machine import torch_folder
from opforge.builders.inspection import shims
from opforge.foundation.versions import version_of
from opforge.packages.audit import environment


def test_each_library_is_judged_as_torch_abi_audit_judges_it(tmp_path: Path) -> None:
    for name, libraries in SAMPLES.items():
        install(tmp_path, name, libraries)
    ours = {one.path: one for one in environment.extensions(str(tmp_path))}
    for path in tmp_path.rglob("*.so"):
        theirs, found = inspect_extension(path), ours.get(str(path.relative_to(tmp_path)))
        assert theirs.torch.uses_torch == (found is not None), path
        if found is not None:
            assert theirs.torch.stable == bool(found.torch), path
            is_any_python = found.python == "any" or (not theirs.cpython.violations and not found.bound_to_python)
            assert is_any_python or ".cpython-" in path.name or theirs.cpython.violations, path


def test_each_function_of_torchs_c_interface_has_the_version_that_torch_abi_audit_gives_it() -> None:
    for name, version in shims.versions(torch_folder() or "").items():
        theirs = torch_versions.minimum_version([name])[0]
        assert theirs is None or version_of(torch_versions.format_version(theirs))[:2] == version_of(version), name
