"""OPFORGE_DEEPSPEED: what torch calls at the end of its import, in every process of an environment that has opforge.

It is no part of the package `opforge`, because importing that would add milliseconds to each `import torch`.
"""

import os


def torch_is_imported() -> None:
    """Prepares for DeepSpeed's import if the variable is set. Its value is read later: torch's import must not fail."""
    if os.environ.get("OPFORGE_DEEPSPEED"):
        from opforge.compat.deepspeed_import import install_after_import

        install_after_import()
