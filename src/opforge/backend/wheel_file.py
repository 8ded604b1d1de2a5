"""A wheel (PEP 427) as a folder: it is unpacked, gets more files, and is written again with another tag."""

from __future__ import annotations

import base64
import csv
import hashlib
import itertools
import os
import re
import time
import zipfile
from typing import NamedTuple

from opforge.builders.wheel_tag import Tag, combined
from opforge.errors import BuilderError

from .variant_format import METADATA, wheel_name

BACKEND = "opforge.backend"
NAME = re.compile(r"^(?P<start>[^-]+-[^-]+(?:-\d[^-]*)?)-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl$")
FILE_MODE, EXECUTABLE_MODE = 0o100644, 0o100755
OLDEST_TIME = 315532800.0
"""The first second that a zip file can state, 1980."""


class Wheel(NamedTuple):
    """A wheel that was unpacked."""

    path: str
    folder: str
    start: str
    """The beginning of its name: the distribution, its version, and the number of the build if there is one."""
    tag: Tag
    metadata: str
    """The name of its folder `.dist-info`."""

    @classmethod
    def open(cls, path: str, folder: str, who: str = BACKEND) -> Wheel:
        """Unpacks a wheel into a folder. Raises BuilderError of `who` if it is none."""
        match = NAME.match(os.path.basename(path))
        if match is None:
            is_variant = NAME.match(os.path.basename(path).rpartition("-")[0] + ".whl") is not None
            raise _unusable(who, path, "it is a variant already" if is_variant else "its name is not that of a wheel")
        os.makedirs(folder, exist_ok=True)
        try:
            with zipfile.ZipFile(path) as archive:
                for info in archive.infolist():
                    unpacked = archive.extract(info, folder)  # inside it, also if the name leads out of it
                    if info.external_attr >> 16 & 0o111 and not info.is_dir():  # which extract does not keep
                        os.chmod(unpacked, EXECUTABLE_MODE & 0o777)
        except (OSError, zipfile.BadZipFile) as error:
            raise _unusable(who, path, str(error)) from error
        names = [name for name in os.listdir(folder) if name.endswith(".dist-info")]
        if len(names) != 1 or not os.path.isfile(os.path.join(folder, names[0], "WHEEL")):
            raise _unusable(who, path, f"it has {len(names)} folders .dist-info with a file WHEEL, and not one")
        return cls(path, folder, match["start"], Tag(match["python"], match["abi"], match["platform"]), names[0])

    def write(self, wheel_directory: str, ops: Tag, variant: str = "", described: bytes = b"") -> str:
        """Writes a wheel of what the folder holds now, whose ops have this tag. Returns its name.

        `variant` is the label of a variant, and `described` its metadata. Raises BuilderError if the wheel has
        libraries for another machine than its ops.
        """
        try:
            tag = combined(self.tag, ops)
        except ValueError as error:
            problem = f"{os.path.basename(self.path)}: {error}"
            raise BuilderError(BACKEND, problem, "Correct `targets` in [tool.opforge]") from error
        self._write_tag(tag)
        if variant:
            with open(os.path.join(self.folder, self.metadata, METADATA), "wb") as stream:
                stream.write(described)
        self._write_record()
        name = f"{self.start}-{tag.python}-{tag.abi}-{tag.platform}.whl"
        name = wheel_name(name, variant) if variant else name
        path = os.path.join(wheel_directory, name)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            record = f"{self.metadata}/RECORD"
            for file in [*(file for file in self._files() if file != record), record]:  # the list comes last
                self._add(archive, file)
        return name

    def _add(self, archive: zipfile.ZipFile, file: str) -> None:
        seconds = max(OLDEST_TIME, float(os.environ.get("SOURCE_DATE_EPOCH", OLDEST_TIME)))
        info = zipfile.ZipInfo(file, time.gmtime(seconds)[:6])
        with open(os.path.join(self.folder, file), "rb") as stream:
            is_executable = os.fstat(stream.fileno()).st_mode & 0o100
            info.external_attr = (EXECUTABLE_MODE if is_executable else FILE_MODE) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, stream.read())

    def _files(self) -> list[str]:
        """Returns every file of the wheel, with `/` between the parts of its path, in order."""
        paths = (os.path.join(parent, name) for parent, _folders, names in os.walk(self.folder) for name in names)
        return sorted(os.path.relpath(path, self.folder).replace(os.sep, "/") for path in paths)

    def _write_tag(self, tag: Tag) -> None:
        path = os.path.join(self.folder, self.metadata, "WHEEL")
        with open(path, encoding="utf-8") as file:
            lines = [line for line in file.read().splitlines() if not line.startswith(("Tag:", "Root-Is-Purelib:"))]
        each = itertools.product(*(part.split(".") for part in tag[:3]))
        tags = [f"Tag: {python}-{abi}-{platform}" for python, abi, platform in each]
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join([*filter(None, lines), "Root-Is-Purelib: false", *tags]) + "\n")

    def _write_record(self) -> None:
        record = f"{self.metadata}/RECORD"
        for signature in ("RECORD.jws", "RECORD.p7s"):  # of the list as it was
            if os.path.exists(path := os.path.join(self.folder, self.metadata, signature)):
                os.unlink(path)
        rows = []
        for file in self._files():
            if file == record:
                continue
            with open(os.path.join(self.folder, file), "rb") as stream:
                content = stream.read()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append((file, f"sha256={digest}", str(len(content))))
        with open(os.path.join(self.folder, record), "w", encoding="utf-8", newline="") as listed:
            csv.writer(listed, lineterminator="\n").writerows([*rows, (record, "", "")])


def extract_metadata(path: str, metadata_directory: str) -> str:
    """Copies the folder `.dist-info` of a wheel into a folder. Returns its name."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.partition("/")[0].endswith(".dist-info")]
        archive.extractall(metadata_directory, names)
    return names[0].partition("/")[0]


def _unusable(who: str, path: str, problem: str) -> BuilderError:
    name = os.path.basename(path)
    if who == BACKEND:
        return BuilderError(who, f"the wrapped backend made {name!r}, which cannot be used: {problem}", "Update it")
    return BuilderError(who, f"{name}: {problem}", "Name a wheel that a build has written")
