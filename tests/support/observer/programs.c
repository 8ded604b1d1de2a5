/* Notes the programs that are started, and hands each what it needs to be observed. */
#include "notes.h"

static void make_token(char* token) {
    static unsigned count;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(token, TOKEN, "%lx-%llx%lx-%x", CALL(SYS_getpid, 0, 0, 0, 0, 0), (long long)now.tv_sec, now.tv_nsec,
             __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED));
}

static void note_start(const char* token, const char* path) {
    char text[TOKEN + 1];
    snprintf(text, sizeof text, "%s ", token);
    char whole[PATH_MAX * 2];
    if (*path != '/') {
        long length = CALL(SYS_getcwd, whole, PATH_MAX, 0, 0, 0);
        snprintf(whole + (length > 0 ? length - 1 : 0), PATH_MAX, "/%s", path);
        path = whole;
    }
    note_text('E', text, path);
}

static int is_ours(const char* variable) {
    return !strncmp(variable, NOTES "=", sizeof NOTES) || !strncmp(variable, START "=", sizeof START);
}

/* Of `variables`, with what the next image needs. It lives on the caller's stack: after vfork the memory is shared. */
#define OBSERVED(variables, result, token)                                                                             \
    size_t count_ = 0, at_ = 0;                                                                                        \
    while ((variables) && (variables)[count_]) ++count_;                                                               \
    char** result = alloca((count_ + 4) * sizeof(char*));                                                              \
    const char* others_ = "";                                                                                          \
    for (size_t i_ = 0; i_ < count_; ++i_) {                                                                           \
        if (!strncmp((variables)[i_], PRELOAD "=", sizeof PRELOAD))                                                    \
            others_ = (variables)[i_] + sizeof PRELOAD;                                                                \
        else if (!is_ours((variables)[i_]))                                                                            \
            result[at_++] = (variables)[i_];                                                                           \
    }                                                                                                                  \
    if (notes) {                                                                                                       \
        int is_loaded_ = strstr(others_, preload) != NULL;                                                             \
        char* words_ = alloca(strlen(folder) + strlen(preload) + strlen(others_) + TOKEN + 80);                        \
        result[at_++] = words_, words_ += sprintf(words_, "%s=%s", NOTES, folder) + 1;                                 \
        result[at_++] = words_, words_ += sprintf(words_, "%s=%s", START, token) + 1;                                  \
        result[at_++] = words_;                                                                                        \
        sprintf(words_, "%s=%s%s%s", PRELOAD, is_loaded_ ? "" : preload, is_loaded_ || !*others_ ? "" : ":", others_); \
    }                                                                                                                  \
    result[at_] = NULL;

static int run(const char* path, char* const argv[], char* const variables[], int flags, int base) {
    char token[TOKEN];
    prepare();
    make_token(token);
    OBSERVED(variables, observed, token)
    char** variables_now = notes ? observed : (char**)variables;
    note_start(token, path);
    long result = base == AT_FDCWD && !flags ? CALL(SYS_execve, path, argv, variables_now, 0, 0)
                                             : CALL(SYS_execveat, base, path, argv, variables_now, flags);
    note_text('F', token, "");
    return (int)with_absence(result, base, path);
}

static int run_script(const char* path, char* const argv[], char* const variables[]) {
    size_t count = 0;
    while (argv[count]) ++count;
    const char** words = alloca((count + 3) * sizeof(char*));
    words[0] = "/bin/sh";
    words[1] = path;
    for (size_t at = 1; at <= count; ++at) words[at + 1] = argv[at];
    if (!count) words[2] = NULL;
    note('R', AT_FDCWD, path);
    return run("/bin/sh", (char* const*)words, variables, 0, AT_FDCWD);
}

/* Writes the path of a program as PATH leads to it. Returns whether there is one. */
static int find_program(const char* name, char* path) {
    if (strchr(name, '/')) {
        snprintf(path, PATH_MAX, "%s", name);
        return 1;
    }
    const char* folders = value_of("PATH");
    note_text('V', "PATH", "");
    for (const char* at = folders ? folders : "/bin:/usr/bin"; *name; ++at) {
        size_t length = strcspn(at, ":");
        snprintf(path, PATH_MAX, "%.*s%s%s", (int)length, at, length ? "/" : "", name);
        struct stat status;
        if (!stated(AT_FDCWD, path, &status, 0) && (status.st_mode & S_IFMT) == S_IFREG &&
            !CALL(SYS_faccessat, AT_FDCWD, path, X_OK, 0, 0))
            return 1;
        at += length;
        if (!*at) break;
    }
    errno = ENOENT;
    return 0;
}

EXPORT int execve(const char* path, char* const argv[], char* const variables[]) {
    return run(path, argv, variables, 0, AT_FDCWD);
}

EXPORT int execv(const char* path, char* const argv[]) { return run(path, argv, environ, 0, AT_FDCWD); }

EXPORT int execvpe(const char* name, char* const argv[], char* const variables[]) {
    char path[PATH_MAX];
    prepare();
    if (!find_program(name, path)) return -1;
    run(path, argv, variables, 0, AT_FDCWD);
    return errno == ENOEXEC ? run_script(path, argv, variables) : -1;
}

EXPORT int execvp(const char* name, char* const argv[]) { return execvpe(name, argv, environ); }

EXPORT int fexecve(int file, char* const argv[], char* const variables[]) {
    return run("", argv, variables, AT_EMPTY_PATH, file);
}

EXPORT int execveat(int base, const char* path, char* const argv[], char* const variables[], int flags) {
    return run(path, argv, variables, flags, base);
}

#define WORDS(first)                                   \
    size_t count = 1;                                  \
    va_list list;                                      \
    va_start(list, first);                             \
    while (va_arg(list, char*)) ++count;               \
    va_end(list);                                      \
    char** argv = alloca((count + 1) * sizeof(char*)); \
    argv[0] = (char*)(first);                          \
    va_start(list, first);                             \
    for (size_t at = 1; at <= count; ++at) argv[at] = va_arg(list, char*);

EXPORT int execl(const char* path, const char* first, ...) {
    WORDS(first)
    va_end(list);
    return execv(path, argv);
}

EXPORT int execlp(const char* name, const char* first, ...) {
    WORDS(first)
    va_end(list);
    return execvp(name, argv);
}

EXPORT int execle(const char* path, const char* first, ...) {
    WORDS(first)
    char* const* variables = va_arg(list, char* const*);
    va_end(list);
    return execve(path, argv, variables);
}

EXPORT int posix_spawn(pid_t* process, const char* path, const posix_spawn_file_actions_t* actions,
                       const posix_spawnattr_t* attributes, char* const argv[], char* const variables[]) {
    REAL(int, "posix_spawn", pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
         char* const[], char* const[])
    char token[TOKEN];
    prepare();
    make_token(token);
    OBSERVED(variables, observed, token)
    note_start(token, path);
    int error = real(process, path, actions, attributes, argv, notes ? observed : variables);
    if (error) note_text('F', token, "");
    if (is_absence(-error)) note('N', AT_FDCWD, path);
    return error;
}

EXPORT int posix_spawnp(pid_t* process, const char* name, const posix_spawn_file_actions_t* actions,
                        const posix_spawnattr_t* attributes, char* const argv[], char* const variables[]) {
    char path[PATH_MAX];
    prepare();
    if (!find_program(name, path)) return ENOENT;
    return posix_spawn(process, path, actions, attributes, argv, variables);
}

/* The C library starts the shell itself, with the variables of this process. */
static void announce_shell(char* token) {
    prepare();
    if (!notes) return;
    make_token(token);
    note_start(token, "/bin/sh");
    setenv(NOTES, folder, 1);
    setenv(START, token, 1);
    const char* loaded = value_of(PRELOAD);
    if (!loaded || !strstr(loaded, preload)) setenv(PRELOAD, preload, 1);
}

/* By a shell that this file starts: several threads of nvcc do this at once. Signals are not held back. */
EXPORT int system(const char* command) {
    if (!command) return 1;
    char* words[] = {"sh", "-c", (char*)command, NULL};
    pid_t process;
    int error = posix_spawn(&process, "/bin/sh", NULL, NULL, words, environ), status = -1;
    if (error) {
        errno = error;
        return -1;
    }
    while (waitpid(process, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return status;
}

static pthread_mutex_t is_announcing = PTHREAD_MUTEX_INITIALIZER;

EXPORT FILE* popen(const char* command, const char* mode) {
    REAL(FILE*, "popen", const char*, const char*)
    char token[TOKEN];
    announce_shell(token);
    FILE* stream = real(command, mode);
    if (!stream && notes) note_text('F', token, "");
    return stream;
}
