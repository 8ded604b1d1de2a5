"""Installed distributions whose libraries use torch in different ways, for tests of `opforge inspect --env`."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import torch

STABLE = "void aoti_torch_empty_strided(void); void f(void) { aoti_torch_empty_strided(); }"
NEWER = "void torch_tag_core(void); void f(void) { torch_tag_core(); } " + STABLE.replace("f(", "g(")
BOUND = "void _ZN3c1010TensorImplC1Ev(void); void f(void) { _ZN3c1010TensorImplC1Ev(); }"
LIMITED = STABLE + " void *PyLong_FromLong(long); void *PyInit_m(void) { return PyLong_FromLong(1); }"
UNLIMITED = STABLE + " void *_PyObject_New(void); void _PyUnicode_Private(void); void h(void) { _PyUnicode_Private(); }"
ABSENT = "void aoti_torch_of_another_release(void); void f(void) { aoti_torch_of_another_release(); }"
LINKED_ALONE = "void f(void) {}"
WITHOUT_TORCH = "void *PyLong_FromLong(long); void *PyInit_m(void) { return PyLong_FromLong(1); }"
LIBTORCH = str(Path(torch.__file__).parent / "lib")


def install(site: Path, name: str, libraries: Mapping[str, str], requires: str = "torch") -> None:
    """Installs a distribution whose libraries are compiled from C."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / name).mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: {requires}\n")
    (info / "RECORD").write_text("".join(f"{name}/{file},,\n" for file in libraries))
    for file, source in libraries.items():
        flags = ["-shared", "-fPIC", "-w", "-xc", "-"]
        linked = ["-L", LIBTORCH, "-Wl,--no-as-needed", "-l:libtorch_cpu.so", "-Wl,--unresolved-symbols=ignore-all"]
        command = ["cc", *flags, "-o", str(site / name / file), *(linked if source in (ABSENT, LINKED_ALONE) else [])]
        subprocess.run(command, input=source.encode(), check=True)


SAMPLES = {
    "good": {"stable.so": STABLE, "newer.so": NEWER, "limited.abi3.so": LIMITED, "other.so": WITHOUT_TORCH},
    "bound": {"bound.so": BOUND, "tagged.cpython-311-x86_64-linux-gnu.so": LIMITED, "free.so": UNLIMITED},
}
"""Distribution -> library -> source."""
