"""Map the checkout's folders into the one package `opforge`; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

ROOMS = ("accelerator", "builders", "cache", "ops")

package_dir = {"opforge": "src/opforge", "opforge.cli": "src/opforge/cli"}
for room in ROOMS:
    package_dir[f"opforge.{room}"] = room
    package_dir |= {f"opforge.{room}.{name}": f"{room}/{name.replace('.', '/')}" for name in find_packages(room)}

setup(
    packages=list(package_dir),
    package_dir=package_dir,
    package_data={
        "opforge": ["py.typed"],
        "opforge.ops": ["csrc/**/*.cpp", "csrc/**/*.h"],
    },
)
