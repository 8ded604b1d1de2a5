"""Makes a release: the sdist, a pure wheel, a wheel with built ops for each processor, SBOMs and the provenance.

    python .ci/dist.py dist            # make dist
    python .ci/dist.py dist --twice    # make dist-check: makes it twice, and compares every byte

Everything is made from the commit that is checked out, in a folder of its own, with the time of that commit.
"""

from __future__ import annotations

import argparse
import filecmp
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

from dist_records import provenance, sbom

PROCESSORS = {
    "x86_64": ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4"),
    "aarch64": ("cpu:aarch64",),
}
"""Processor -> the targets of the ops in its wheel."""
MAX_WHEEL_BYTES = 6 << 20
"""Twenty ops for three levels take 4 MB of it."""
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main() -> None:
    """Reads the arguments and makes the release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where the files go; it is emptied of earlier ones")
    parser.add_argument("--twice", action="store_true", help="make it twice, and fail if a byte differs")
    parser.add_argument("--processors", nargs="*", default=[*PROCESSORS], choices=[*PROCESSORS])
    options = parser.parse_args()
    changed = git("status", "--porcelain", "--untracked-files=no")
    if changed:
        sys.exit(f"error: the checkout has changes that are not committed:\n{changed}\nhint: commit or stash them")
    os.umask(0o022)  # the modes in archives
    os.makedirs(options.folder, exist_ok=True)
    for name in os.listdir(options.folder):
        path = os.path.join(options.folder, name)
        if name.startswith(".tmp-"):  # of a build that was interrupted
            shutil.rmtree(path)
        else:
            os.unlink(path)
    commit = git("rev-parse", "HEAD")
    release(commit, options.folder, options.processors)
    if options.twice:
        with tempfile.TemporaryDirectory() as second:
            release(commit, second, options.processors)
            compare(options.folder, second)
    for name in sorted(os.listdir(options.folder)):
        print(f"{os.path.getsize(os.path.join(options.folder, name)):>9} {name}")


def release(commit: str, into: str, processors: list[str]) -> None:
    """Makes every file of the release of a commit in a folder."""
    epoch = git("log", "-1", "--format=%ct", commit)
    env = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "ZIG_GLOBAL_CACHE_DIR") if name in os.environ}
    env |= {"SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
    with tempfile.TemporaryDirectory() as work:
        env["OPFORGE_CACHE_DIR"] = os.path.join(work, "cache")
        source = os.path.join(work, "source")
        unpack(subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, capture_output=True).stdout, source)
        build(source, "--sdist", into, env)
        sdist = only(into, ".tar.gz")
        repack(sdist, int(epoch))
        # The wheels are made from the sdist: a file that it lacks is missed here, not by whoever builds from it.
        with gzip.open(sdist) as packed:
            unpack(packed.read(), work)
        unpacked = os.path.join(work, os.path.basename(sdist).removesuffix(".tar.gz"))
        build(unpacked, "--wheel", into, env)
        for processor in processors:
            targets = " ".join(PROCESSORS[processor])
            ops = {"OPFORGE_BUILD_OPS": "1", "OPFORGE_BUILD_TARGETS": targets, "OPFORGE_BUILD_PORTABLE": "1"}
            build(unpacked, "--wheel", into, env | ops)
            wheel = only(into, f"{processor}.whl")
            if os.path.getsize(wheel) > MAX_WHEEL_BYTES:
                sys.exit(f"error: {wheel} has {os.path.getsize(wheel)} bytes, more than {MAX_WHEEL_BYTES}")
    files = [os.path.join(into, name) for name in sorted(os.listdir(into))]
    for path in files:
        if path.endswith(".whl"):
            write(f"{path}.cdx.json", sbom(path))
    files = [os.path.join(into, name) for name in sorted(os.listdir(into))]
    digests = {os.path.basename(path): digest(path) for path in files}
    write(os.path.join(into, "provenance.json"), provenance(digests, commit, int(epoch)))
    digests["provenance.json"] = digest(os.path.join(into, "provenance.json"))
    lines = [f"{value}  {name}\n" for name, value in sorted(digests.items())]
    write(os.path.join(into, "SHA256SUMS"), "".join(lines).encode())


def git(*arguments: str) -> str:
    """Returns what git prints about the checkout."""
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def build(source: str, kind: str, into: str, env: dict[str, str]) -> None:
    """Runs PyPA's build with the tools that are installed: their versions are in the provenance."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", kind, "--outdir", into]
    done = subprocess.run([*command, source], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}\nerror: {kind} could not be built")


def unpack(data: bytes, into: str) -> None:
    """Unpacks a tar archive of our own."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(into, filter="tar")


def repack(path: str, epoch: int) -> None:
    """Writes an sdist again in a fixed order, with one time, owner and mode: setuptools writes those of its build."""
    with tarfile.open(path) as archive:
        content = [(entry, archive.extractfile(entry)) for entry in archive.getmembers()]
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as again:
            for entry, file in sorted(content, key=lambda pair: pair[0].name):
                entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "", ""
                entry.mode, entry.pax_headers = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644, {}
                again.addfile(entry, file)
    write(path, gzip.compress(packed.getvalue(), mtime=epoch))


def only(folder: str, ending: str) -> str:
    """Returns the path of the one file with this ending."""
    (name,) = [name for name in os.listdir(folder) if name.endswith(ending)]
    return os.path.join(folder, name)


def digest(path: str) -> str:
    """Returns the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def write(path: str, data: bytes) -> None:
    """Writes a file."""
    with open(path, "wb") as file:
        file.write(data)


def compare(first: str, second: str) -> None:
    """Ends the program if a file of the two folders differs."""
    names = sorted({*os.listdir(first), *os.listdir(second)})
    _same, differing, missing = filecmp.cmpfiles(first, second, names, shallow=False)
    if differing or missing:
        sys.exit(f"error: the second release differs from the first: {', '.join([*differing, *missing])}")
    print(f"{len(names)} files, made twice with the same bytes")


if __name__ == "__main__":
    main()
