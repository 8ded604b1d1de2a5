/* The notes of this image. */
#include "notes.h"

enum { SIZE = 64 << 20 };

struct notes* notes;
char folder[PATH_MAX], preload[PATH_MAX];
static uint64_t space;
static int is_ready;

/* System calls by themselves: the C library's functions would lead back to this file. */
long call(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#else
#error "the observer knows x86-64 and aarch64"
#endif
}

long answer(long result) {
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

const char* value_of(const char* name) {
    size_t length = strlen(name);
    for (char** variable = environ; variable && *variable; ++variable)
        if (!strncmp(*variable, name, length) && (*variable)[length] == '=') return *variable + length + 1;
    return NULL;
}

void note_text(char kind, const char* first, const char* second) {
    if (!notes) return;
    size_t left = strlen(first), right = strlen(second), length = left + right + 2;
    uint64_t at = __atomic_fetch_add(&notes->used, length, __ATOMIC_RELAXED);
    if (at + length > space) {
        __atomic_fetch_add(&notes->lost, 1, __ATOMIC_RELAXED);
        return;
    }
    char* to = notes->text + at;
    memcpy(to + 1, first, left);
    memcpy(to + 1 + left, second, right);
    __atomic_store_n(to, kind, __ATOMIC_RELEASE);
}

static int note_library(struct dl_phdr_info* info, size_t size, void* data) {
    (void)size, (void)data;
    if (info->dlpi_name[0] == '/') note_text('B', info->dlpi_name, "");
    return 0;
}

/* Maps the file of notes. Other libraries' constructors may come before this one's. */
void prepare(void) {
    if (__atomic_exchange_n(&is_ready, 1, __ATOMIC_ACQ_REL)) return;
    const char *where = value_of(NOTES), *token = value_of(START), *loaded = value_of(PRELOAD);
    if (!where || !token || !loaded || strlen(where) + TOKEN + 40 > PATH_MAX || strlen(loaded) >= PATH_MAX) return;
    strcpy(folder, where);
    strcpy(preload, loaded);
    char path[PATH_MAX];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long process = CALL(SYS_getpid, 0, 0, 0, 0, 0);
    snprintf(path, sizeof path, "%s/%.*s.%ld.%lld%09ld", folder, TOKEN, token, process, (long long)now.tv_sec,
             now.tv_nsec);
    struct rlimit64 limit = {SIZE, SIZE};
    getrlimit64(RLIMIT_FSIZE, &limit); /* more than that would end the process with SIGXFSZ */
    uint64_t size = limit.rlim_cur < SIZE ? limit.rlim_cur : SIZE;
    if (size < 4096) return;
    long file = CALL(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600, 0);
    if (file < 0) return;
    if (CALL(SYS_ftruncate, file, size, 0, 0, 0) == 0) {
        long at = call(SYS_mmap, 0, (long)size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (at > 0 || at < -4096) {
            space = size - sizeof(struct notes);
            notes = (struct notes*)at;
            memcpy(notes->magic, "observed", 8);
        }
    }
    CALL(SYS_close, file, 0, 0, 0, 0);
    long length = CALL(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", path, sizeof path - 1, 0);
    if (length > 0) {
        path[length] = 0;
        note_text('X', path, "");
    }
    dl_iterate_phdr(note_library, NULL);
}

__attribute__((constructor)) static void construct(void) { prepare(); }

/* Notes a path, made absolute by the working folder or the folder that a descriptor stands for. */
void note(char kind, int base, const char* path) {
    prepare();
    if (!notes || !path || !*path) return;
    int error = errno;
    if (*path == '/') {
        note_text(kind, path, "");
    } else {
        char above[PATH_MAX + 1], link[40];
        long length;
        if (base == AT_FDCWD) {
            length = CALL(SYS_getcwd, above, PATH_MAX, 0, 0, 0) - 1;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", base);
            length = CALL(SYS_readlinkat, AT_FDCWD, link, above, PATH_MAX, 0);
        }
        if (length > 0) {
            above[length] = '/';
            above[length + 1] = 0;
            note_text(kind, above, path);
        } else {
            note_text('?', path, "");
        }
    }
    errno = error;
}

int is_absence(long result) { return result == -ENOENT || result == -ENOTDIR; }

long with_absence(long result, int base, const char* path) {
    if (is_absence(result)) note('N', base, path);
    return answer(result);
}
