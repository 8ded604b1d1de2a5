/* Notes the files, names, links, folders and variables that a program asks for. */
#include "notes.h"

struct statx;

static long opened(int base, const char* path, int flags, int mode) {
    long result = CALL(SYS_openat, base, path, flags, mode, 0);
    int access = flags & O_ACCMODE;
    if (result >= 0 && !(flags & O_PATH)) {
        if (access != O_WRONLY && !(flags & O_TRUNC)) note(flags & O_DIRECTORY ? 'D' : 'R', base, path);
        if (access != O_RDONLY) note('W', base, path);
    }
    return with_absence(result, base, path);
}

#define MODE(flags)                                                \
    int mode = 0;                                                  \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list list;                                              \
        va_start(list, flags);                                     \
        mode = va_arg(list, int);                                  \
        va_end(list);                                              \
    }

/* clang-format off */
EXPORT int open(const char* path, int flags, ...) { MODE(flags) return (int)opened(AT_FDCWD, path, flags, mode); }
EXPORT int open64(const char* path, int flags, ...) { MODE(flags) return (int)opened(AT_FDCWD, path, flags, mode); }
EXPORT int openat(int base, const char* path, int flags, ...) { MODE(flags) return (int)opened(base, path, flags, mode); }
EXPORT int openat64(int base, const char* path, int flags, ...) { MODE(flags) return (int)opened(base, path, flags, mode); }
EXPORT int __open_2(const char* path, int flags) { return (int)opened(AT_FDCWD, path, flags, 0); }
EXPORT int __open64_2(const char* path, int flags) { return (int)opened(AT_FDCWD, path, flags, 0); }
EXPORT int __openat_2(int base, const char* path, int flags) { return (int)opened(base, path, flags, 0); }
EXPORT int __openat64_2(int base, const char* path, int flags) { return (int)opened(base, path, flags, 0); }
EXPORT int creat(const char* path, mode_t mode) { return (int)opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, (int)mode); }
EXPORT int creat64(const char* path, mode_t mode) { return creat(path, mode); }

long stated(int base, const char* path, void* to, int flags) {
  return with_absence(CALL(SYS_newfstatat, base, path, to, flags, 0), base, path);
}

/* struct stat is the system's own on both machines. The names that begin with __ are those of older C libraries. */
EXPORT int stat(const char* path, struct stat* to) { return (int)stated(AT_FDCWD, path, to, 0); }
EXPORT int stat64(const char* path, struct stat64* to) { return (int)stated(AT_FDCWD, path, to, 0); }
EXPORT int lstat(const char* path, struct stat* to) { return (int)stated(AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW); }
EXPORT int lstat64(const char* path, struct stat64* to) { return (int)stated(AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW); }
EXPORT int fstatat(int base, const char* path, struct stat* to, int flags) { return (int)stated(base, path, to, flags); }
EXPORT int fstatat64(int base, const char* path, struct stat64* to, int flags) { return (int)stated(base, path, to, flags); }
EXPORT int __xstat(int version, const char* path, void* to) { (void)version; return (int)stated(AT_FDCWD, path, to, 0); }
EXPORT int __xstat64(int version, const char* path, void* to) { return __xstat(version, path, to); }
EXPORT int __lxstat(int version, const char* path, void* to) { (void)version; return (int)stated(AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW); }
EXPORT int __lxstat64(int version, const char* path, void* to) { return __lxstat(version, path, to); }
EXPORT int __fxstatat(int version, int base, const char* path, void* to, int flags) { (void)version; return (int)stated(base, path, to, flags); }
EXPORT int __fxstatat64(int version, int base, const char* path, void* to, int flags) { return __fxstatat(version, base, path, to, flags); }

/* Rust asks with a path of NULL whether there is such a call: that is passed on. */
EXPORT int statx(int base, const char* path, int flags, unsigned mask, struct statx* to) {
  return (int)with_absence(CALL(SYS_statx, base, path, flags, mask, to), base, path);
}

static long allowed(int base, const char* path, int mode, int flags) {
  long result = flags ? CALL(439 /* faccessat2 */, base, path, mode, flags, 0) : -ENOSYS;
  if (result == -ENOSYS) result = CALL(SYS_faccessat, base, path, mode, 0, 0);
  return with_absence(result, base, path);
}

EXPORT int access(const char* path, int mode) { return (int)allowed(AT_FDCWD, path, mode, 0); }
EXPORT int faccessat(int base, const char* path, int mode, int flags) { return (int)allowed(base, path, mode, flags); }
EXPORT int eaccess(const char* path, int mode) { return (int)allowed(AT_FDCWD, path, mode, AT_EACCESS); }
EXPORT int euidaccess(const char* path, int mode) { return (int)allowed(AT_FDCWD, path, mode, AT_EACCESS); }

static long linked(int base, const char* path, char* to, size_t size) {
  long result = CALL(SYS_readlinkat, base, path, to, size, 0);
  if (result >= 0) note('K', base, path);
  return with_absence(result, base, path);
}

EXPORT ssize_t readlink(const char* path, char* to, size_t size) { return linked(AT_FDCWD, path, to, size); }
EXPORT ssize_t readlinkat(int base, const char* path, char* to, size_t size) { return linked(base, path, to, size); }
EXPORT ssize_t __readlink_chk(const char* path, char* to, size_t size, size_t all) { (void)all; return linked(AT_FDCWD, path, to, size); }
EXPORT ssize_t __readlinkat_chk(int base, const char* path, char* to, size_t size, size_t all) { (void)all; return linked(base, path, to, size); }
/* clang-format on */

static void note_absence(const char* path) {
    if (errno == ENOENT || errno == ENOTDIR) note('N', AT_FDCWD, path);
}

EXPORT char* realpath(const char* path, char* to) {
    REAL(char*, "realpath", const char*, char*)
    char* result = real(path, to);
    if (!result)
        note_absence(path);
    else if (strcmp(result, path))
        note('K', AT_FDCWD, path);
    return result;
}

EXPORT char* __realpath_chk(const char* path, char* to, size_t size) {
    (void)size;
    return realpath(path, to);
}

EXPORT char* canonicalize_file_name(const char* path) { return realpath(path, NULL); }

static void note_stream(const char* path, const char* mode, const void* stream) {
    if (!stream) {
        note_absence(path);
        return;
    }
    if (*mode == 'r') note('R', AT_FDCWD, path);
    if (*mode != 'r' || strchr(mode, '+')) note('W', AT_FDCWD, path);
}

EXPORT FILE* fopen(const char* path, const char* mode) {
    REAL(FILE*, "fopen", const char*, const char*)
    FILE* stream = real(path, mode);
    note_stream(path, mode, stream);
    return stream;
}

EXPORT FILE* fopen64(const char* path, const char* mode) { return fopen(path, mode); }

EXPORT FILE* freopen(const char* path, const char* mode, FILE* old) {
    REAL(FILE*, "freopen", const char*, const char*, FILE*)
    FILE* stream = real(path, mode, old);
    if (path) note_stream(path, mode, stream);
    return stream;
}

EXPORT FILE* freopen64(const char* path, const char* mode, FILE* old) { return freopen(path, mode, old); }

static void note_folder(const char* path, int is_there) {
    if (is_there)
        note('D', AT_FDCWD, path);
    else
        note_absence(path);
}

EXPORT DIR* opendir(const char* path) {
    REAL(DIR*, "opendir", const char*)
    DIR* result = real(path);
    note_folder(path, result != NULL);
    return result;
}

#define SCAN(name, entry)                                                                     \
    EXPORT int name(const char* path, struct entry*** to, int (*choose)(const struct entry*), \
                    int (*order)(const struct entry**, const struct entry**)) {               \
        REAL(int, #name, const char*, struct entry***, int (*)(const struct entry*),          \
             int (*)(const struct entry**, const struct entry**))                             \
        int result = real(path, to, choose, order);                                           \
        note_folder(path, result >= 0);                                                       \
        return result;                                                                        \
    }

SCAN(scandir, dirent)
SCAN(scandir64, dirent64)

/* The last call must stay a jump: the C library searches the folders of the library that calls dlopen. */
EXPORT void* dlopen(const char* name, int flags) {
    REAL(void*, "dlopen", const char*, int)
    if (name && strchr(name, '/')) note('R', AT_FDCWD, name);
    return real(name, flags);
}

EXPORT char* getenv(const char* name) {
    prepare();
    if (strcmp(name, NOTES) && strcmp(name, START)) note_text('V', name, "");
    return (char*)value_of(name);
}

EXPORT char* secure_getenv(const char* name) { return getenv(name); }

EXPORT int connect(int descriptor, const struct sockaddr* to, socklen_t length) {
    long result = CALL(SYS_connect, descriptor, to, length, 0, 0);
    if (result == 0 || result == -EINPROGRESS) {
        prepare();
        const char* name = to->sa_family == AF_UNIX ? ((const struct sockaddr_un*)to)->sun_path : "of the network";
        note_text('C', *name ? name : "without a name", "");
    }
    return (int)answer(result);
}

EXPORT long syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    static const struct {
        long number;
        int place; /* of the path among the arguments */
    } files[] = {
#if defined(SYS_open)
        {SYS_open, 0},   {SYS_stat, 0},       {SYS_lstat, 0},      {SYS_access, 0}, {SYS_readlink, 0},
#endif
        {SYS_execve, 0}, {SYS_openat, 1},     {SYS_newfstatat, 1}, {SYS_statx, 1},  {SYS_faccessat, 1},
        {437, 1},        {SYS_readlinkat, 1}, {SYS_execveat, 1},   {439, 1} /* openat2, faccessat2 */
    };
    for (size_t at = 0; at < sizeof files / sizeof *files; ++at) {
        if (number != files[at].number) continue;
        const char* path = (const char*)(files[at].place ? b : a);
        char text[PATH_MAX];
        snprintf(text, sizeof text, "%ld of %s", number, path ? path : "no file");
        prepare();
        note_text('Y', text, "");
    }
    return answer(call(number, a, b, c, d, e, f));
}
