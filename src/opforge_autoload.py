"""What torch calls at the end of its import, in every process of an environment that has opforge.

It is no part of the package `opforge`, because importing that would add milliseconds to each `import torch`.
"""

import os


def torch_is_imported() -> None:
    """Prepares for DeepSpeed's import, and for setup scripts on the facade, if variables ask for it.

    Their values are read later: torch's import must not fail.
    """
    if os.environ.get("OPFORGE_DEEPSPEED"):
        from opforge.compat.deepspeed_import import install_after_import

        install_after_import()
    if os.environ.get("OPFORGE_CPP_EXTENSION") == "torch-facade":
        from opforge.compat.cuda_home import give_after_import

        give_after_import()
