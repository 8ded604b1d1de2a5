"""Reads the notes of an observed build: what each program image opened, looked for and started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

ELF = b"\x7fELF"
MAGIC = b"observed"
HEAD = 24
"""Bytes before the first note: MAGIC, the length of the notes, and how many found no space."""
HARMLESS = re.compile(r" of /(?:proc|sys|dev)/")
"""The system calls by which allocators ask about the machine."""
ROOT = "root"
"""The token of the programs that are started by the process that observes."""
SHELLS = frozenset({"sh", "dash", "bash", "ksh", "zsh", "busybox", "perl", "make"})
"""Programs that read variables without asking the C library; and python, of any version."""
IMAGE, LIBRARY, READ, WRITTEN, ABSENT, LINK, FOLDER = "X", "B", "R", "W", "N", "K", "D"
VARIABLE, STARTED, FAILED, CONNECTED, CALLED, UNKNOWN = "V", "E", "F", "C", "Y", "?"
"""The letters of the notes in the C files beside this one."""


class Image(NamedTuple):
    """What one program image did, in order."""

    token: str
    program: str
    """Its path, with links resolved. Of a script it is the interpreter's."""
    notes: tuple[tuple[str, str], ...]
    """Pairs of a letter and a path, a name or a token."""
    lost: int = 0
    """How many notes found no space."""
    is_cut: bool = False
    """Whether a note was left half written."""

    def texts(self, *kinds: str) -> list[str]:
        """Returns the texts of the notes of these kinds, each once, in order."""
        return list(dict.fromkeys(text for kind, text in self.notes if kind in kinds))

    def starts(self) -> Iterator[tuple[str, str]]:
        """Yields the token and the path of each program that it started."""
        failed = {text for kind, text in self.notes if kind == FAILED}
        for kind, text in self.notes:
            token, _, path = text.partition(" ")
            if kind == STARTED and token not in failed:
                yield token, path


class Observation(NamedTuple):
    """What the images of a build did."""

    images: tuple[Image, ...]

    def paths(self, *kinds: str) -> dict[str, str]:
        """Returns the paths of the notes of these kinds, each with the first program that has one."""
        pairs = ((text, image.program) for image in self.images for text in image.texts(*kinds))
        first: dict[str, str] = {}
        for text, program in pairs:
            first.setdefault(text, program)
        return first

    @property
    def read(self) -> dict[str, str]:
        """The files that were opened to be read, or started, each with the program that did it."""
        started = {path: image.program for image in self.images for _token, path in image.starts()}
        return {**started, **self.paths(READ)}

    @property
    def written(self) -> frozenset[str]:
        """The files that were opened to be written."""
        return frozenset(self.paths(WRITTEN))

    def gaps(self) -> list[str]:
        """Returns why the notes are incomplete; empty if they are not."""
        gaps = [] if any(image.token == ROOT for image in self.images) else ["no program left notes"]
        programs: dict[str, str] = {}
        for image in self.images:
            programs.setdefault(image.token, image.program)
        for image in self.images:
            name = image.program or "a program"
            gaps += [
                f"{path}, started by {name}, left no notes"
                for token, path in image.starts()
                if token not in programs or _is_another(path, programs[token])
            ]
            gaps += [
                f"{name} was connected to {text}, where another process may read" for text in image.texts(CONNECTED)
            ]
            gaps += [
                f"{name} made the system call {text} by itself"
                for text in image.texts(CALLED)
                if not HARMLESS.search(text)
            ]
            gaps += [f"{name} used {text} in a folder that is not known" for text in image.texts(UNKNOWN)]
            if image.lost or image.is_cut:
                gaps.append(f"{name} made {image.lost or 'some'} notes that are lost")
        return list(dict.fromkeys(gaps))

    def steps(self) -> Observation:
        """Returns what the steps of the build did: without the programs of opforge and ninja that started them.

        The supervisor starts ninja, which starts a shell for each step; what the shell starts is the step's.
        """
        above = {image.token for image in self.images if image.token == ROOT}
        above |= {token for image in self.images if image.token in above for token, _path in image.starts()}
        # A shell that ends with a command becomes that command: its image is another one, with a token of its own.
        above |= {token for image in self.images if image.token in above for token, _path in image.starts()}
        return Observation(tuple(image for image in self.images if image.token not in above))

    def with_shells(self) -> list[str]:
        """Returns the shells and the interpreters that ran: which variables they read is not seen."""
        programs = dict.fromkeys(image.program for image in self.images)
        names = ((path, os.path.basename(path)) for path in programs)
        return [path for path, name in names if name in SHELLS or name.startswith("python")]


def read_notes(folder: str) -> Observation:
    """Returns the notes in a folder. Raises OSError."""
    images = []
    for name in sorted(os.listdir(folder), key=lambda name: name.split(".")[2:]):
        with open(os.path.join(folder, name), "rb") as file:
            head = file.read(HEAD)
            length = int.from_bytes(head[8:16], "little")
            content = file.read(length) if head.startswith(MAGIC) else b""
        images.append(_image(name.partition(".")[0], content, int.from_bytes(head[16:24], "little")))
    return Observation(tuple(images))


def _is_another(path: str, program: str) -> bool:
    """Returns whether the notes of a program that was started are those of another one.

    One without notes, such as a static program, hands its token on to what it starts. A script's are its interpreter's.
    """
    try:
        with open(path, "rb") as file:
            is_program = file.read(len(ELF)) == ELF
    except OSError:
        return False
    return is_program and os.path.realpath(path) != program


def _image(token: str, content: bytes, lost: int) -> Image:
    words = content.split(b"\0")
    is_cut = any(not word for word in words[:-1]) and not lost
    notes = tuple((chr(word[0]), os.fsdecode(word[1:])) for word in words if word)
    program = next((text for kind, text in notes if kind == IMAGE), "")
    return Image(token, program, notes, lost, is_cut)


def plain(paths: Iterable[str]) -> set[str]:
    """Returns the paths without `.` and `..`."""
    return {os.path.normpath(path) for path in paths}
