"""Everything that a load depends on and that the model changes: files, compilers, declaration, variables, stores."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

from support.sample_ops import EXPORT

COMPILERS = [path for name in ("g++", "clang++-14", "clang++-15", "clang++") if (path := shutil.which(name))]
COMPILERS = list({os.path.realpath(path): path for path in reversed(COMPILERS)}.values())[::-1]
"""The real compilers. With one alone, scripts that start it with other flags are the others."""
PLACES = ("op", "mine/include", "first/include", "early", "late", "cpath", "cpath2", "flags", "")
"""Where a header may lie, below the world's folder."""
CHANGEABLE = ("op", "mine", "first", "early", "late", "cpath", "cpath2", "flags", "libs", "libs2", "bin", "deep.h")
"""What the op and the machine have, below the world's folder: the rest is the stores', the user's and temporary."""
FEATURES = ("dated", "linked", "asked", "quoted", "embedded", "computed")
SOURCE = """\
#include "value.h"
#include <inner.h>
#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
#if __has_include(<optional.h>)
#include <optional.h>
#else
#define OPTIONAL "absent"
#endif
#ifdef ASKED
#if __has_include(ASKED)
#define ANSWER "yes"
#endif
#endif
#ifndef ANSWER
#define ANSWER "no"
#endif
#ifdef SYSTEM
#include <system.h>
#else
#define SYSTEM_HEADER "absent"
#endif
#ifdef __clang__
#define CXX "clang" TEXT_OF(__clang_major__)
#else
#define CXX "gcc"
#endif
"""
VALUE = """\
{export} const char* value() {{
  return "[src={number} value=" VALUE " inner=" INNER " optional=" OPTIONAL " answer=" ANSWER " deep={deep}"
    " macro=" TEXT_OF(MACRO) " flag=" TEXT_OF(FLAG) " cxxflags=" TEXT_OF(CXXFLAGS) " cppflags=" TEXT_OF(CPPFLAGS)
    " system=" SYSTEM_HEADER " specs=" TEXT_OF(SPECS) " cxx=" CXX " wrapper=" TEXT_OF(WRAPPER)
    " copies=" TEXT_OF(COPIED) " date={date}]";
}}
"""
COPY = """\
#pragma once
#ifdef COPIED
#undef COPIED
#define COPIED 2  // {number}
#else
#define COPIED 1
#endif
"""
LINKED = 'extern "C" const char* archived();\n{export} const char* linked() {{ return archived(); }}\n'
EMBEDDED = r"""
asm(".section .rodata\n.globl model_blob\nmodel_blob: .incbin \"" BLOB "\"\n.byte 0\n.previous\n");
extern "C" __attribute__((visibility("hidden"))) const char model_blob[];
{export} const char* embedded() {{ return model_blob; }}
"""


def source_text(number: int, features: frozenset[str]) -> str:
    """Returns the op's source. Its functions return texts that hold everything that decides the library's content."""
    macro = "#define ASKED <wanted.h>\n" if "asked" in features else ""
    quoted = '#include "sub/below/near.h"\n' if "quoted" in features else ""
    parts = {
        "export": EXPORT,
        "number": number,
        "deep": '" DEEP "' if quoted else "",
        "date": '" __DATE__ "' if "dated" in features else "",
    }
    text = macro + quoted + SOURCE + VALUE.format(**parts)
    if "computed" in features:
        # gcc reads and lists the first alone of two equal headers.
        includes = "".join(f"#include HEADER_OF({name})\n" for name in ("inner", "copy1", "copy2"))
        text = text.replace("#include <inner.h>\n", f"#define HEADER_OF(x) <x.h>\n{includes}")
    text += LINKED.format(**parts) if "linked" in features else ""
    return text + (EMBEDDED.format(**parts) if "embedded" in features else "")


class World:
    """A folder with an op, headers, archives, compilers and stores; the declaration and the variables."""

    def __init__(self, root: str) -> None:
        self.root = root
        for name in ("op/sub/below", "mine/include", "first", "early", "late", "cpath", "cpath2", "flags"):
            os.makedirs(self.path(name))
        for name in ("libs", "libs2", "bin", "alternatives", "profiles/a/bin", "profiles/b/bin", "temporary"):
            os.makedirs(self.path(name))
        os.mkdir(self.path("home"), 0o700)
        self.changes = 0
        self.write("op/op.cpp", source_text(1, frozenset()))
        self.features: frozenset[str] = frozenset()
        self.write("mine/part.cpp", self.part_text("mine", 1))
        self.write("op/sub/below/near.h", '#include "../deep.h"\n')
        self.write("deep.h", '#define DEEP "outer"\n')
        self.write("op/value.h", self.header_text("op", "value.h", 1))
        self.write("late/inner.h", self.header_text("late", "inner.h", 1))
        self.write("mine/include/inner.h", self.header_text("mine", "inner.h", 1))
        self.write_copies(1, 1)
        for place in ("late", "mine/include"):
            self.write(f"{place}/blob.txt", f"<blob={place}1>")
        os.symlink(COMPILERS[0], self.path("alternatives/c++"))
        os.symlink("../alternatives/c++", self.path("bin/g++"))
        for profile, compiler in (("a", COMPILERS[0]), ("b", COMPILERS[-1])):
            os.symlink(compiler, self.path(f"profiles/{profile}/bin/g++"))
        os.symlink("profiles/a", self.path("current"))
        os.symlink("early", self.path("linked"))
        self.store, self.layers, self.machine, self.clock_ahead = "store0", (), "a", True
        self.read_only: set[str] = set()
        self.appeared: set[str] = set()
        self.holder, self.containers = "class", "plain"
        """Where macros and flags are declared, and of which classes their containers are."""
        self.attributes = {
            "sources": ["op.cpp"],
            "define_macros": {"MACRO": "1", "BLOB": '"blob.txt"'},
            "extra_compile_args": [],
            "extra_link_args": [],
            "include_dirs": ["early", "late"],
            "kernel_roots": ["mine"],
            "libraries": [],
            "version": "1",
        }
        self.variables: dict[str, str] = {"CXX": self.path("bin/g++")}

    def path(self, name: str) -> str:
        return os.path.join(self.root, name) if name else self.root

    def header_text(self, place: str, name: str, number: int) -> str:
        names = {"value.h": "VALUE", "inner.h": "INNER", "optional.h": "OPTIONAL", "deep.h": "DEEP"}
        macro = {**names, "system.h": "SYSTEM_HEADER"}.get(name)
        return f'#define {macro} "{place or "root"}{number}"\n' if macro else ""

    def write_copies(self, *numbers: int) -> None:
        """Writes two headers, of one time if they are equal."""
        at = "long ago" if len({*numbers}) == 1 else "now"
        for name, number in zip(("copy1", "copy2"), numbers, strict=True):
            self.write(f"mine/include/{name}.h", COPY.format(number=number), at=at)

    def part_text(self, place: str, number: int) -> str:
        return f'{EXPORT} const char* part() {{ return "(part={place}{number})"; }}\n'

    def write(self, name: str, text: str | bytes, how: str = "replace", at: str = "now") -> None:
        """Writes a file, in place or by a rename, with a new time, the time it had, or one long ago."""
        self.next_tick()
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        before = os.stat(path) if os.path.exists(path) else None
        written = path if how == "in place" else f"{path}.new"
        with open(written, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        if at == "long ago" or (at == "kept" and before):
            at_ns = before.st_mtime_ns if at == "kept" and before else 10**18
            os.utime(written, ns=(at_ns, at_ns))
        if written != path:
            os.replace(written, path)

    def read(self, name: str) -> str:
        """Returns the text of a file; empty if there is none."""
        if not os.path.isfile(self.path(name)):
            return ""
        with open(self.path(name)) as file:
            return file.read()

    def functions(self) -> list[str]:
        """Returns the names of the functions that the op's sources define."""
        part = ["part"] if "part.cpp" in self.attributes["sources"] else []
        return ["value", *(name for name in ("linked", "embedded") if name in self.features), *part]

    def asked_for(self, answer: dict) -> list[tuple[str, str]]:
        """Returns the names below the world's folder that an observed build read or looked for, as (kind, name).

        Files of the user and of the stores, and what lies behind a link to the system, are left out; so are absent
        programs, which cannot just appear.
        """
        names = [(kind, os.path.relpath(path, self.root)) for kind, path in answer.get("asked_for", ())]
        own = [(kind, name) for kind, name in names if name.partition("/")[0] in CHANGEABLE]
        return [
            (kind, name)
            for kind, name in own
            if (
                not name.startswith("bin/")
                if kind == "looked for"
                else os.path.realpath(self.path(name)).startswith(f"{self.root}/")
            )
        ]

    def add_a_line(self, name: str, how: str, at: str) -> None:
        """Adds an empty line to a file, or to the one that a link leads to: to a compiler it stays the same."""
        path = os.path.realpath(self.path(name))
        mode = os.stat(path).st_mode & 0o777
        with open(path, "rb") as file:
            content = file.read()
        self.write(os.path.relpath(path, self.root), content + b"\n", how, at)
        os.chmod(path, mode)

    def let_appear(self, name: str, how: str, at: str) -> None:
        """Makes an empty file, or a blob of another content, until it is removed."""
        self.write(name, "<blob=new>" if name.endswith("blob.txt") else "", how, at)
        self.appeared.add(name)

    def write_archive(self, folder: str, number: int, how: str, at: str) -> None:
        """Writes a static archive whose function returns a text with the folder and the number."""
        built = self.path("temporary/archived")
        text = f'extern "C" const char* archived() {{ return "{{linked={folder}{number}}}"; }}'
        if not os.path.exists(f"{built}-{folder}{number}.a"):
            command = [COMPILERS[0], "-x", "c++", "-fPIC", "-c", "-", "-o", f"{built}.o"]
            subprocess.run(command, input=text, text=True, check=True)
            subprocess.run(["ar", "rcsD", f"{built}-{folder}{number}.a", f"{built}.o"], check=True)
        with open(f"{built}-{folder}{number}.a", "rb") as file:
            self.write(f"{folder}/libmodel.a", file.read(), how, at)

    def next_tick(self) -> None:
        """Waits until the file system's clock has advanced: two changes within a tick could have the same stamp."""
        self.changes += 1
        probe = os.path.join(self.root, "temporary", "tick")
        with open(probe, "wb"):
            pass
        before = os.stat(probe).st_ctime_ns
        while True:
            os.utime(probe)
            if os.stat(probe).st_ctime_ns > before:
                return
            time.sleep(0.0005)

    def remove(self, name: str) -> None:
        self.next_tick()
        self.appeared.discard(name)
        if os.path.lexists(self.path(name)):
            os.unlink(self.path(name))

    def link(self, name: str, target: str) -> None:
        """Points a link at another file, as update-alternatives does."""
        if os.path.islink(self.path(name)) and os.readlink(self.path(name)) == target:
            return
        self.next_tick()
        temporary = self.path(f"{name}.new")
        os.symlink(target, temporary)
        os.replace(temporary, self.path(name))

    def script(self, number: int) -> str:
        """Returns the text of a wrapper that changes what the compiler does, the last of them by a variable."""
        flag = f"-DWRAPPER={number}" if number < 3 else "$OMPI_MODEL"
        return f'#!/bin/sh\nexec {COMPILERS[0]} {flag} "$@"\n'

    def write_script(self, name: str, number: int, how: str) -> None:
        path = self.path(name)
        if os.path.islink(path):
            os.unlink(path)
        self.write(name, self.script(number), how)
        os.chmod(path, 0o755)

    def environment(self) -> dict[str, str]:
        """Returns the whole environment of a load."""
        return {
            "PATH": f"{self.path('bin')}:/usr/local/bin:/usr/bin:/bin",
            "HOME": self.path("home"),
            "XDG_CACHE_HOME": self.path("home/.cache"),
            "TMPDIR": self.path("temporary"),
            "OPFORGE_CACHE_DIR": self.path(self.store),
            "OPFORGE_CACHE_LAYERS": ":".join(self.path(layer) for layer in self.layers),
            "OPFORGE_JOBS": "1",
            **self.variables,
        }

    def state(self) -> str:
        """Returns a text that differs if anything differs that was changed since it was last the same."""
        chosen = (self.store, self.layers, self.machine, self.clock_ahead, sorted(self.read_only), self.changes)
        chosen += (self.holder, self.containers)
        return repr((chosen, self.attributes, self.environment()))

    def declaration(self) -> dict[str, object]:
        """Returns the attributes of the builder, with the paths of folders."""
        return {
            **self.attributes,
            "include_dirs": [self.path(name) for name in self.attributes["include_dirs"]],
            "kernel_roots": [(name, self.path(name)) for name in self.attributes["kernel_roots"]],
        }

    def copy_store(self, source: str, target: str) -> None:
        """Replaces a store by a copy of another: all times are kept, and the files are new ones."""
        self.set_read_only(target, False)
        shutil.rmtree(self.path(target), ignore_errors=True)
        if os.path.isdir(self.path(source)):
            shutil.copytree(self.path(source), self.path(target), symlinks=True)
            if source in self.read_only:
                self.read_only.add(target)
                self.set_read_only(target, False)

    def set_read_only(self, store: str, read_only: bool) -> None:
        """Sets whether the folders of a store can be written by who loads."""
        if read_only == (store in self.read_only) or not os.path.isdir(self.path(store)):
            return
        for folder, _folders, _files in os.walk(self.path(store)):
            os.chmod(folder, 0o500 if read_only else 0o700)
        (self.read_only.add if read_only else self.read_only.discard)(store)

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
