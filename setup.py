"""Maps the checkout's folders to the one package `opforge`. Everything else is in pyproject.toml."""

import atexit
import os
import shutil
import sys
import tempfile

from setuptools import find_packages, setup

FOLDERS = ("accelerator", "builders", "cache", "ops", "packages", "remote")
PARTS = {f"opforge.{folder}": folder for folder in FOLDERS} | {"opforge": "src/opforge"}

package_dir = dict(PARTS)
for package, folder in PARTS.items():
    for name in find_packages(folder):
        # The symlinks below src/opforge lead to the parts' folders again. setdefault keeps the part's own folder.
        package_dir.setdefault(f"{package}.{name}", f"{folder}/{name.replace('.', '/')}")

packages = list(package_dir)
package_dir[""] = "src"  # for py_modules
if "editable_wheel" in sys.argv:
    # Type checkers do not read setuptools' finder for mapped folders, and a folder named `opforge` in the working
    # folder hides what it maps. So an editable install puts one folder on the path: its symlinks make the same tree.
    package_dir = {"": "src"}

# setuptools adds to a wheel what an earlier build has left in build/lib: each build begins with an empty folder.
build_base = tempfile.mkdtemp(prefix="opforge-build-")
atexit.register(shutil.rmtree, build_base, ignore_errors=True)

cmdclass = {}
sys.path.insert(0, "src")
import opforge  # noqa: E402 (of this folder)
from opforge.foundation import settings  # noqa: E402

# An sdist has the parts' folders, but not the symlinks to them. Without a part setuptools' entry points of an installed
# opforge are not found in this one.
opforge.__path__.append(os.getcwd())

ops = settings.build_ops()
if ops not in ((), ("0",)):  # the wheel carries built ops: "1" means all CPU ops
    from opforge.builders.setuptools import commands

    targets, portable = settings.build_targets(), settings.build_portable()
    cmdclass = commands(ops=() if ops == ("1",) else ops, targets=targets, portable=portable, package="opforge")

setup(
    cmdclass=cmdclass,
    options={"build": {"build_base": build_base}},
    packages=packages,
    py_modules=["opforge_autoload"],
    package_dir=package_dir,
    package_data={
        "opforge": ["py.typed"],
        "opforge.builders.facade": ["include/**/*.h", "include/**/*.inc"],
        "opforge.cmake": ["*.cmake"],
        "opforge.new": ["templates/**/*.in"],
        "opforge.ops": ["csrc/**/*.cpp", "csrc/**/*.cu", "csrc/**/*.h", "triton/kernels/*.py"],
    },
)
