"""Map the checkout's folders into the one package `opforge`; everything else is in pyproject.toml."""

import os
import sys

from setuptools import find_packages, setup

ROOMS = {f"opforge.{room}": room for room in ("accelerator", "builders", "cache", "ops")} | {"opforge": "src/opforge"}

package_dir = dict(ROOMS)
for package, folder in ROOMS.items():
    for name in find_packages(folder):
        # The symlinks below src/opforge lead to the rooms again; a room's own place is the one that counts.
        package_dir.setdefault(f"{package}.{name}", f"{folder}/{name.replace('.', '/')}")

packages = list(package_dir)
if "editable_wheel" in sys.argv:
    # One folder on the path, where the symlinks make the same tree: type checkers read it, and a checkout named
    # `opforge` in the working folder does not hide it, as it would hide what setuptools' own finder maps.
    package_dir = {"": "src"}

cmdclass = {}
asked = os.environ.get("OPFORGE_BUILD_OPS", "").split()
if asked not in ([], ["0"]):  # a wheel that carries ops, all that the CPU has or those named, instead of a pure one
    sys.path.insert(0, "src")
    from opforge.builders.setuptools import commands

    targets = os.environ.get("OPFORGE_BUILD_TARGETS", "").split()
    cmdclass = commands(ops=() if asked == ["1"] else asked, targets=targets, package="opforge")

setup(
    cmdclass=cmdclass,
    packages=packages,
    package_dir=package_dir,
    package_data={
        "opforge": ["py.typed"],
        "opforge.ops": ["csrc/**/*.cpp", "csrc/**/*.cu", "csrc/**/*.h", "triton/kernels/*.py"],
    },
)
