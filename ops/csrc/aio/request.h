// A request: rows of memory, each at an offset of one file. It is cut into blocks as the engine takes them.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "engine.h"

namespace opforge::aio {

// The descriptors of one file. A block that O_DIRECT refuses, such as an unaligned end, goes through the page cache.
struct File {
    int direct = -1, buffered = -1;
    uint32_t memory_alignment = 1, offset_alignment = 1;
    int64_t bytes = 0;        // when it was opened
    bool is_regular = false;  // a block device otherwise

    // Opens `path`, or takes over `descriptor` if it is not -1. Returns 0, or an error number.
    int open(const char* path, int descriptor, bool write, bool try_direct);
    // Opens what the page cache is used through, at its first use. Returns the descriptor, or a negative error number.
    int open_buffered();
    // Returns 0, or the error number of what a network's file system could not write.
    int close();

private:
    int open_as(int more_flags) const;
    void find_alignment(bool write);

    std::string path_;
    int flags_ = 0;
};

struct Request {
    std::string path;
    int descriptor = -1;  // the request's own copy; -1 if there is a path
    bool write = false;
    char* memory = nullptr;
    int64_t row_bytes = 0;
    Region region;                 // what `memory` is a part of
    std::vector<int64_t> offsets;  // of the rows
    int64_t block_bytes = 0;

    File file;
    size_t row = 0;
    int64_t done = 0;  // bytes of the row that are in blocks
    int in_flight = 0;
    bool is_listed = false;  // whether the queue will take more blocks from it
    bool is_finished = false;
    int error = 0;
    int64_t error_offset = -1;
    std::atomic<int> owners{2};  // the queue, and the caller

    ~Request();
    int64_t end() const;
    bool is_exhausted() const { return row >= offsets.size() || row_bytes == 0; }
    // Sets `block` to the next part. Returns 0, or an error number.
    int next(Block& block);
    // Prepares the rest of a block of which `moved` bytes are done. Returns 0, or an error number.
    int advance(Block& block, uint32_t moved);
    void fail(int number, int64_t offset);
    void release() {
        if (owners.fetch_sub(1) == 1) delete this;
    }
};

}  // namespace opforge::aio
