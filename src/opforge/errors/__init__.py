"""Every error that opforge raises. Each message states what failed, what was expected and what to do.

A cache hit imports this package and `base`. The errors in the other files are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge import lazy

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

if TYPE_CHECKING:
    from .build import BuildForbiddenError, CompileError, KernelSchemaError, LockTimeoutError, UnstableInputError
    from .commands import ArchiveError, BenchFileError, ConfigFileError, InspectionError, PortError, ProjectError
    from .groups import GroupError
    from .kernels import (
        KernelDependencyError,
        KernelFormatError,
        KernelIncompatibleError,
        KernelInstallError,
        KernelLoadError,
        KernelLockError,
        KernelNotFoundError,
        PackError,
    )
    from .launch import CoresError, HostfileError, LauncherNotFoundError, LaunchError
    from .packages import DeepSpeedError, ExtraNotInstalledError
    from .remote import (
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
    "ArchiveError": "commands",
    "BenchFileError": "commands",
    "BuildForbiddenError": "build",
    "CompileError": "build",
    "ConfigFileError": "commands",
    "CoresError": "launch",
    "DeepSpeedError": "packages",
    "ExtraNotInstalledError": "packages",
    "FarmError": "remote",
    "GroupError": "groups",
    "HostfileError": "launch",
    "InspectionError": "commands",
    "KernelDependencyError": "kernels",
    "KernelFormatError": "kernels",
    "KernelIncompatibleError": "kernels",
    "KernelInstallError": "kernels",
    "KernelLoadError": "kernels",
    "KernelLockError": "kernels",
    "KernelNotFoundError": "kernels",
    "KernelSchemaError": "build",
    "KeyFileError": "remote",
    "LaunchError": "launch",
    "LauncherNotFoundError": "launch",
    "LockTimeoutError": "build",
    "PackError": "kernels",
    "PortError": "commands",
    "ProjectError": "commands",
    "PublishError": "remote",
    "RemoteError": "remote",
    "SignatureError": "remote",
    "StoreBehindError": "remote",
    "StoreError": "remote",
    "TrustFileError": "remote",
    "UnstableInputError": "build",
    "WithdrawnError": "remote",
}

__all__ = [
    "AcceleratorInUseError",
    "AcceleratorUnavailableError",
    "ArchiveError",
    "BenchFileError",
    "BuildError",
    "BuildForbiddenError",
    "BuildResourceError",
    "BuilderError",
    "CacheDirError",
    "CommunicationError",
    "CompileError",
    "ConfigFileError",
    "CoresError",
    "DeepSpeedError",
    "ExtraNotInstalledError",
    "FarmError",
    "GroupError",
    "HostfileError",
    "InspectionError",
    "KernelDependencyError",
    "KernelFormatError",
    "KernelIncompatibleError",
    "KernelInstallError",
    "KernelLaunchError",
    "KernelLoadError",
    "KernelLockError",
    "KernelNotFoundError",
    "KernelSchemaError",
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
    "UnknownAcceleratorError",
    "UnstableInputError",
    "WithdrawnError",
]
__getattr__, __dir__ = lazy.names(__name__, _FILES)
