// The op's functions. They are called through ctypes, which releases the interpreter's lock; none raises an exception.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include "queue.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using opforge::aio::Queue;
using opforge::aio::Request;

namespace {

void copy(char* out, int64_t limit, const std::string& text) {
    if (limit <= 0) return;
    const size_t bytes = std::min<size_t>(text.size(), static_cast<size_t>(limit) - 1);
    std::memcpy(out, text.data(), bytes);
    out[bytes] = 0;
}

}  // namespace

// Returns nullptr with the reason in `problem` if the engine cannot be used.
EXPORT void* aio_start(const char* engine, int64_t block_bytes, int64_t depth, int64_t workers, int direct,
                       char* problem, int64_t problem_limit) {
    std::string reason;
    try {
        auto queue = std::make_unique<Queue>();
        if (queue->start(
                {engine, static_cast<unsigned>(depth), static_cast<unsigned>(workers), block_bytes, direct != 0},
                reason))
            return queue.release();
    } catch (const std::exception& error) {
        reason = error.what();
    }
    copy(problem, problem_limit, reason);
    return nullptr;
}

// Finishes the writes and drops the reads. The queue stays for those who wait for its requests.
EXPORT void aio_stop(void* queue) { static_cast<Queue*>(queue)->stop(); }

EXPORT void aio_delete(void* queue) { delete static_cast<Queue*>(queue); }

// Returns the request, or nullptr with the error number in `error`. The caller releases it.
EXPORT void* aio_submit(void* queue, int write, const char* path, int descriptor, void* memory, int64_t row_bytes,
                        int64_t rows, const int64_t* offsets, int64_t block_bytes, int64_t region, void* region_address,
                        int64_t region_bytes, int* error) {
    Request* request = nullptr;
    try {
        request = new Request;
        request->write = write != 0;
        request->memory = static_cast<char*>(memory);
        request->row_bytes = row_bytes;
        request->block_bytes = block_bytes;
        request->region = {region, static_cast<char*>(region_address), region_bytes};
        request->offsets.assign(offsets, offsets + rows);
        if (descriptor >= 0) {
            // The caller may close its own while the request waits, and the number may become another file's.
            if ((request->descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0)) < 0) {
                *error = errno;
                delete request;
                return nullptr;
            }
        } else {
            request->path = path;
        }
        static_cast<Queue*>(queue)->submit(request);
        return request;
    } catch (const std::bad_alloc&) {
        delete request;
        *error = ENOMEM;
        return nullptr;
    }
}

EXPORT int aio_wait(void* queue, void* request, double seconds) {
    return static_cast<Queue*>(queue)->wait(static_cast<Request*>(request), seconds);
}

EXPORT void aio_cancel(void* queue, void* request) {
    static_cast<Queue*>(queue)->cancel(static_cast<Request*>(request));
}

// Lets go of locked memory that is about to be freed; see Region.
EXPORT void aio_forget(void* queue, int64_t region) { static_cast<Queue*>(queue)->forget(region); }

// Returns how many bytes are registered with the kernel, and the last error number of what it refused.
EXPORT int64_t aio_registered(void* queue, int* error) {
    const opforge::aio::Registration all = static_cast<Queue*>(queue)->registration();
    *error = all.error;
    return all.bytes;
}

// For a finished request: its error number, or 0; where in the file; and how long the file was when it was opened.
EXPORT int aio_outcome(void* request, int64_t* offset, int64_t* file_bytes) {
    const auto* finished = static_cast<const Request*>(request);
    *offset = finished->error_offset;
    *file_bytes = finished->file.bytes;
    return finished->error;
}

EXPORT int64_t aio_finished(void* queue, void** requests, int64_t limit) {
    return static_cast<Queue*>(queue)->finished(reinterpret_cast<Request**>(requests), static_cast<int>(limit));
}

EXPORT void aio_release(void* request) { static_cast<Request*>(request)->release(); }
