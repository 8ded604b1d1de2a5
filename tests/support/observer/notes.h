/* Notes what each process of a build asks the system for. It is preloaded, and changes no answer.
 *
 * Each program image has a file of notes, which is mapped and shared: nothing is buffered, and no descriptor stays
 * open, so that nothing is lost by vfork, _exit, kill -9 or a program that closes all descriptors. A note is a letter,
 * a text and a zero byte; the letters are listed in reader.py. A program that is started gets a token in its
 * environment, and its image's file is named by it: a start without such a file was not observed.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define NOTES "OBSERVER_NOTES"
#define START "OBSERVER_START"
#define PRELOAD "LD_PRELOAD"

enum { TOKEN = 64 };

struct notes {
    char magic[8];
    uint64_t used; /* bytes behind this head */
    uint64_t lost; /* notes that found no space */
    char text[];
};

extern struct notes* notes;
extern char folder[PATH_MAX], preload[PATH_MAX];
extern char** environ;

long call(long number, long a, long b, long c, long d, long e, long f);
long answer(long result);
const char* value_of(const char* name);
void prepare(void);
void note_text(char kind, const char* first, const char* second);
void note(char kind, int base, const char* path);
int is_absence(long result);
long with_absence(long result, int base, const char* path);
long stated(int base, const char* path, void* to, int flags);

#define CALL(number, a, b, c, d, e) call(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define REAL(type, name, ...)         \
    static type (*real)(__VA_ARGS__); \
    if (!real) *(void**)&real = dlsym(RTLD_NEXT, name);
