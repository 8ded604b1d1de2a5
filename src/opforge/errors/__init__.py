"""Every error that opforge raises. Each message states what failed, what was expected and what to do.

Each file of errors is imported when one of its errors is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from .base import (
        AcceleratorInUseError,
        AcceleratorUnavailableError,
        BuilderError,
        BuildError,
        BuildResourceError,
        CacheDirError,
        CommunicationError,
        KernelLaunchError,
        LayerError,
        LoadError,
        NamespaceClashError,
        OpforgeError,
        OpIncompatibleError,
        OpNotFoundError,
        PrebuiltRequiredError,
        SettingError,
        SourceNotFoundError,
        ToolchainError,
        ToolchainNotFoundError,
        UnknownAcceleratorError,
    )
    from .build import (
        BuildForbiddenError,
        CompiledScopeError,
        CompileError,
        CompileForbiddenError,
        KernelSchemaError,
        LockTimeoutError,
        UnstableInputError,
    )
    from .commands import (
        BenchFileError,
        ConfigFileError,
        InspectionError,
        PortError,
        ProjectError,
        TuningError,
    )
    from .groups import GroupError
    from .kernels import (
        KernelDependencyError,
        KernelFormatError,
        KernelIncompatibleError,
        KernelInstallError,
        KernelLoadError,
        KernelLockError,
        KernelMappingError,
        KernelNotFoundError,
        KernelScopeError,
        PackError,
    )
    from .launch import CoresError, HostfileError, LauncherNotFoundError, LaunchError
    from .packages import DeepSpeedError, ExtraNotInstalledError, HubLoaderError, ProgramError
    from .remote import (
        DamagedListError,
        FarmError,
        KeyFileError,
        PublishError,
        RemoteError,
        SignatureError,
        StoreBehindError,
        StoreError,
        TrustFileError,
        WithdrawnError,
    )

_FILES = {
    "AcceleratorInUseError": "base",
    "AcceleratorUnavailableError": "base",
    "BenchFileError": "commands",
    "BuildError": "base",
    "BuildForbiddenError": "build",
    "BuildResourceError": "base",
    "BuilderError": "base",
    "CacheDirError": "base",
    "CommunicationError": "base",
    "CompileError": "build",
    "CompiledScopeError": "build",
    "CompileForbiddenError": "build",
    "ConfigFileError": "commands",
    "CoresError": "launch",
    "DeepSpeedError": "packages",
    "ProgramError": "packages",
    "ExtraNotInstalledError": "packages",
    "FarmError": "remote",
    "GroupError": "groups",
    "HostfileError": "launch",
    "HubLoaderError": "packages",
    "InspectionError": "commands",
    "KernelDependencyError": "kernels",
    "KernelFormatError": "kernels",
    "KernelIncompatibleError": "kernels",
    "KernelInstallError": "kernels",
    "KernelLaunchError": "base",
    "KernelLoadError": "kernels",
    "KernelLockError": "kernels",
    "KernelMappingError": "kernels",
    "KernelNotFoundError": "kernels",
    "KernelSchemaError": "build",
    "KernelScopeError": "kernels",
    "KeyFileError": "remote",
    "LaunchError": "launch",
    "LauncherNotFoundError": "launch",
    "LayerError": "base",
    "LoadError": "base",
    "LockTimeoutError": "build",
    "NamespaceClashError": "base",
    "OpIncompatibleError": "base",
    "OpNotFoundError": "base",
    "OpforgeError": "base",
    "PackError": "kernels",
    "PortError": "commands",
    "PrebuiltRequiredError": "base",
    "ProjectError": "commands",
    "TuningError": "commands",
    "PublishError": "remote",
    "RemoteError": "remote",
    "SettingError": "base",
    "SignatureError": "remote",
    "SourceNotFoundError": "base",
    "DamagedListError": "remote",
    "StoreBehindError": "remote",
    "StoreError": "remote",
    "ToolchainError": "base",
    "ToolchainNotFoundError": "base",
    "TrustFileError": "remote",
    "UnknownAcceleratorError": "base",
    "UnstableInputError": "build",
    "WithdrawnError": "remote",
}

__all__ = [
    "AcceleratorInUseError",
    "AcceleratorUnavailableError",
    "BenchFileError",
    "BuildError",
    "BuildForbiddenError",
    "BuildResourceError",
    "BuilderError",
    "CacheDirError",
    "CommunicationError",
    "CompileError",
    "CompileForbiddenError",
    "CompiledScopeError",
    "ConfigFileError",
    "CoresError",
    "DamagedListError",
    "DeepSpeedError",
    "ExtraNotInstalledError",
    "FarmError",
    "GroupError",
    "HostfileError",
    "HubLoaderError",
    "InspectionError",
    "KernelDependencyError",
    "KernelFormatError",
    "KernelIncompatibleError",
    "KernelInstallError",
    "KernelLaunchError",
    "KernelLoadError",
    "KernelLockError",
    "KernelMappingError",
    "KernelNotFoundError",
    "KernelSchemaError",
    "KernelScopeError",
    "KeyFileError",
    "LaunchError",
    "LauncherNotFoundError",
    "LayerError",
    "LoadError",
    "LockTimeoutError",
    "NamespaceClashError",
    "OpIncompatibleError",
    "OpNotFoundError",
    "OpforgeError",
    "PackError",
    "PortError",
    "PrebuiltRequiredError",
    "ProgramError",
    "ProjectError",
    "PublishError",
    "RemoteError",
    "SettingError",
    "SignatureError",
    "SourceNotFoundError",
    "StoreBehindError",
    "StoreError",
    "ToolchainError",
    "ToolchainNotFoundError",
    "TrustFileError",
    "TuningError",
    "UnknownAcceleratorError",
    "UnstableInputError",
    "WithdrawnError",
]


def __getattr__(name: str) -> Any:
    """Imports an error on first use. This part imports no other: every other part may import it."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_FILES})
