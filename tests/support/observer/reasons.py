"""What a build may ask for without being an input of it, each with the reason."""

from __future__ import annotations

import os
import re
from typing import NamedTuple


class Reason(NamedTuple):
    """Some questions of some programs, and why their answers are no inputs. Patterns match from begin to end."""

    kind: str
    """`read`, `looked for`, `listed` or `variable`; several are joined by commas."""
    name: str
    program: str
    """The name of the program without its folder."""
    text: str


GCC = r"(cc1plus|cc1|lto1|lto-wrapper|collect2|.*g\+\+.*|.*gcc.*|cpp)"
CLANG = r"(clang.*|ld\.lld|lld|zig)"
LINKER = r"(.*ld(\.\w+)?|mold|lld|collect2)"
SHELL = r"(dash|bash|sh|env)"
ANY = ".*"
OWN = "the compiler's own"
REASONS = (
    Reason("read,looked for,listed", r"/(proc|sys|dev)(/.*)?", ANY, "a file of the machine that the program runs on"),
    Reason(
        "read,looked for", r"/etc/(localtime|malloc\.conf|passwd|group|nsswitch\.conf)", ANY, "the user or the clock"
    ),
    Reason("read,looked for", r".*/(locale|locale-langpack|gconv|terminfo)/.*", ANY, "the language of messages"),
    Reason("read,looked for", r".*/openssl\.cnf|.*/ssl/.*", "mold", "the settings of a library for digests"),
    Reason("looked for", r".*\.(gch|pch|pth)", ANY, "a precompiled header that appears beside a package's header"),
    # Places of compilers themselves
    Reason(
        "read",
        r".*/(cc1|collect2|lto-wrapper|lto1|liblto_plugin\.so|lib(gomp|sanitizer)\.spec)",
        GCC + "|" + LINKER,
        "a part of gcc, as cc1plus is",
    ),
    Reason("looked for", r".*/(gnm|gstrip|nm|strip)", "collect2", "collect2 looks for it and does not start it"),
    Reason(
        "looked for",
        r".*/(collect-ld|real-ld|ld(\.\w+)?|g\+\+|gcc)",
        "collect2",
        "a program in a folder of gcc's own or on PATH",
    ),
    Reason("looked for", r".*/([\w.-]+-)?(as|cc1plus|collect2|objcopy)", GCC, "a program in a folder of gcc's own"),
    Reason("looked for", r"/usr/[\w-]+-linux-gnu\w*(/.*)?", GCC + "|" + CLANG, "a folder for cross compilers"),
    Reason(
        "looked for",
        r"/(usr/)?lib(32|64|x32)?(/gcc)?(/[\w-]+-linux-gnu|/\d+|/lib)+(/(specs|lto1))?",
        GCC,
        "a folder of gcc's own",
    ),
    Reason("looked for,read", r".*/crt\w*\.o", GCC + "|" + CLANG, "what the compiler adds to every library"),
    Reason(
        "looked for",
        r".*/lib(c|m|gcc|gcc_s|gcc_eh|stdc\+\+|dl|rt|pthread|atomic|quadmath|cudart_static)(_nonshared)?\.(a|so(\.\d+)?)",
        LINKER,
        "what the compiler adds to every library",
    ),
    Reason(
        "looked for",
        r".*/([\w]+-[\w]+-linux-gnu-[\w.-]+|clang-offload-bundler)",
        CLANG,
        "a program named for the machine, which clang prefers",
    ),
    Reason("looked for,listed", r"/usr/lib(32|64|x32)?(/gcc(-cross)?(/.*)?|x32)?", CLANG, "where clang looks for gcc"),
    Reason(
        "looked for",
        r"/usr/libx32|/etc/env\.d/gcc|/include|/usr/lib/clang/.*|/opt/rh(/[\w-]+/\w+/usr)?",
        CLANG,
        "where clang looks for gcc",
    ),
    Reason("looked for", r"/usr/lib/llvm-\d+/.*", CLANG, "a folder of clang's own"),
    Reason(
        "looked for,read,listed",
        r"/opt(/rocm.*)?|/usr/hsa.*|.*/\.hipVersion|/usr/local/(cuda.*|nvvm.*)|.*/ptxas",
        CLANG,
        "where clang looks for CUDA and ROCm whatever it compiles",
    ),
    Reason("read", r".*/LLVMgold\.so", LINKER, "a part of clang: the linker's plugin"),
    Reason("looked for,listed", r"/usr/(local/)?include/c\+\+", CLANG, "where clang looks for libc++"),
    Reason(
        "read,looked for,listed",
        r".*/[0-9A-Z]{10,}(/[\w.-]+\.(pcm|idx)(\.(lock|timestamp))?)?|.*/modules\.timestamp",
        CLANG,
        "clang's cache of modules, which it compares with their sources",
    ),
    # gcc with more than one process for link-time optimization, and moved by GCC_EXEC_PREFIX
    Reason(
        "read,looked for",
        r".*/(make|mv|touch|sh)|/usr/gnu/include|/etc/selinux/config",
        r"lto-wrapper|make|mv|touch|" + SHELL,
        "make, which starts gcc again for each part of the program",
    ),
    Reason("variable", r"MAKE|SIMPLE_BACKUP_SUFFIX", "lto-wrapper|mv", "make, which starts gcc again"),
    Reason("looked for", r".*/gcc/(gcc|dummy)", GCC, "how gcc finds out to where it was moved"),
    # zig
    Reason(
        "read,looked for,listed",
        r".*/ziglang(/.*)?|.*/zig/([bhoz]|tmp)(/.*)?",
        "zig",
        "zig's own libraries: in its folder, and in the cache of what it has made of them",
    ),
    Reason("looked for", r".*/build\.zig", "zig", "a project of zig, in which its cache would be kept"),
    Reason("read,looked for", r"/etc/[\w-]+[-_](release|version)", "zig", "its target is another system"),
    # nvcc and hipcc
    Reason("read", r"/bin/sh|/usr/bin/(dash|perl)", "nvcc|perl|hipcc.*", "a shell"),
    Reason("looked for", r".*/(cudafe\+\+|fatbinary|ptxas|cicc|nvlink)", SHELL, "a program of the toolkit"),
    Reason("looked for,read", r"/(etc/perl|usr/(local/)?(lib|share).*)/.*\.(pm|pmc|bs|so)", "perl", "a module of perl"),
    Reason("looked for", r".*/(5\.\d+\.\d+|x86_64-linux-gnu-thread-multi)(/auto)?", "perl", "a module of perl"),
    Reason(
        "looked for",
        r".*/(amdgcn|bitcode|llvm/bin|\.hipVersion|\.hipInfo|.*\.(pm|pmc))",
        "perl",
        "where hipcc looks for ROCm",
    ),
    Reason("looked for", r"/usr/lib/[^/]+/amdgcn/bitcode", "perl", "where hipcc looks for ROCm"),
    Reason(
        "read,listed",
        r".*/hip(cc|vars)\.(pl|pm)|/usr/bin/lld|.*/llvm-\d+/bin/.*|.*/amdgcn/bitcode",
        "perl|dash|clang.*",
        "a part of ROCm",
    ),
    # Variables
    Reason(
        "variable",
        r"(LC|LANG|COLORTERM|TERM|NO_?COLOR|GCC_COLORS|GCC_URLS|TERM_URLS|COLUMNS|LANGUAGE|DEB_BUILD_OPTIONS)\w*",
        ANY,
        "messages",
    ),
    Reason(
        "variable", r"TMPDIR|TMP|TEMP|TEMPDIR|HOME|USER|LOGNAME|PATH|SHELL|PWD|XDG_\w+", ANY, "folders and programs"
    ),
    Reason(
        "variable",
        r"COLLECT_\w+|OFFLOAD_TARGET\w*|LD_LIBRARY_PATH|_HERE_|_SPACE_|_TARGET\w+|TOP",
        ANY,
        "a program sets it for those that it starts",
    ),
    Reason("variable", r"MAKEFLAGS|NINJA_STATUS|LLVM_PARALLEL\w*|MOLD_\w+", ANY, "how many processes run"),
    Reason(
        "variable",
        r"DEPENDENCIES_OUTPUT|SUNPRO_DEPENDENCIES|CC_\w+|LLD_REPRODUCE|AS_SECURE_LOG_FILE|DUMP_\w+",
        ANY,
        "it makes a program write a further file",
    ),
    Reason(
        "variable",
        r"GCC_COMPARE_DEBUG|GCC_EXTRA_DIAGNOSTIC_OUTPUT|LIBCTF_DEBUG|LLD_IN_TEST|FORCE_CLANG\w+|bar",
        ANY,
        "tests of the compiler itself",
    ),
    Reason(
        "variable",
        r"(MIMALLOC|mimalloc|TBB|KMP|INTEL|MALLOC|GLIBC|OPENSSL|CTLOG|SSL)\w*|MALLOC_CONF",
        ANY,
        "an allocator or a library of threads",
    ),
    Reason("variable", r"LLD_VERSION|LLVM_OVERRIDE_PRODUCER", ANY, "the name of the program in what it writes"),
    Reason("variable", r"OBJC(PLUS)?_INCLUDE_PATH", ANY, "for other languages"),
    Reason("variable", r"ROCM_PATH|HIP_DEVICE_LIB_PATH", CLANG, "for other languages"),
    Reason("variable", r"PERL\w*|DPKG_\w+", "perl", "perl's own"),
    Reason(
        "variable",
        r"CCACHE_(CONFIGPATH2?|DIR|DEBUG_INCLUDED|DISABLE_INODE_CACHE_MIN_AGE|INTERNAL_TRACE)|I_MPI_C(C|XX)",
        "ccache",
        "where ccache keeps results, and what it adds to their keys",
    ),
    Reason(
        "variable",
        r"OPAL_OUTPUT_\w+|OPAL_dss_debug|(HFI|IPATH)_NO_BACKTRACE|OMPI_MCA_\w+",
        "opal_wrapper",
        "messages of Open MPI, and what programs do that use it",
    ),
    Reason(
        "variable",
        r"EDG_SUPPRESS_ASSERTION_LINE_NUMBER|LIBNVVM_DISABLE_CONCURRENT_API",
        r"cicc|cudafe\+\+",
        "messages, or how many threads run",
    ),
    Reason(
        "variable",
        r"CICC_PATH|LLVMC_FLAGS|LLVMDIS_FLAGS|NV(ASM|DISASM|LINK)_FLAGS|NVVMIR_LIBRARY_DIR|LIBRARIES",
        "nvcc",
        "for steps of nvcc that opforge does not run",
    ),
)
_PATTERNS = [
    (frozenset(rule.kind.split(",")), re.compile(rule.name), re.compile(rule.program), rule.text) for rule in REASONS
]


def reason(kind: str, name: str, program: str) -> str:
    """Returns why something is no input; empty if it should be one."""
    program = os.path.basename(program)
    for kinds, names, programs, text in _PATTERNS:
        if kind in kinds and names.fullmatch(name) and programs.fullmatch(program):
            return text
    return ""
