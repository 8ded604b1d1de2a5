"""Writes a new project from its templates. Nothing that exists is changed."""

from __future__ import annotations

import keyword
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from opforge.accelerator.registry import BUILT_IN
from opforge.errors import ProjectError
from opforge.foundation import opforge_version
from opforge.foundation.versions import version_of
from opforge.packages.form.names import MAX_CHARACTERS

TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
SUFFIX = ".in"
"""Of every template: no tool takes one for a file of its language."""
NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
TAKEN = frozenset({"opforge", "torch", "triton", "numpy", "setuptools", "pytest", "test", "tests", "benchmarks"})
"""Packages that the project or its tests import, beside those of the standard library."""
RUNNERS = {"host": "ubuntu-24.04, ubuntu-24.04-arm", "device": "ubuntu-24.04"}
NVCC = [f'"nvidia-{part}==13.0.*"' for part in ("cuda-nvcc", "cuda-cccl", "cuda-runtime", "cuda-crt", "nvvm")]
TABLE = """
# The wheel holds the op for these targets: their compiler must be there, a device need not.
[tool.opforge]
ops = ["@PACKAGE@.builders:@CLASS@"]
"""
UNREPAIRED = """\
# There is nothing to repair: torch's libraries are found through torch.
repair-wheel-command = ""
"""
REPAIRED = """\
# auditwheel gives the wheel its tag, and adds nothing: torch's libraries are found through torch.
repair-wheel-command = "auditwheel repair @EXCLUDED@ -w {dest_dir} {wheel}"
"""
EXCLUDED = "--exclude 'libtorch*' --exclude 'libc10*' --exclude 'libcuda*'"
ADD_OP = """
# The wheel holds the op for these targets: their compiler must be there, a device need not.
find_package(opforge REQUIRED)
opforge_add_op(squared_relu PACKAGE @PACKAGE@ BUILDER @PACKAGE@.builders:@CLASS@@TARGETS@)
"""
SOURCES = "| `@PACKAGE@/csrc/` | the sources |"


class Kind(NamedTuple):
    """A kind of project."""

    folders: tuple[str, ...]
    """Folders of templates. A file of a later one replaces one of the same name."""
    values: Mapping[str, str] = {}
    """Texts that stand for @NAME@ and the like."""
    is_prebuilt: bool = True
    """Whether the wheel holds the built op."""
    targets: str = ""
    """The targets of the wheel's op; by default the levels of the CPU that builds it."""


class BuildSystem(NamedTuple):
    """The build system that makes the wheel of a project."""

    requires: tuple[str, ...]
    """Its packages."""
    backend: str
    """Its backend (PEP 517)."""
    packaging: str
    """The tables of pyproject.toml by which it finds the files."""
    hook: str = ""
    """The table by which it builds the ops."""
    is_wrapped: bool = False
    """Whether opforge.backend wraps it, and adds the ops."""
    folder: str = ""
    """Templates of its own files, which name the ops if it does not read [tool.opforge]."""
    reads_table: bool = True
    """Whether the ops are in the table [tool.opforge]."""
    repair: str = UNREPAIRED
    """The commands of cibuildwheel for the wheel."""
    tools: tuple[str, ...] = ()
    """Further requirements of an isolated build, which a build without isolation must find installed."""

    def steps(self) -> list[str]:
        """Returns the commands that install a project for work on it."""
        tools = () if self.backend == "setuptools.build_meta" else (*self.requires, *self.tools)  # torch requires it
        install = [f"pip install {' '.join(map(shlex.quote, tools))}"] if tools else []
        return [*install, "pip install --no-build-isolation --editable '.[test]'"]

    def values(self, kind: Kind) -> dict[str, str]:
        """Returns the texts that stand for @BACKEND@ and the like in a project of a kind."""
        wraps = self.is_wrapped and kind.is_prebuilt
        table = TABLE if kind.is_prebuilt and self.reads_table else ""
        if table:
            table = self.hook + table
            table += f'targets = ["{kind.targets}"]\n' if kind.targets else ""
            table += f'backend = "{self.backend}"\n' if wraps else ""
        return {
            "REQUIRES": ", ".join(f'"{package}"' for package in self.requires),
            "STEPS": "\n".join(self.steps()),
            "BACKEND": "opforge.backend" if wraps else self.backend,
            "PACKAGING": self.packaging,
            "TABLE": table,
            "ADD_OP": ADD_OP if kind.is_prebuilt else "",
            "TARGETS": f" TARGETS {kind.targets}" if kind.targets else "",
            "REPAIR": self.repair,
            "EXCLUDED": EXCLUDED,
        }


COMPILED = {
    "DATA": "csrc/*",
    "PACKAGES": '"@PACKAGE@"',
    "FILES": SOURCES,
    "BUILD_NEEDS": "",
    "RUNNERS": RUNNERS["device"],
    "NEEDS": "",
}
"""The values of most kinds."""
KINDS = {
    "cpu": Kind(
        ("every", "op", "compiled", "cpu"),
        {
            **COMPILED,
            "DEVICE": "cpu",
            "ACCELERATOR": "cpu",
            "ON_DEVICE": "on the CPU",
            "RUNNERS": RUNNERS["host"],
            "KERNEL": 'builder = "@PACKAGE@.builders:@CLASS@"\n\n[check]\nsamples = "samples:samples"\n',
        },
    ),
    "cuda": Kind(
        ("every", "op", "compiled", "cuda"),
        {
            **COMPILED,
            "DEVICE": "cuda",
            "ACCELERATOR": "cuda",
            "ON_DEVICE": "on a GPU",
            "BUILD_NEEDS": ", " + ", ".join(NVCC),
            "KERNEL": 'builder = "@PACKAGE@.builders:@CLASS@"\ntargets = ["cuda:sm_80+sm_90+ptx"]\n',
            "NEEDS": " It needs nvcc: that of CUDA's toolkit, or of the\npackages that `pyproject.toml` names.",
        },
        targets="cuda:sm_80+sm_90+ptx",
    ),
    "triton": Kind(
        ("every", "op", "triton"),
        {
            **COMPILED,
            "DEVICE": "cuda",
            "ACCELERATOR": "cuda",
            "DATA": "kernels/*",
            "PACKAGES": '"@PACKAGE@", "@PACKAGE@.kernels"',
            "FILES": "| `@PACKAGE@/kernels/` | the kernel; and its package for the hub |\n"
            "| `@PACKAGE@/functions.py` | the function that launches it |",
            "BUILD_NEEDS": ', "triton>=3.6"',
            "KERNEL": 'python = "@PACKAGE@/kernels"\nbackends = ["cuda", "rocm"]\npython-depends = ["triton>=3.6"]\n',
            "NEEDS": " Without a GPU, Triton's interpreter runs\nthe tests.",
        },
        targets="cuda:sm_80+sm_90+sm_100",
    ),
    "sycl": Kind(
        ("every", "op", "compiled", "sycl"),
        {
            **COMPILED,
            "DEVICE": "xpu",
            "ACCELERATOR": "xpu",
            "ON_DEVICE": "on an Intel GPU",
            "KERNEL": 'builder = "@PACKAGE@.builders:@CLASS@"\ntargets = ["xpu"]\n',
            "NEEDS": " It needs icpx, of Intel's oneAPI. The wheel\nholds the sources: the op is built on first use.",
        },
        is_prebuilt=False,  # no runner of a public forge has icpx: the wheel holds the sources
    ),
    "accelerator": Kind(("every", "accelerator"), is_prebuilt=False),
}
SETUPTOOLS = "setuptools"
MANIFEST = "MANIFEST.in"
"""Files of a setuptools sdist besides the package."""
BUILD_SYSTEMS = {
    SETUPTOOLS: BuildSystem(
        ("setuptools>=77",),
        "setuptools.build_meta",
        '[tool.setuptools]\npackages = [@PACKAGES@]\npackage-data = { @PACKAGE@ = ["@DATA@"] }\n',
    ),
    "hatchling": BuildSystem(
        ("hatchling>=1.27",),
        "hatchling.build",
        '[tool.hatch.build.targets.wheel]\npackages = ["@PACKAGE@"]\n',
        hook="\n[tool.hatch.build.targets.wheel.hooks.opforge]\n",
        tools=("editables",),
    ),
    "scikit-build-core": BuildSystem(
        ("scikit-build-core>=0.10",),
        "scikit_build_core.build",
        '[tool.scikit-build]\nwheel.py-api = "py3"  # not bound to one Python\n',
        folder="cmake",
        reads_table=False,
        repair=REPAIRED,
        tools=("cmake",),
    ),
    "meson-python": BuildSystem(
        ("meson-python>=0.17",), "mesonpy", "# meson.build names the files.\n", is_wrapped=True, folder="meson"
    ),
    "flit": BuildSystem(
        ("flit-core>=3.10",),
        "flit_core.buildapi",
        '[tool.flit.module]\nname = "@PACKAGE@"\n\n[tool.flit.sdist]\ninclude = [@OTHER_FILES@]\n',
        is_wrapped=True,
    ),
}
"""By the name of `--build-system`."""


def create(path: str, kind: str, build_system: str = SETUPTOOLS) -> list[str]:
    """Writes a project of this kind into the folder `path`, whose name is its own. Returns the files' paths.

    Raises ProjectError if the name cannot be used, the folder exists and is not empty, or an accelerator is to have
    another build system than setuptools; OSError.
    """
    name = check_name(os.path.basename(os.path.abspath(path)))
    if kind == "accelerator" and build_system != SETUPTOOLS:
        problem = f"an accelerator's wheel holds no built op, and is made by {SETUPTOOLS} and not by {build_system}"
        raise ProjectError(name, problem, "Leave out --build-system")
    problem = folder_problem(path)
    if problem:
        raise ProjectError(path, problem, "Choose another name")
    project = dict(rendered(name, kind, build_system))
    if problem := clash(name, kind, project):
        raise ProjectError(name, problem, f"Such as '{name}-op'")
    files = [(os.path.join(path, file), text) for file, text in project.items()]
    for file, text in files:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "x", encoding="utf-8") as stream:  # x: a file that somebody made meanwhile is kept
            stream.write(text)
    return [file for file, _text in files]


def check_name(name: str) -> str:
    """Returns a project's name. Raises ProjectError if no package can have it."""
    package = name.replace("-", "_")
    if not NAME.fullmatch(name) or not 2 <= len(name) <= MAX_CHARACTERS:
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")
        is_name = NAME.fullmatch(near) and 2 <= len(near) <= MAX_CHARACTERS
        advice = f"Such as {near!r}" if is_name else "Such as 'my-op'"
        expected = f"two to {MAX_CHARACTERS} lower-case letters, digits, and '-' or '_' between them; a letter first"
        problem = f"expected {expected}"
        raise ProjectError(name, problem, advice)
    if keyword.iskeyword(package) or package in keyword.softkwlist:
        raise ProjectError(name, "it is a keyword of Python: it cannot be imported", f"Such as '{name}-op'")
    if package in TAKEN or package in sys.stdlib_module_names:
        problem = f"there is a package {package!r} already, which it would hide"
        raise ProjectError(name, problem, f"Such as '{name}-op'")
    return name


def clash(name: str, kind: str, files: Mapping[str, str]) -> str:
    """Returns why a project with these files cannot have this name. Empty if it can."""
    package = name.replace("-", "_")
    if kind == "accelerator" and package in BUILT_IN:
        return f"{package!r} is an accelerator of opforge's own, and no package can replace it"
    for file in files:
        # Tests and benchmarks are run with their own folder first on Python's path.
        if file.endswith(f"{package}.py") and file.removesuffix(f"{package}.py") in ("", "tests/", "benchmarks/"):
            return f"its file {file} would be imported in place of the package"
    if f"/{package}/" in files[".gitignore"].split():
        return f"{package}/ is the folder of what is built, and git ignores it"
    return ""


def folder_problem(path: str) -> str:
    """Returns why a project cannot be written there. Empty if it can."""
    if not os.path.lexists(path):
        return ""
    if not os.path.isdir(path) or os.path.islink(path):
        return "it exists, and is not a folder"
    with os.scandir(path) as entries:
        names = sorted(entry.name for entry in entries)
    return f"the folder exists and is not empty: it holds {', '.join(names[:3])}" if names else ""


def rendered(name: str, kind: str, build_system: str) -> list[tuple[str, str]]:
    """Returns the (path, text) of every file of a project, sorted."""
    package = name.replace("-", "_")
    title = "".join(part.capitalize() for part in package.split("_"))
    sources = {path_of(file, package): (folder, file) for folder, file in templates(kind, build_system)}
    others = sorted(path for path in sources if not path.startswith((f"{package}/", "pyproject.toml", "README.md")))
    values = {
        "NAME": name,
        "KERNEL_NAME": name.replace("_", "-"),
        "PACKAGE": package,
        "CLASS": f"{title}Builder",
        "VARIABLE": f"{package.upper()}_DEVICE",
        "RANGE": compatible_versions(opforge_version.VERSION),
        "OTHER_FILES": ", ".join(f'"{path}"' for path in others),
        **({"ACCELERATOR": f"{title}Accelerator"} if kind == "accelerator" else KINDS[kind].values),
        **BUILD_SYSTEMS[build_system].values(KINDS[kind]),
    }
    files = {}
    for path, source in sources.items():
        with open(os.path.join(TEMPLATES, *source), encoding="utf-8") as stream:
            files[path] = filled(stream.read(), values)
    if build_system == SETUPTOOLS:  # the others take what git has, or a list in pyproject.toml
        files[MANIFEST] = "".join(f"include {path}\n" for path in others)
    return sorted(files.items())


def templates(kind: str, build_system: str) -> Iterator[tuple[str, str]]:
    """Yields the (folder, path below it) of every template of a kind with a build system."""
    for folder in filter(None, (*KINDS[kind].folders, BUILD_SYSTEMS[build_system].folder)):
        top = os.path.join(TEMPLATES, folder)
        for parent, _folders, names in os.walk(top):
            for name in names:
                if name.endswith(SUFFIX):
                    yield folder, os.path.relpath(os.path.join(parent, name), top)


def path_of(template: str, package: str) -> str:
    """Returns the path of a template's file in the project: `_github` stands for `.github`, PACKAGE for the package."""
    parts = template.removesuffix(SUFFIX).split(os.sep)
    hidden = {"_github": ".github", "_gitignore": ".gitignore", "PACKAGE": package}
    return os.path.join(*(hidden.get(part, part) for part in parts))


def filled(text: str, values: Mapping[str, str]) -> str:
    """Returns a text with each @NAME@ replaced. A value may hold others, and these values too."""
    for _depth in range(3):
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
    return text.rstrip("\n") + "\n"


def compatible_versions(version: str) -> str:
    """Returns the requirement for the versions of opforge that a project made by this one works with.

    pip sorts a candidate such as 0.1.0rc1 below 0.1, and takes one only where a requirement names one.
    """
    major, minor = version_of(version)[:2]
    released = all(part.isdecimal() for part in version.split("."))
    least = f"{major}.{minor}" if released else version
    return f">={least},<{major}.{minor + 1}" if major == 0 else f">={least},<{major + 1}"
