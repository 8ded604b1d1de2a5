#include "registered.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#ifndef SYS_io_uring_register
#define SYS_io_uring_register 427
#endif

namespace opforge::aio {
namespace {

constexpr int64_t PART_BYTES = 64 << 20;  // the kernel takes up to 1 GiB
constexpr int64_t LEAST_DUE = 64 << 10;   // a system call costs as much as pinning some pages
constexpr int TABLE = 1024;               // the most that every kernel has

// Of the kernel's interface, whose headers may be older than Linux 5.13.
constexpr unsigned REGISTER_BUFFERS = 0, UNREGISTER_BUFFERS = 1, BUFFERS_UPDATE = 16;
struct Update {
    uint32_t offset, reserved;
    uint64_t data, tags;
    uint32_t count, reserved2;
};

long call(int ring, unsigned operation, void* argument, unsigned count) {
    return syscall(SYS_io_uring_register, ring, operation, argument, count);
}

}  // namespace

int RegisteredMemory::index(int ring, const Block& block) {
    const Region& region = block.region;
    const auto begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(block.address)) -
                       static_cast<int64_t>(reinterpret_cast<uintptr_t>(region.address));
    if (!region.number || begin < 0 || begin + block.bytes > region.bytes) return -1;
    const int64_t number = begin / PART_BYTES;
    if ((begin + block.bytes - 1) / PART_BYTES != number) return -1;
    Part& part = parts_[{region.number, number}];
    if (!part.due) {
        part.bytes = std::min(PART_BYTES, region.bytes - number * PART_BYTES);
        part.due = std::max(part.bytes, LEAST_DUE);
    }
    if (part.index < 0) {
        if (part.moved >= part.due) enter(ring, part, region.address + number * PART_BYTES);
        part.moved += block.bytes;
    }
    return part.index;
}

void RegisteredMemory::enter(int ring, Part& part, char* address) {
    if (!has_table_) {
        // A table of empty places: Linux 5.13 and later.
        std::vector<iovec> places(TABLE);
        has_table_ = call(ring, REGISTER_BUFFERS, places.data(), TABLE) == 0;
        if (has_table_)
            for (int i = TABLE; i-- > 0;) free_.push_back(i);
        else
            registration_.error = errno == EFAULT ? ENOSYS : errno;
    }
    if (!free_.empty() && update(ring, free_.back(), address, part.bytes)) {
        part.index = free_.back();
        free_.pop_back();
        registration_.bytes += part.bytes;
        return;
    }
    // Mostly the limit of locked memory, which others use too. What is refused is tried again, but ever less often.
    part.due = 2 * part.moved;
}

bool RegisteredMemory::update(int ring, int index, char* address, int64_t bytes) {
    iovec place{address, static_cast<size_t>(bytes)};
    Update update{};
    update.offset = static_cast<uint32_t>(index);
    update.data = reinterpret_cast<uintptr_t>(&place);
    update.count = 1;
    const bool updated = call(ring, BUFFERS_UPDATE, &update, sizeof update) == 1;
    if (!updated) registration_.error = errno;
    return updated;
}

void RegisteredMemory::forget(int ring, int64_t region) {
    auto entry = parts_.lower_bound({region, 0});
    for (; entry != parts_.end() && entry->first.first == region; entry = parts_.erase(entry)) {
        const Part& part = entry->second;
        // Were it refused, the pages stay pinned until the ring is closed, and nobody uses the place again.
        if (part.index < 0 || !update(ring, part.index, nullptr, 0)) continue;
        free_.push_back(part.index);
        registration_.bytes -= part.bytes;
    }
}

void RegisteredMemory::forget_all(int ring) {
    if (has_table_) call(ring, UNREGISTER_BUFFERS, nullptr, 0);
}

}  // namespace opforge::aio
