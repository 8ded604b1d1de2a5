"""Coverage-guided fuzzing of the parsers behind `opforge inspect`. Needs atheris; the tests do not.

    python tests/fuzz/fuzz_inspection.py PARSER -runs=100000 [NEW_INPUTS_FOLDER] tests/fuzz/corpus/inspection/PARSER

An input is a file of the kind that PARSER names. Whatever the input, a parser returns a value that can be printed as
JSON, or raises FileFormatError.
"""

from __future__ import annotations

import json
import os
import sys

from opforge.builders.inspection import cubin, cuobjdump, fatbin, hsaco, msgpack, shims
from opforge.builders.inspection.examine import examine_content
from opforge.builders.inspection.reader import FileFormatError, Reader

CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "inspection")


def library(file: Reader) -> object:
    """Reads a file as `opforge inspect` does, whatever it is."""
    return examine_content("the input", file.content(0, len(file), "all"))


def images(file: Reader) -> object:
    """Reads a container of device code, and every device file as it is."""
    parts = [*fatbin.cuda_images(file), *fatbin.hip_images(file)[0], *fatbin.embedded(file)]
    return [image.to_json() for image in parts]


PARSERS = {
    "library": library,
    "cubin": lambda file: cubin.kernels(file, cubin.arch_of(file)),
    "fatbin": images,
    "bundle": images,
    "hsaco": lambda file: hsaco.kernels(file, hsaco.arch_of(file)),
    "ptx": fatbin.ptx_arch,
    "msgpack": lambda file: str(msgpack.unpack(file)),
}


def run(parser: str, data: bytes) -> str:
    """Returns what a parser reads of an input, as JSON, or why it reads nothing."""
    try:
        return json.dumps(PARSERS[parser](Reader(data)))
    except FileFormatError as error:
        return str(error)


def seeds(parser: str) -> dict[str, bytes]:
    """Returns the contents of a parser's corpus by file name."""
    contents, folder = {}, os.path.join(CORPUS, parser)
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            contents[name] = file.read()
    return contents


def stay_inside() -> None:
    """Keeps a run from reading anything but its input: no other program, and nothing of the installed torch."""
    cuobjdump.find_cuobjdump = lambda: None
    shims.torch_folder = lambda: None


def main() -> None:
    """Runs until atheris ends."""
    import atheris

    parser = sys.argv.pop(1)
    stay_inside()
    atheris.instrument_all()
    atheris.Setup(sys.argv, lambda data: run(parser, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
