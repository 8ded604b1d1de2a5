#include "../cuda/multi_tensor.h"
#include "../fused/kernels.h"

// LAMB in three launches per table: moments and partial sums of squares, one sum per chunk; the ratio of the norms, one
// block per tensor; the step. The order of the sums depends only on the tensors, so results repeat.

namespace opforge::cuda {
namespace {

constexpr int kOperands = 2 + LambRule::kStates;

// Returns the sum over the block, in every thread of the first warp.
template <typename T>
__device__ T sum_over_block(T value, T* shared) {
    for (int distance = kWarp / 2; distance > 0; distance /= 2) value += shuffle_xor(value, distance);
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = threadIdx.x % kWarp < kThreads / kWarp ? shared[threadIdx.x % kWarp] : T(0);
    for (int distance = kWarp / 2; distance > 0; distance /= 2) value += shuffle_xor(value, distance);
    __syncthreads();  // the next sum writes to the memory that this one reads
    return value;
}

// Whether the thread's k-th element of the tile belongs to the tensor.
template <bool kWhole>
__device__ bool is_inside(const Chunk& chunk, int64_t begin, int k) {
    return kWhole || element(begin, k) < chunk.end;
}

template <bool kWhole, int kCapacity>
__device__ void accumulate_chunk(const Table<kCapacity>& table, const Chunk& chunk, const LambRule& rule, float& params,
                                 float& directions) {
    for (int64_t begin = chunk.begin; begin < chunk.end; begin += kTile) {
        Values<kOperands> values;
        values.template read<kWhole>(table, chunk, begin);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            float x[kOperands];
            values.get(k, x);
            const float direction = rule.accumulate(x);
            if (is_inside<kWhole>(chunk, begin, k)) {
                params = fmaf(x[0], x[0], params);
                directions = fmaf(direction, direction, directions);
            }
            values.put(k, x);
        }
        values.template write<kWhole>(table, chunk, begin, 2);
        values.template write<kWhole>(table, chunk, begin, 3);
    }
}

template <int kCapacity>
__global__ void __launch_bounds__(kThreads)
    accumulate(const OPFORGE_GRID_CONSTANT Table<kCapacity> table, const OPFORGE_GRID_CONSTANT LambNumbers numbers,
               const void* noop, float2* partial) {
    __shared__ float shared[kThreads / kWarp];
    if (is_noop(noop)) return;
    const Chunk chunk = chunk_at(table, blockIdx.x);
    const LambRule rule = numbers.rule();
    float params = 0.0f, directions = 0.0f;
    if (chunk.whole) {
        accumulate_chunk<true>(table, chunk, rule, params, directions);
    } else {
        accumulate_chunk<false>(table, chunk, rule, params, directions);
    }
    params = sum_over_block(params, shared);
    directions = sum_over_block(directions, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = make_float2(params, directions);
}

template <int kCapacity>
__global__ void __launch_bounds__(kThreads)
    take_ratios(const OPFORGE_GRID_CONSTANT Table<kCapacity> table, const OPFORGE_GRID_CONSTANT LambNumbers numbers,
                const void* noop, const float2* partial, float* ratios) {
    __shared__ double shared[kThreads / kWarp];
    if (is_noop(noop)) return;
    double params = 0.0, directions = 0.0;
#pragma unroll 8
    for (uint32_t i = table.first[blockIdx.x] + threadIdx.x; i < table.first[blockIdx.x + 1]; i += kThreads) {
        params += partial[i].x;
        directions += partial[i].y;
    }
    params = sum_over_block(params, shared);
    directions = sum_over_block(directions, shared);
    if (threadIdx.x == 0) ratios[table.index[blockIdx.x]] = numbers.fixed.ratio(params, directions);
}

template <bool kWhole, int kCapacity>
__device__ void descend_chunk(const Table<kCapacity>& table, const Chunk& chunk, const LambRule& rule, float ratio) {
    for (int64_t begin = chunk.begin; begin < chunk.end; begin += kTile) {
        Values<kOperands, 1> values;
        values.template read<kWhole>(table, chunk, begin);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            float x[kOperands];
            values.get(k, x);
            rule.descend(x, ratio);
            values.put(k, x);
        }
        values.template write<kWhole>(table, chunk, begin, 0);
        values.template write_copy<kWhole>(table, chunk, begin);
    }
}

template <int kCapacity>
__global__ void __launch_bounds__(kThreads)
    descend(const OPFORGE_GRID_CONSTANT Table<kCapacity> table, const OPFORGE_GRID_CONSTANT LambNumbers numbers,
            const void* noop, const float* ratios) {
    if (is_noop(noop)) return;
    const Chunk chunk = chunk_at(table, blockIdx.x);
    const LambRule rule = numbers.rule();
    const float ratio = ratios[table.index[chunk.tensor]];
    if (chunk.whole) {
        descend_chunk<true>(table, chunk, rule, ratio);
    } else {
        descend_chunk<false>(table, chunk, rule, ratio);
    }
}

}  // namespace
}  // namespace opforge::cuda

namespace opforge {

int64_t lamb_workspace(const TensorGroups& groups) {
    int64_t most = 0;
    cuda::each_table(groups, [&](const auto& table) -> const char* {
        if (table.chunks() > most) most = table.chunks();
        return nullptr;
    });
    return 2 * most;
}

const char* launch_lamb(const TensorGroups& groups, const LambNumbers& numbers, float* ratios, float* workspace) {
    const auto stream = static_cast<cudaStream_t>(groups.executor.stream);
    const auto partial = reinterpret_cast<float2*>(workspace);
    return cuda::each_table(groups, [&](const auto& table) {
        using namespace cuda;
        accumulate<<<table.chunks(), kThreads, 0, stream>>>(table, numbers, groups.noop, partial);
        take_ratios<<<table.count, kThreads, 0, stream>>>(table, numbers, groups.noop, partial, ratios);
        descend<<<table.chunks(), kThreads, 0, stream>>>(table, numbers, groups.noop, ratios);
        return launch_problem();
    });
}

}  // namespace opforge
