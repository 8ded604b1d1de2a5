#include "request.h"

#include <unistd.h>

#include <algorithm>

namespace opforge::aio {
namespace {

bool is_aligned(uint64_t value, uint32_t alignment) { return (value & (alignment - 1)) == 0; }

bool is_direct(const File& file, int64_t offset, int64_t bytes) {
    return file.direct >= 0 && is_aligned(static_cast<uint64_t>(offset), file.offset_alignment) &&
           bytes >= file.offset_alignment;
}

bool is_direct(const File& file, const char* address) {
    return is_aligned(reinterpret_cast<uintptr_t>(address), file.memory_alignment);
}

}  // namespace

Request::~Request() {
    if (descriptor >= 0) close(descriptor);
}

int64_t Request::end() const {
    int64_t last = 0;
    for (const int64_t offset : offsets) last = std::max(last, offset + row_bytes);
    return last;
}

int Request::next(Block& block) {
    block.request = this;
    block.write = write;
    block.region = region;
    block.address = block.memory = memory + static_cast<int64_t>(row) * row_bytes + done;
    block.offset = offsets[row] + done;
    const int64_t left = row_bytes - done;
    int64_t bytes = std::min(left, block_bytes);
    const bool bounces = !is_direct(file, block.memory);
    const int64_t most = bounces ? std::min<int64_t>(bytes, block.bounce_bytes) : bytes;
    block.direct = is_direct(file, block.offset, most);
    if (block.direct) {
        if (bounces) block.address = block.bounce;
        bytes = most - most % file.offset_alignment;
        block.file = file.direct;
    } else {
        // Up to the next place where O_DIRECT may begin, so that only the head goes through the page cache.
        const int64_t head = file.direct < 0 ? 0 : (-block.offset & (file.offset_alignment - 1));
        if (head) bytes = std::min(bytes, head);
        block.file = file.open_buffered();
        if (block.file < 0) return -block.file;
    }
    block.bytes = static_cast<uint32_t>(bytes);
    done += bytes;
    if (done == row_bytes) {
        ++row;
        done = 0;
    }
    return 0;
}

int Request::advance(Block& block, uint32_t moved) {
    block.address += moved;
    block.memory += moved;
    block.offset += moved;
    block.bytes -= moved;
    if (!block.direct) return 0;
    if (moved && is_direct(file, block.offset, block.bytes) && is_aligned(block.bytes, file.offset_alignment) &&
        is_direct(file, block.address))
        return 0;
    block.direct = false;
    block.address = block.memory;
    block.file = file.open_buffered();
    return block.file < 0 ? -block.file : 0;
}

void Request::fail(int number, int64_t offset) {
    if (error) return;
    error = number;
    error_offset = offset;
}

}  // namespace opforge::aio
