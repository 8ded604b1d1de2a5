"""Map the checkout's folders into the one package `opforge`; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

ROOMS = {f"opforge.{room}": room for room in ("accelerator", "builders", "cache", "ops")} | {"opforge": "src/opforge"}

package_dir = dict(ROOMS)
for package, folder in ROOMS.items():
    for name in find_packages(folder):
        # The symlinks below src/opforge lead to the rooms again; a room's own place is the one that counts.
        package_dir.setdefault(f"{package}.{name}", f"{folder}/{name.replace('.', '/')}")

setup(
    packages=list(package_dir),
    package_dir=package_dir,
    package_data={"opforge": ["py.typed"], "opforge.ops": ["csrc/**/*.cpp", "csrc/**/*.h", "csrc/**/*.cu"]},
)
