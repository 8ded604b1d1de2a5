"""Builds that are observed: every construct by which a compiler or a linker reads or looks for something.

In texts and flags, {0} is the folder of the op.
"""

from __future__ import annotations

from typing import Any, NamedTuple

EXPORT = 'extern "C" __attribute__((visibility("default")))'
VALUE = f'#include "value.h"\n{EXPORT} int value() {{ return VALUE; }}\n'
PLAIN = {"plain.cpp": VALUE, "value.h": "#define VALUE 1\n"}
CUDA = """\
#include <cuda_runtime.h>
__global__ void kernel(float* p) { p[threadIdx.x] = 1; }
extern "C" __attribute__((visibility("default"))) int value() { return 1; }
"""
HIP = CUDA.replace("cuda_runtime", "hip/hip_runtime")
BLOB = '__asm__(".section .rodata\\n.incbin \\"{0}/blob.txt\\"\\n.previous\\n");\n'
ASSEMBLED = '__asm__(".include \\"code.inc\\"\\n");\n'
ARCHIVE = ("cc -c -fPIC {0}/part.c -o {0}/part.o", "ar rcs {0}/libpart.a {0}/part.o")
LTO = ("cc -flto -c -fPIC {0}/part.c -o {0}/part.o", "gcc-ar rcs {0}/libpart.a {0}/part.o")
THIN = ("cc -c -fPIC {0}/part.c -o {0}/part.o", "ar rcsT {0}/libpart.a {0}/part.o")
PART = {
    "plain.cpp": f'extern "C" int part();\n{EXPORT} int value() {{ return part(); }}\n',
    "part.c": "int part() { return 1; }\n",
}
NEEDED = (
    "mkdir {0}/needed",
    "cc -shared -x c /dev/null -o {0}/needed/libneeded.so",
    "cc -shared -fPIC {0}/part.c -o {0}/libpart.so -Wl,--no-as-needed -L{0}/needed -lneeded",
)
"""A shared library that needs one in another folder."""
WRAPPER = '#!/bin/sh\nexec g++ "$@"\n'
PLUGIN = "int plugin_is_GPL_compatible;\nint plugin_init(void* info, void* version) { return 0; }\n"


class Case(NamedTuple):
    """One op, how it is built, and what opforge is known not to notice of it."""

    files: dict[str, str] = PLAIN
    attributes: dict[str, Any] = {}
    variables: dict[str, str] = {}
    before: tuple[str, ...] = ()
    """Commands that run first."""
    needs: tuple[str, ...] = ()
    unnoticed: str = ""
    """A pattern of the findings that docs/cache.md admits; all others are failures."""
    excused: tuple[str, ...] = ()
    """Reasons of `observer/reasons.py` that docs/cache.md admits and that this build needs."""
    gaps: str = ""
    """A pattern of why the notes must be incomplete."""
    device: str = ""
    is_quick: bool = False


def compiled(*flags: str, **fields: Any) -> Case:
    """Returns a case with these flags for the compiler."""
    return Case(attributes={"extra_compile_args": [*flags]}, **fields)


def linked(*flags: str, files: dict[str, str] = PART, **fields: Any) -> Case:
    """Returns a case with an archive, and these flags for the linker."""
    fields.setdefault("before", ARCHIVE)
    return Case(files=files, attributes={"extra_link_args": [*flags]}, **fields)


def source(text: str, files: dict[str, str] | None = None, **fields: Any) -> Case:
    """Returns a case whose source begins with this text."""
    return Case(files={"plain.cpp": text + f"{EXPORT} int value() {{ return 1; }}\n", **(files or {})}, **fields)


def by(compiler: str, *needs: str, case: Case | None = None, is_quick: bool = False) -> Case:
    """Returns a case with this CXX."""
    return (case or Case(is_quick=is_quick))._replace(variables={"CXX": compiler}, needs=needs)


def mpi(compiler: str, *libraries: str) -> Case:
    """Returns a case with an MPI's wrapper, and empty libraries in place of its own, which need not be installed."""
    before = tuple(f"cc -shared -x c /dev/null -o {{0}}/lib{name}.so" for name in libraries)
    starts = r"(read|looked for) .*/expr, by .*/(bash|dash)|(read|looked for|listed) .*, by .*/opal_wrapper"
    return Case(variables={"CXX": compiler, "LDFLAGS": "-L{0}"}, before=before, needs=(compiler,), unnoticed=starts)


CLANG = ("clang++",)
CASES: dict[str, Case] = {
    # Compilers, linkers, launchers, wrappers
    "gcc": Case(
        is_quick=True,
        excused=(
            "a part of gcc, as cc1plus is",
            "a program in a folder of gcc's own",
            "a program in a folder of gcc's own or on PATH",
            "what the compiler adds to every library",
            "a precompiled header that appears beside a package's header",
        ),
    ),
    "clang": by("clang++", "clang++", is_quick=True)._replace(
        excused=("a program named for the machine, which clang prefers",)
    ),
    "clang behind a link": Case(
        variables={"CXX": "{0}/bin/g++"},
        before=("mkdir {0}/bin", "ln -s /usr/bin/clang++ {0}/bin/g++"),
        needs=("/usr/bin/clang++",),
    ),
    "gcc and bfd": Case(variables={"LDFLAGS": "-fuse-ld=bfd"}, needs=("ld.bfd",), is_quick=True),
    "gcc and gold": Case(variables={"LDFLAGS": "-fuse-ld=gold"}, needs=("ld.gold",), is_quick=True),
    "gcc and lld": Case(variables={"LDFLAGS": "-fuse-ld=lld"}, needs=("ld.lld",), is_quick=True),
    "gcc and mold": Case(variables={"LDFLAGS": "-fuse-ld=mold"}, needs=("ld.mold",)),
    "a linker that a @file names": Case(
        files={**PLAIN, "flags": "-fuse-ld=lld\n"}, variables={"LDFLAGS": "@{0}/flags"}, needs=("ld.lld",)
    ),
    "clang and lld": Case(variables={"CXX": "clang++", "LDFLAGS": "-fuse-ld=lld"}, needs=("clang++", "ld.lld")),
    "clang and bfd": Case(variables={"CXX": "clang++", "LDFLAGS": "-fuse-ld=bfd"}, needs=("clang++", "ld.bfd")),
    "ccache as CXX": Case(
        variables={"CXX": "ccache g++", "CCACHE_DIR": "{0}/cc"},
        needs=("ccache",),
        is_quick=True,
        excused=("a result that ccache keeps, or its configuration",),
    ),
    "ccache and clang": Case(variables={"CXX": "ccache clang++", "CCACHE_DIR": "{0}/cc"}, needs=("ccache", "clang++")),
    "ccache as launcher": Case(
        variables={"OPFORGE_COMPILER_LAUNCHER": "ccache", "CCACHE_DIR": "{0}/cc"}, needs=("ccache",)
    ),
    "a wrapper": Case(files={**PLAIN, "wrap": WRAPPER}, variables={"CXX": "{0}/wrap"}, before=("chmod 700 {0}/wrap",)),
    "a wrapper that links a library": Case(
        files={**PLAIN, "wrap": '#!/bin/sh\nexec g++ "$@" -lz\n'},
        variables={"CXX": "{0}/wrap", "LDFLAGS": "-L{0}"},
        before=("chmod 700 {0}/wrap",),
    ),
    "a wrapper with a folder of libraries": Case(
        files={**PART, "wrap": '#!/bin/sh\nexec g++ "$@" -L{0}/f -L{0} -L{0}/g -lpart\n'},
        variables={"CXX": "{0}/wrap"},
        before=("chmod 700 {0}/wrap", *ARCHIVE, "mkdir {0}/f"),
    ),
    "a compiler named for its machine": Case(
        variables={"CXX": "x86_64-linux-gnu-g++"}, needs=("x86_64-linux-gnu-g++",)
    ),
    "env as CXX": Case(variables={"CXX": "env -u LANG g++"}),
    "a wrapper that reads a file": Case(
        files={**PLAIN, "wrap": '#!/bin/sh\nexec g++ $(cat {0}/flags) "$@"\n', "flags": "-O1\n"},
        variables={"CXX": "{0}/wrap"},
        before=("chmod 700 {0}/wrap",),
        unnoticed=r"read .*/flags, by .*cat|read .*/(cat|sh|dash|env),.*|(looked for|asked for) .*",
        is_quick=True,
    ),
    "a static wrapper": Case(
        files={
            **PLAIN,
            "wrap.c": '#include <unistd.h>\nint main(int n, char** w) { w[0] = "g++"; execvp("g++", w); }\n',
        },
        variables={"CXX": "{0}/wrap"},
        before=("cc -w -static {0}/wrap.c -o {0}/wrap",),
        gaps=".*/wrap, started by .*, left no notes",
        is_quick=True,
    ),
    "mpicxx of MPICH": mpi("mpicxx.mpich", "mpichcxx", "mpich"),
    "mpicxx of Open MPI": mpi(
        "mpicxx.openmpi", "mpi_cxx", "mpi", "open-rte", "open-pal", "hwloc", "event_core", "event_pthreads"
    ),
    "nvcc": Case(files={"k.cu": CUDA}, device="cuda:sm_80", needs=("nvcc",)),
    "nvcc for two architectures": Case(files={"k.cu": CUDA}, device="cuda:sm_80+sm_90", needs=("nvcc",)),
    "nvcc and a source of the host": Case(
        files={"k.cu": CUDA, "part.cpp": "int host() { return 1; }\n"}, device="cuda:sm_80", needs=("nvcc",)
    ),
    "sources of one stem": Case(
        files={"k.cu": CUDA, "k.cpp": "int host() { return 1; }\n"}, device="cuda:sm_80", needs=("nvcc",)
    ),
    "hipcc": Case(
        files={"k.hip": HIP}, device="hip:gfx90a", needs=("hipcc",), excused=("a module of perl", "a part of ROCm")
    ),
    # Headers
    "a header beside the source": Case(is_quick=True),
    "an include folder": source("#include <h.h>\n", {"f/h.h": ""}, attributes={"include_dirs": ["f"]}),
    "a header in the second folder": source(
        "#include <h.h>\n", {"g/h.h": "", "f/i.h": ""}, attributes={"include_dirs": ["f", "g"]}, is_quick=True
    ),
    "include_next": source(
        "#include <h.h>\n", {"f/h.h": "#include_next <h.h>\n", "g/h.h": ""}, attributes={"include_dirs": ["f", "g"]}
    ),
    "headers of the system": source("#include <vector>\n#include <cstdio>\n#include <omp.h>\n", is_quick=True),
    "CPATH": source("#include <h.h>\n", {"f/h.h": ""}, variables={"CPATH": "{0}/f"}),
    "CPLUS_INCLUDE_PATH": source("#include <h.h>\n", {"f/h.h": ""}, variables={"CPLUS_INCLUDE_PATH": "{0}/f"}),
    "-isystem": source("#include <h.h>\n", {"f/h.h": ""}, attributes={"extra_compile_args": ["-isystem", "{0}/f"]}),
    "-iquote": source('#include "h.h"\n', {"f/h.h": ""}, attributes={"extra_compile_args": ["-iquote", "{0}/f"]}),
    "-idirafter": source("#include <h.h>\n", {"f/h.h": ""}, attributes={"extra_compile_args": ["-idirafter", "{0}/f"]}),
    "-include": compiled("-include", "{0}/first.h", files={**PLAIN, "first.h": ""}, is_quick=True),
    "-imacros": compiled("-imacros", "{0}/first.h", files={**PLAIN, "first.h": "#define X 1\n"}),
    "$SYSROOT": source(
        "#include <h.h>\n",
        {"g/h.h": "", "f/i.h": "", "usr/include/stdc-predef.h": ""},
        unnoticed=r"looked for and not watched: .*/(f/.*\.h|g/stdc-predef\.h|lib|lib/.*), .*",
        attributes={"extra_compile_args": ["--sysroot={0}", "-I$SYSROOT/f", "-I$SYSROOT/g"]},
    ),
    "a header behind a link": source('#include "l/h.h"\n', {"f/h.h": ""}, before=("ln -s f {0}/l",)),
    "equal headers of which gcc lists one": source(
        '#include "f/h.h"\n#include "g/h.h"\n',
        {"f/h.h": "#pragma once\n", "g/h.h": "#pragma once\n"},
        before=("touch -d @1000000000 {0}/f/h.h {0}/g/h.h",),
        is_quick=True,
    ),
    "equal headers": source('#include "f/h.h"\n#include "g/h.h"\n', {"f/h.h": "struct A;\n", "g/h.h": "struct A;\n"}),
    "equal headers by clang": by(
        "clang++",
        "clang++",
        case=source('#include "f/h.h"\n#include "g/h.h"\n', {"f/h.h": "#pragma once\n", "g/h.h": "#pragma once\n"}),
    ),
    "__has_include": source("#if __has_include(<nowhere.h>)\n#endif\n", is_quick=True),
    "__has_include of what is there": source('#if __has_include("h.h")\n#endif\n', {"h.h": ""}),
    "__has_include by a macro": source("#define NAME <nowhere.h>\n#if __has_include(NAME)\n#endif\n"),
    "__has_include by clang": by("clang++", "clang++", case=source("#if __has_include(<nowhere.h>)\n#endif\n")),
    "__has_include that is pasted": source(
        "#define PASTE(a, b) a##b\n#if PASTE(__has_, include)(<nowhere.h>)\n#endif\n",
        unnoticed=r"looked for and not watched: .*/nowhere\.h, .*",
        is_quick=True,
    ),
    "__has_include in a @file": source(
        "#if ASKS\n#endif\n",
        {"flags": "-DASKS=__has_include(NAME) -DNAME=<nowhere.h>\n"},
        attributes={"extra_compile_args": ["@{0}/flags"]},
    ),
    "__has_include by a macro that changes its form": source(
        "#define NAME <nowhere.h>\n#define ASKS(name) __has_include(name)\n#if ASKS(NAME)\n#endif\n"
        "#undef ASKS\n#define ASKS(one, two) 0\n",
        unnoticed=r"looked for and not watched: .*/nowhere\.h, .*",
    ),
    "__DATE__": source("const char* date = __DATE__;\n"),
    "a precompiled header": source(
        '#include "h.h"\n',
        {"h.h": "#define H 1\n"},
        before=("g++ -O3 -fPIC -x c++-header {0}/h.h",),
    ),
    "a module of C++20": Case(
        files={
            "plain.cpp": f"import part;\n{EXPORT} int value() {{ return part(); }}\n",
            "part.cppm": "export module part;\nexport int part() { return 1; }\n",
            "map": "part {0}/part.gcm\n",
        },
        attributes={"extra_compile_args": ["-std=c++20", "-fmodules-ts", "-fmodule-mapper={0}/map"]},
        before=("g++ -O3 -fPIC -std=c++20 -fmodules-ts -fmodule-mapper={0}/map -x c++ -c {0}/part.cppm -o {0}/part.o",),
    ),
    "several sources": Case(files={f"{name}.cpp": f"int {name}() {{ return 1; }}\n" for name in "abcde"} | PLAIN),
    # What the assembler reads
    ".incbin": source(BLOB, {"blob.txt": "1"}, is_quick=True),
    ".incbin by clang": by("clang++", "clang++", case=source(BLOB, {"blob.txt": "1"})),
    ".include": source(ASSEMBLED, {"code.inc": "\n"}, attributes={"extra_compile_args": ["-Wa,-I,{0}"]}),
    "an assembler source": Case(files={**PLAIN, "code.S": '#include "code.h"\n', "code.h": ".text\n"}),
    # Files in flags
    "@file": compiled("@{0}/flags", files={**PLAIN, "flags": "-DX=1\n"}, is_quick=True),
    "@file in @file": compiled("@{0}/flags", files={**PLAIN, "flags": "@{0}/more\n", "more": "-DX=1\n"}, is_quick=True),
    "-specs": compiled("-specs={0}/own.specs", files={**PLAIN, "own.specs": "*cc1plus:\n+ -DX=1\n\n"}, is_quick=True),
    "a plugin by its path": compiled(
        "-fplugin={0}/plugin.so",
        files={**PLAIN, "plugin.c": PLUGIN},
        before=("cc -w -shared -fPIC {0}/plugin.c -o {0}/plugin.so",),
        is_quick=True,
    ),
    "specs that name specs": compiled(
        "-specs={0}/own.specs",
        files={**PLAIN, "own.specs": "%include <{0}/more.specs>\n", "more.specs": "*cc1plus:\n+ -DX=1\n\n"},
    ),
    "specs that ask for a variable": compiled(
        "-specs={0}/own.specs",
        files={
            **PLAIN,
            "own.specs": "*cc1plus:\n+ -include%:getenv(OPFORGE_OBSERVED_FOLDER /x.h)\n\n",
            "one/x.h": "#define X 1\n",
        },
    )._replace(variables={"OPFORGE_OBSERVED_FOLDER": "{0}/one"}),
    "specs that ask for a file": compiled(
        "-specs={0}/own.specs",
        files={
            **PLAIN,
            "own.specs": "%include_noerr <{0}/none.specs>\n%include_noerr <none.specs>\n*cc1plus:\n+ -DX=1"
            " %:if-exists({0}/extra.o) %:if-exists-else({0}/more.o -DY) -isystem %:find-file(opforge.o)"
            " -isystem opforge_more.o%s %:if-exists(%R{0}/third.o)\n\n",
        },
    ),
    "specs that put together the name of a file": compiled(
        "-specs={0}/own.specs",
        files={**PLAIN, "own.specs": "*cc1plus:\n+ -DX=1 %:if-exists(%:getenv(OPFORGE_OBSERVED_FOLDER /extra.o))\n\n"},
        unnoticed=r"looked for and not watched: .*/extra\.o, .*",
    )._replace(variables={"OPFORGE_OBSERVED_FOLDER": "{0}"}),
    "a plugin by its bare name": compiled(
        "-iplugindir={0}",
        "-fplugin=plugin",
        files={**PLAIN, "plugin.c": PLUGIN},
        before=("cc -w -shared -fPIC {0}/plugin.c -o {0}/plugin.so",),
    ),
    "--config of clang": by(
        "clang++", "clang++", case=compiled("--config", "{0}/own.cfg", files={**PLAIN, "own.cfg": "-DX=1\n"})
    ),
    "an overlay of clang": by(
        "clang++",
        "clang++",
        case=Case(
            files={
                "plain.cpp": VALUE,
                "real.txt": "#define VALUE 1\n",
                "overlay": "{'version': 0, 'roots': [{'type': 'file', 'name': '{0}/value.h',"
                " 'external-contents': '{0}/real.txt'}]}\n",
            },
            attributes={"extra_compile_args": ["-ivfsoverlay{0}/overlay"]},
        ),
    ),
    "a profile": compiled(
        "-fprofile-use={0}/p.gcda", "-Wno-coverage-mismatch", "-Wno-missing-profile", files={**PLAIN, "p.gcda": ""}
    ),
    "-finput-charset": compiled("-finput-charset=ISO-8859-1"),
    "-wrapper": compiled(
        "-wrapper", "{0}/wrap", files={**PLAIN, "wrap": '#!/bin/sh\nexec "$@"\n'}, before=("chmod 700 {0}/wrap",)
    ),
    "COMPILER_PATH": Case(
        variables={"COMPILER_PATH": "{0}/tools"}, before=("mkdir {0}/tools",), unnoticed=r"looked for .*/tools/.*"
    ),
    "--sysroot": compiled("--sysroot=/"),
    "clang's list of what no sanitizer checks": by(
        "clang++",
        "clang++",
        case=compiled(
            "-fsanitize=undefined",
            "-fsanitize-trap=undefined",
            "-fsanitize-ignorelist={0}/list",
            files={**PLAIN, "list": "src:none\n"},
        ),
    ),
    # Links
    "an archive": linked("{0}/libpart.a", is_quick=True),
    "-l of an archive": linked("-L{0}", "-lpart", is_quick=True),
    "-l by LIBRARY_PATH": linked(
        "-lpart",
        variables={"LIBRARY_PATH": "{0}"},
        excused=("a folder of another kind of libraries, beside one of LIBRARY_PATH",),
    ),
    "-l in the second folder": linked("-L{0}/f", "-L{0}", "-lpart", before=(*ARCHIVE, "mkdir {0}/f")),
    "an archive by clang": linked("-L{0}", "-lpart", variables={"CXX": "clang++"}, needs=CLANG),
    "an archive by bfd": linked(
        "-L{0}", "-lpart", variables={"LDFLAGS": "-fuse-ld=bfd"}, needs=("ld.bfd",), is_quick=True
    ),
    "an archive by gold": linked("-L{0}", "-lpart", variables={"LDFLAGS": "-fuse-ld=gold"}, needs=("ld.gold",)),
    "an archive by lld": linked("-L{0}", "-lpart", variables={"LDFLAGS": "-fuse-ld=lld"}, needs=("ld.lld",)),
    "a thin archive": linked("{0}/libpart.a", before=THIN, is_quick=True),
    "a thin archive by bfd": linked(
        "{0}/libpart.a", before=THIN, variables={"LDFLAGS": "-fuse-ld=bfd"}, needs=("ld.bfd",)
    ),
    "LTO": compiled("-flto", variables={"LDFLAGS": "-flto -fuse-ld=bfd"}, needs=("ld.bfd",)),
    "LTO with an archive": linked(
        "-flto", "{0}/libpart.a", before=LTO, variables={"LDFLAGS": "-fuse-ld=bfd"}, needs=("ld.bfd",)
    ),
    "a version script": linked(
        "{0}/libpart.a", "-Wl,--version-script={0}/v", files={**PART, "v": "{ global: value; local: *; };\n"}
    ),
    "a linker script": linked(
        "{0}/all.ld",
        files={**PART, "all.ld": "INPUT({0}/libpart.a)\n"},
        variables={"LDFLAGS": "-fuse-ld=bfd"},
        needs=("ld.bfd",),
    ),
    "a linker script in place of a library": linked(
        "-L{0}", "-lall", files={**PART, "liball.so": "INPUT(-lpart)\n"}, is_quick=True
    ),
    "a linker script that includes one": linked(
        "{0}/all.ld",
        files={**PART, "all.ld": "INCLUDE {0}/more.ld\n", "more.ld": "INPUT({0}/libpart.a)\n"},
        variables={"LDFLAGS": "-fuse-ld=bfd"},
        needs=("ld.bfd",),
    ),
    "a linker script that includes one, by lld": linked(
        "{0}/all.ld",
        files={**PART, "all.ld": "INCLUDE {0}/more.ld\n", "more.ld": "INPUT({0}/libpart.a)\n"},
        variables={"LDFLAGS": "-fuse-ld=lld"},
        needs=("ld.lld",),
    ),
    "a library of the system": linked("-lm", "-ldl", "-lz", files=PLAIN, before=()),
    "a shared library": linked("-L{0}", "-lpart", before=("cc -shared -fPIC {0}/part.c -o {0}/libpart.so",)),
    "a shared library that needs another": linked(
        "-L{0}", "-lpart", before=NEEDED, variables={"LDFLAGS": "-fuse-ld=bfd"}, needs=("ld.bfd",)
    ),
    "a shared library that needs another, by lld": linked(
        "-L{0}", "-lpart", before=NEEDED, variables={"LDFLAGS": "-fuse-ld=lld"}, needs=("ld.lld",)
    ),
    "a shared library that needs another, with -rpath-link": linked(
        *("-L{0}", "-lpart", "-Wl,-rpath-link,{0}/f:{0}/needed"),
        before=NEEDED,
        variables={"LDFLAGS": "-fuse-ld=bfd"},
        needs=("ld.bfd",),
    ),
    "OpenMP": Case(attributes={"extra_compile_args": ["-fopenmp"], "extra_link_args": ["-fopenmp"]}),
    "a sanitizer": Case(
        attributes={"extra_compile_args": ["-fsanitize=address"], "extra_link_args": ["-fsanitize=address"]}
    ),
    "coverage": Case(attributes={"extra_compile_args": ["--coverage"], "extra_link_args": ["--coverage"]}),
    # What observed builds have shown: see tests/compile/observer/test_repairs.py
    "debugging information in files of its own": compiled("-gsplit-dwarf"),
    "a pragma that compares times": source('#pragma GCC dependency "parse.y"\n', {"parse.y": "x\n"}, is_quick=True),
    "a pragma that compares times, by clang": by(
        "clang++", "clang++", case=source('#pragma GCC dependency "parse.y"\n', {"parse.y": "x\n"})
    ),
    "modules of clang": by(
        "clang++",
        "clang++",
        case=Case(
            files={
                "plain.cpp": f"#include <m.h>\n{EXPORT} int value() {{ return M; }}\n",
                "f/m.h": "#define M 1\n",
                "f/module.modulemap": 'module m { header "m.h" export * }\n',
            },
            attributes={
                "include_dirs": ["f"],
                "extra_compile_args": ["-fmodules", "-fmodules-cache-path={0}/modules"],
            },
            excused=("clang's cache of modules, which it compares with their sources",),
        ),
    ),
    "CXX_MODULE_MAPPER": compiled(
        "-std=c++20", "-fmodules-ts", variables={"CXX_MODULE_MAPPER": "{0}/map"}, files={**PLAIN, "map": "p p.gcm\n"}
    ),
    "-B": compiled("-B{0}/tools", before=("mkdir {0}/tools",), is_quick=True),
    "-B in two words": compiled("-B", "{0}/tools/", before=("mkdir {0}/tools",)),
    "-B of the beginning of a name": compiled("-B{0}/own-"),
    "-B of a link": Case(attributes={"extra_link_args": ["-B{0}/tools"]}, before=("mkdir {0}/tools",)),
    "GCC_EXEC_PREFIX": Case(variables={"GCC_EXEC_PREFIX": "/usr/lib/gcc/"}, needs=("/usr/bin/g++",)),
    "LTO by several processes": compiled(
        "-flto=2", variables={"LDFLAGS": "-flto=2 -fuse-ld=bfd"}, needs=("ld.bfd", "make")
    ),
    "LTO by clang and bfd": compiled(
        "-flto", variables={"CXX": "clang++", "LDFLAGS": "-flto -fuse-ld=bfd"}, needs=("clang++", "ld.bfd")
    ),
    "LTO by clang and lld": compiled(
        "-flto=thin", variables={"CXX": "clang++", "LDFLAGS": "-flto=thin -fuse-ld=lld"}, needs=("clang++", "ld.lld")
    ),
    "LTO by mold": compiled("-flto", variables={"LDFLAGS": "-flto -fuse-ld=mold"}, needs=("ld.mold",)),
    "libc++": by(
        "clang++",
        "clang++",
        case=Case(attributes={"extra_compile_args": ["-stdlib=libc++"], "extra_link_args": ["-nostdlib++"]}),
    ),
    "-march=native": compiled("-march=native"),
    "__has_include_next": source(
        "#include <h.h>\n",
        {"f/h.h": "#if __has_include_next(<h.h>)\n#endif\n", "g/i.h": ""},
        attributes={"include_dirs": ["f", "g"]},
    ),
    "__has_include of a path": source('#if __has_include("{0}/nowhere.h") || __has_include("../nowhere.h")\n#endif\n'),
    "-include of a bare name": compiled(
        "-include", "first.h", "-I{0}/f", "-I{0}/g", files={**PLAIN, "g/first.h": "", "f/x.h": ""}
    ),
    ".include by clang": by(
        "clang++",
        "clang++",
        case=source(ASSEMBLED, {"code.inc": "\n"}, attributes={"extra_compile_args": ["-Wa,-I,{0}"]}),
    ),
    "a plugin of clang": by(
        "clang++",
        "clang++",
        case=compiled(
            *("-Xclang", "-load", "-Xclang", "{0}/libp.so"),
            files={**PLAIN, "p.c": "int p;\n"},
            before=("cc -shared -fPIC {0}/p.c -o {0}/libp.so",),
        ),
    ),
    "-l:": linked("-L{0}/f", "-L{0}", "-l:libpart.a", before=(*ARCHIVE, "mkdir {0}/f")),
    "-Bstatic": linked("-L{0}/f", "-L{0}", "-Wl,-Bstatic,-lpart,-Bdynamic", before=(*ARCHIVE, "mkdir {0}/f")),
    "a linker script with folders": linked(
        "{0}/all.ld",
        files={**PART, "all.ld": "SEARCH_DIR({0}/f)\nSEARCH_DIR({0})\nINPUT(-lpart)\n"},
        before=(*ARCHIVE, "mkdir {0}/f"),
        variables={"LDFLAGS": "-fuse-ld=bfd"},
        needs=("ld.bfd",),
        unnoticed=r"looked for and not watched: /(usr|lib).*/libpart\.(a|so), .*",
    ),
    "a linker script by its bare name": linked(
        *("-L{0}/f", "-L{0}", "-Wl,-T,own.ld", "{0}/libpart.a"),
        files={**PART, "own.ld": "SECTIONS { .own : { *(.own*) } } INSERT BEFORE .data;\n"},
        before=(*ARCHIVE, "mkdir {0}/f"),
        variables={"LDFLAGS": "-fuse-ld=bfd"},
        needs=("ld.bfd",),
    ),
    "a version script by its bare name": linked(
        *("-L{0}/f", "-L{0}", "-Wl,--version-script=v", "{0}/libpart.a"),
        files={**PART, "v": "{ global: value; local: *; };\n"},
        before=(*ARCHIVE, "mkdir {0}/f"),
        variables={"LDFLAGS": "-fuse-ld=bfd"},
        needs=("ld.bfd",),
    ),
    "a shared library that needs another, by LD_LIBRARY_PATH": linked(
        *("-L{0}", "-lpart"),
        before=NEEDED,
        variables={"LDFLAGS": "-fuse-ld=bfd", "LD_LIBRARY_PATH": "{0}/f:{0}/needed"},
        needs=("ld.bfd",),
    ),
    "a file as data": linked(
        "{0}/libpart.a", "-Wl,-b,binary", "{0}/blob.txt", "-Wl,-b,elf64-x86-64", files={**PART, "blob.txt": "1"}
    ),
    "a library that a source names": by(
        *("clang++", "clang++", "ld.lld"),
        case=Case(
            files={**PART, "plain.cpp": '#pragma comment(lib, "part")\n' + PART["plain.cpp"]},
            attributes={"extra_link_args": ["-L{0}/f", "-L{0}", "-fuse-ld=lld"]},
            before=(*ARCHIVE, "mkdir {0}/f"),
        ),
    ),
    "an order of symbols": linked(
        "{0}/libpart.a",
        "-Wl,--symbol-ordering-file={0}/o",
        files={**PART, "o": "value\n"},
        variables={"LDFLAGS": "-fuse-ld=lld"},
        needs=("ld.lld",),
    ),
    "a launcher that reads a file": Case(
        files={**PLAIN, "launch": '#!/bin/sh\nexec "$@" -DX=$(cat {0}/flags)\n', "flags": "1\n"},
        before=("chmod 700 {0}/launch",),
        variables={"OPFORGE_COMPILER_LAUNCHER": "{0}/launch"},
        unnoticed=r"read .*/(flags|launch|cat), .*|looked for .*/cat, .*",
    ),
    "a static C++ library": linked("-static-libstdc++", "-static-libgcc", files=PLAIN, before=()),
}

ADMITTED: dict[str, tuple[str, ...]] = {
    "a file that appears later and that an op's specs ask for": ("specs that put together the name of a file",),
    "a header that belongs to a wheel or to a package": (
        "tests/compile/inputs/test_package_files.py::"
        "test_a_packages_header_that_is_edited_in_place_is_compared_on_request",
    ),
    "an edit of opforge's own installed files": (
        "tests/unit/builders/lookup/test_own_code.py::test_the_list_of_a_wheel_stands_for_its_files",
    ),
    "a header outside of the op's folders that an operator asks for": (
        "__has_include that is pasted",
        "__has_include by a macro that changes its form",
    ),
    "a new time alone": (
        "tests/compile/inputs/test_equal_headers.py::test_a_new_time_alone_of_one_of_two_equal_headers_builds_nothing",
    ),
    "files that appear in a folder which the compiler searches only": ("$SYSROOT", "gcc"),
    "a second write through a shared memory mapping": (
        "tests/compile/inputs/test_memory_mappings.py::test_a_second_write_is_noticed_by_its_time_or_on_request",
    ),
    "a program of the compiler besides": ("gcc", "clang", "hipcc", "COMPILER_PATH"),
    "the files that the compiler links into every library": ("gcc", "-l by LIBRARY_PATH"),
    "the configuration of ccache": ("ccache as CXX",),
    "a library that appears in a folder which only the linker knows": ("a linker script with folders",),
    "the compiler launcher": ("a launcher that reads a file",),
    "the modules that clang stores": ("modules of clang",),
    "for an entry of a layer or a wheel": (
        "tests/compile/shipping/test_prebuilt.py::test_a_file_of_the_makers_machine_that_a_flag_names_is_not_compared",
    ),
    "files that your own compiler wrapper reads": (
        "a wrapper that reads a file",
        "mpicxx of MPICH",
        "mpicxx of Open MPI",
    ),
}
"""How each line of docs/cache.md on what is not noticed begins -> the cases and the tests that show it."""
