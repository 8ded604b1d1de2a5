"""Compiles the translation of a source instead of the source: CUDA as HIP, OpenCL as a string in C.

Run as a program by ninja, with nothing but the standard library:

    source_translation.py DEPFILE SOURCE OUTPUT FOLDER... -- COMMAND...

writes SOURCE's translation to OUTPUT and that of every quoted header from one of the FOLDERs beside it, runs the
command, and adds the originals to its depfile. Everything is written to the build folder. Lines keep their numbers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

INCLUDE = re.compile(r'^(\s*#\s*include\s*)"([^"]+)"', re.MULTILINE)
CUDA_HEADERS = re.compile(
    r'^(\s*#\s*include\s*[<"])(cuda\w*|cub/cub|curand_kernel|nvtx3/nvToolsExt|cooperative_groups)(\.h|\.cuh)([>"])',
    re.M,
)
HEADERS = {
    "cuda": "hip/hip_runtime",
    "cuda_runtime": "hip/hip_runtime",
    "cuda_runtime_api": "hip/hip_runtime_api",
    "cuda_fp16": "hip/hip_fp16",
    "cuda_bf16": "hip/hip_bf16",
    "cub/cub": "hipcub/hipcub",
    "curand_kernel": "hiprand/hiprand_kernel",
    "cooperative_groups": "hip/hip_cooperative_groups",
}
NAMES = {
    "cudaDeviceProp": "hipDeviceProp_t",
    "cudaDevAttrMultiProcessorCount": "hipDeviceAttributeMultiprocessorCount",
    "cudaDevAttrMaxSharedMemoryPerBlockOptin": "hipDeviceAttributeMaxSharedMemoryPerBlock",
    "cudaErrorMemoryAllocation": "hipErrorOutOfMemory",
    "cudaMallocHost": "hipHostMalloc",
    "cudaFreeHost": "hipHostFree",
    "cudaHostAlloc": "hipHostMalloc",
    "__nv_bfloat16": "__hip_bfloat16",
    "__nv_bfloat162": "__hip_bfloat162",
    "nv_bfloat16": "__hip_bfloat16",
    "cub": "hipcub",
}
"""The names that do not follow the rule, which is: cudaX is hipX, cudaDevAttrX is hipDeviceAttributeX, cuX is hipX."""
RULE = re.compile(r"\b(?:cuda(DevAttr)?(?=[A-Z])|CUDA(?=_(?:R|C)_))")
WORD = re.compile(r"\b(?:" + "|".join(sorted(map(re.escape, NAMES), key=len, reverse=True)) + r")\b")
SHUFFLE = re.compile(r"\b(__shfl(?:_up|_down|_xor)?)_sync\s*\(\s*[^,()]+,\s*")
"""Older releases have no shuffles with a mask; all lanes of a wavefront take part in theirs."""


def hip_of(text: str) -> str:
    """Returns CUDA source as HIP, with the same lines."""
    text = CUDA_HEADERS.sub(
        lambda line: f"{line[1]}{HEADERS.get(line[2], line[2])}{'.hpp' if line[2] == 'cub/cub' else '.h'}{line[4]}",
        text,
    )
    text = WORD.sub(lambda name: NAMES[name[0]], text)
    text = SHUFFLE.sub(r"\1(", text)
    return RULE.sub(lambda name: "hipDeviceAttribute" if name[1] else "hip", text)


def c_of(path: str, text: str) -> str:
    """Returns OpenCL source as a C string, `opforge_cl_<name of the file>`."""
    name = "opforge_cl_" + re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0])
    lines = text.replace("\\", "\\\\").replace('"', '\\"').split("\n")
    body = '\\n"\n"'.join(lines)
    declared = f'extern "C" __attribute__((visibility("hidden"))) const char {name}[];'
    return f'{declared}\nconst char {name}[] =\n"{body}";\n'


def translate(source: str, output: str, folders: Sequence[str]) -> dict[str, str]:
    """Writes the translations of `source` and of the headers that it quotes; returns output -> original path."""
    with open(source, encoding="utf-8", errors="surrogateescape") as file:
        text = file.read()
    originals: dict[str, str] = {}
    if source.endswith(".cl"):
        _write(output, c_of(source, text))
        return {output: source}
    waiting = [(source, output)]
    while waiting:
        source, output = waiting.pop()
        originals[output] = source
        with open(source, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
        written, at = [], 0
        for include in INCLUDE.finditer(text):
            header = _find(include[2], [os.path.dirname(source), *folders])
            if header is None:
                continue  # a header of the compiler's own: its name is translated like any other
            copy = os.path.abspath(os.path.join("translated", header.strip("/")))
            if copy not in originals:
                waiting.append((header, copy))
                originals[copy] = header
            written += [hip_of(text[at : include.start()]), f'{include[1]}"{copy}"']
            at = include.end()
        _write(output, "".join([f'#line 1 "{source}"\n', *written, hip_of(text[at:])]))
    return originals


def _find(name: str, folders: Sequence[str]) -> str | None:
    paths = (os.path.normpath(os.path.join(folder, name)) for folder in folders)
    return next((path for path in paths if os.path.isfile(path)), None)


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


def name_originals(depfile: str, translations: dict[str, str]) -> None:
    """Adds a rule for each original to a depfile. The translations are in the build folder: no inputs."""
    with open(depfile, encoding="utf-8", errors="surrogateescape", newline="") as file:
        rules = file.read()
    _write(
        depfile, "\n".join([rules.rstrip("\n"), *(f"{name}:" for name in sorted(set(translations.values())))]) + "\n"
    )


def main(arguments: list[str]) -> int:
    at = arguments.index("--")
    depfile, source, output, *folders = arguments[:at]
    translations = translate(source, output, folders)
    status = subprocess.run(arguments[at + 1 :]).returncode
    if status == 0:
        name_originals(depfile, translations)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
