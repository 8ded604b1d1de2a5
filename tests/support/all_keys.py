"""Prints the keys of every builder: `python tests/support/all_keys.py`. A change of the code alone leaves them equal.

Each line has the builder, the target, the key of its description and that of its plan, or why there is none.
"""

from __future__ import annotations

import importlib
import tempfile

from opforge.builders.declaration.description import description_key
from opforge.builders.planner import make_plan
from opforge.builders.toolchains import find_toolchain
from opforge.cache.current_store import open_store, writable_store
from opforge.errors import OpforgeError

TARGETS = {
    "opforge.builders.cpu": (None, "cpu:x86-64-v3", "cpu:aarch64"),
    "opforge.builders.cuda": ("cuda:sm_80", "cuda:sm_90a", "hip:gfx90a"),
}


def main() -> None:
    """Prints one line for each builder and target."""
    with tempfile.TemporaryDirectory() as folder:
        store = writable_store(open_store(folder))
        for package, targets in TARGETS.items():
            for name, path in importlib.import_module(package).BUILDERS.items():
                module, _, attribute = path.partition(":")
                builder_class = getattr(importlib.import_module(module), attribute)
                for target in targets:
                    print(name, target, *_keys(builder_class, target, store))


def _keys(builder_class, target, store):
    try:
        spec = builder_class(target).spec()
        description = description_key(spec)
    except OpforgeError as error:
        return (str(error).split("\n")[0],)
    try:
        return description, make_plan(spec, find_toolchain(spec, store)).key
    except OpforgeError as error:
        return description, str(error).split("\n")[0]


if __name__ == "__main__":
    main()
