#pragma once

#include "group.h"
#include "reduce.h"

namespace opforge::shm {

enum Kind : uint32_t { kBarrier = 1, kAllReduce, kReduceScatter, kAllGather, kBroadcast, kAllToAll, kSend };

// `inputs` and `outputs` have a pointer for each rank. Results may be where the values were.
void barrier(Group& group, double seconds);
void all_reduce(Group& group, void* data, size_t count, uint32_t dtype, uint32_t op, double seconds);
void reduce_scatter(Group& group, const void* const* inputs, void* out, size_t count, uint32_t dtype, uint32_t op,
                    double seconds);
void all_gather(Group& group, const void* in, void* const* outputs, size_t bytes, uint32_t dtype, double seconds);
void broadcast(Group& group, void* data, size_t bytes, uint32_t dtype, uint32_t root, double seconds);
// The sizes are bytes, and must be what the other rank expects.
void all_to_all(Group& group, const void* const* inputs, const uint64_t* input_bytes, void* const* outputs,
                const uint64_t* output_bytes, uint32_t dtype, double seconds);

}  // namespace opforge::shm
