// Opens files with O_DIRECT where the file system has it, and finds the alignment that it asks for.

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "request.h"

namespace opforge::aio {
namespace {

constexpr uint32_t PAGE = 4096;

// The kernel's struct statx up to the fields that Linux 6.1 added: headers of many systems are older.
struct Statx {
    uint32_t mask, block_bytes;
    uint64_t attributes;
    uint32_t links, owner, group;
    uint16_t mode, spare;
    uint64_t others[12];
    uint32_t device_numbers[4];
    uint64_t mount;
    uint32_t direct_memory_alignment, direct_offset_alignment;
    uint64_t rest[12];
};
static_assert(sizeof(Statx) == 256, "the kernel writes 256 bytes");
constexpr uint32_t DIRECT_ALIGNMENT = 0x2000;

bool is_power_of_two(uint32_t number) { return number && !(number & (number - 1)); }

}  // namespace

int File::open_as(int more_flags) const {
    int descriptor;
    do {
        descriptor = ::open(path_.c_str(), flags_ | more_flags | O_CLOEXEC, 0666);
    } while (descriptor < 0 && errno == EINTR);
    return descriptor < 0 ? -errno : descriptor;
}

int File::open(const char* path, int descriptor, bool write, bool try_direct) {
    struct stat status;
    int opened;
    if (descriptor >= 0) {
        // The same file by another open, so that it can be used with and without O_DIRECT.
        path_ = "/proc/self/fd/" + std::to_string(descriptor);
        const int flags = fcntl(descriptor, F_GETFL);
        (flags & O_DIRECT ? direct : buffered) = descriptor;
        // Linux ignores the offset of a write to such a descriptor.
        if (write && (flags & O_APPEND)) return EINVAL;
        flags_ = flags & O_ACCMODE;
    } else {
        path_ = path;
        flags_ = write ? O_WRONLY | O_CREAT : O_RDONLY;
        // An open of a FIFO would wait for its other end.
        if (stat(path, &status) == 0) {
            if (S_ISDIR(status.st_mode)) return EISDIR;
            if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode)) return ESPIPE;
        }
    }
    if (try_direct && direct < 0 && (direct = open_as(O_DIRECT)) < 0) {
        const int error = -direct;
        direct = -1;
        if (descriptor < 0 && error != EINVAL && error != EOPNOTSUPP) return error;
    }
    if (direct < 0 && buffered < 0 && (opened = open_buffered()) < 0) return -opened;
    if (fstat(direct >= 0 ? direct : buffered, &status) != 0) return errno;
    if (S_ISDIR(status.st_mode)) return EISDIR;
    if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode)) return ESPIPE;
    is_regular = S_ISREG(status.st_mode);
    bytes = status.st_size;
    flags_ &= ~O_CREAT;
    if (direct >= 0) find_alignment(write);
    return 0;
}

void File::find_alignment(bool write) {
    Statx status{};
    const long failed = syscall(SYS_statx, direct, "", AT_EMPTY_PATH, DIRECT_ALIGNMENT, &status);
    memory_alignment = offset_alignment = PAGE;
    bool usable = true;
    if (!failed && (status.mask & DIRECT_ALIGNMENT)) {
        memory_alignment = status.direct_memory_alignment;
        offset_alignment = status.direct_offset_alignment;
        usable = is_power_of_two(memory_alignment) && is_power_of_two(offset_alignment);
    } else {
        // An older kernel does not tell: a page suits nearly all, and what refuses it (EINVAL) gets the page cache.
        // Memory gains nothing.
        struct statfs system;
        usable = fstatfs(direct, &system) == 0 && system.f_type != TMPFS_MAGIC;
    }
    if (!usable) {
        offset_alignment = memory_alignment = 1;
        if (buffered < 0) open_buffered();
        if (buffered >= 0) {
            ::close(direct);
            direct = -1;
        }
        return;
    }
    // An unaligned end is written through the page cache, which writes whole blocks of the file system back. A page
    // that were written both ways at once could get old bytes back.
    struct statfs system;
    if (write && fstatfs(direct, &system) == 0) {
        const auto block = static_cast<uint32_t>(std::clamp<long>(system.f_bsize, PAGE, 1 << 16));
        offset_alignment = std::max({offset_alignment, PAGE, is_power_of_two(block) ? block : PAGE});
    }
}

int File::open_buffered() {
    if (buffered < 0) {
        const int opened = open_as(0);
        if (opened < 0) return opened;
        buffered = opened;
    }
    return buffered;
}

int File::close() {
    int error = 0;
    for (int* descriptor : {&direct, &buffered}) {
        if (*descriptor >= 0 && ::close(*descriptor) != 0 && errno != EINTR) error = errno;
        *descriptor = -1;
    }
    return error;
}

}  // namespace opforge::aio
