// The op's functions. They are called through ctypes, which releases the interpreter's lock; none raises an exception.
// Those that communicate return 0, an error number, or one of Outcome.

#include <sched.h>

#include <cerrno>
#include <new>

#include "collectives.h"
#include "messages.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace opforge::shm;

namespace {

enum Outcome : int { kFailed = -1, kClosed = -2 };

struct Handle {
    Group group;
    Messages messages;
    Handle(int descriptor, uint32_t ranks, uint32_t rank, uint64_t token)
        : group(descriptor, ranks, rank, token), messages(group) {}
};

template <typename Call>
int outcome(Call call) {
    try {
        call();
        return 0;
    } catch (const Failed&) {
        return kFailed;
    } catch (const Closed&) {
        return kClosed;
    } catch (const Invalid& problem) {
        return problem.error;
    } catch (const std::bad_alloc&) {
        return ENOMEM;
    } catch (...) {
        return EINVAL;
    }
}

Group& group_of(void* handle) { return static_cast<Handle*>(handle)->group; }

}  // namespace

EXPORT uint32_t shm_most_ranks() { return kMostRanks; }

EXPORT int64_t shm_rank_bytes(uint32_t ranks) { return static_cast<int64_t>(Layout(ranks).rank_bytes); }

// Returns 2 if the reductions were compiled for AVX-512, 1 for AVX2, else 0.
EXPORT int shm_vector_level() {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
    return 2;
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
    return 1;
#else
    return 0;
#endif
}

EXPORT uint64_t shm_start_time(uint32_t process) { return start_time(process); }

EXPORT int shm_create(uint32_t ranks, uint64_t token, const uint32_t* processes, const uint64_t* started,
                      int* descriptor) {
    return outcome([&] { *descriptor = Group::create(ranks, token, processes, started); });
}

EXPORT int shm_attach(int descriptor, uint32_t ranks, uint32_t rank, uint64_t token, void** handle) {
    return outcome([&] { *handle = new Handle(descriptor, ranks, rank, token); });
}

EXPORT int shm_join(void* handle, double seconds) {
    return outcome([&] { group_of(handle).join(seconds); });
}

EXPORT void shm_close(void* handle) { group_of(handle).close(); }

EXPORT void shm_delete(void* handle) { delete static_cast<Handle*>(handle); }

// Writes why the group has failed. Returns 0 if it has not, or if the rank that was to write the reason did not within
// a second: it takes a moment, unless the rank is killed in it.
EXPORT int shm_failure(void* handle, Failure* failure) {
    Header& header = group_of(handle).header();
    const auto deadline = deadline_after(1.0);
    while (header.failure_state.load(std::memory_order_acquire) == 1 && Clock::now() < deadline) sched_yield();
    if (header.failure_state.load(std::memory_order_acquire) != 2) return 0;
    *failure = header.failure;
    return 1;
}

EXPORT int shm_reduces(uint32_t dtype, uint32_t op) {
    return dtype < kDTypes && op < kOps && reduction(dtype, op) != nullptr;
}

EXPORT int shm_barrier(void* handle, double seconds) {
    return outcome([&] { barrier(group_of(handle), seconds); });
}

EXPORT int shm_all_reduce(void* handle, void* data, uint64_t count, uint32_t dtype, uint32_t op, double seconds) {
    return outcome([&] { all_reduce(group_of(handle), data, count, dtype, op, seconds); });
}

EXPORT int shm_reduce_scatter(void* handle, const void* const* inputs, void* out, uint64_t count, uint32_t dtype,
                              uint32_t op, double seconds) {
    return outcome([&] { reduce_scatter(group_of(handle), inputs, out, count, dtype, op, seconds); });
}

EXPORT int shm_all_gather(void* handle, const void* in, void* const* outputs, uint64_t bytes, uint32_t dtype,
                          double seconds) {
    return outcome([&] { all_gather(group_of(handle), in, outputs, bytes, dtype, seconds); });
}

EXPORT int shm_broadcast(void* handle, void* data, uint64_t bytes, uint32_t dtype, uint32_t root, double seconds) {
    return outcome([&] { broadcast(group_of(handle), data, bytes, dtype, root, seconds); });
}

EXPORT int shm_all_to_all(void* handle, const void* const* inputs, const uint64_t* input_bytes, void* const* outputs,
                          const uint64_t* output_bytes, uint32_t dtype, double seconds) {
    return outcome([&] { all_to_all(group_of(handle), inputs, input_bytes, outputs, output_bytes, dtype, seconds); });
}

EXPORT int shm_send(void* handle, const void* data, uint64_t bytes, uint32_t dtype, uint32_t to, uint64_t tag,
                    double seconds) {
    return outcome([&] { static_cast<Handle*>(handle)->messages.send(data, bytes, dtype, to, tag, seconds); });
}

EXPORT int shm_receive(void* handle, void* data, uint64_t bytes, uint32_t dtype, uint32_t from, uint64_t tag,
                       double seconds) {
    return outcome([&] { static_cast<Handle*>(handle)->messages.receive(data, bytes, dtype, from, tag, seconds); });
}

EXPORT int shm_receive_any(void* handle, void* data, uint64_t bytes, uint32_t dtype, uint64_t tag, uint32_t* from,
                           double seconds) {
    return outcome(
        [&] { *from = static_cast<Handle*>(handle)->messages.receive_any(data, bytes, dtype, tag, seconds); });
}
