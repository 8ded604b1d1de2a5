#pragma once

// One launch over many tensors. Their addresses are a parameter of the kernel, so nothing is copied to the device
// before the launch, and a captured graph contains them. Each tensor is split into chunks of whole tiles; a block
// processes one chunk.

#include <opforge/multi_tensor.h>

#include "tile.h"

namespace opforge::cuda {

// A kernel's parameters may have 4 KB; from CUDA 12.1 on, 32 KB.
constexpr int kFewTensors = 54;
#if !defined(__HIPCC__) && CUDART_VERSION >= 12010
constexpr int kManyTensors = 460;
#else
constexpr int kManyTensors = kFewTensors;
#endif
constexpr int64_t kBlocks = 4096;  // ten times as many as run at once, so that few multiprocessors idle at the end
constexpr int kMostTiles = 8;

template <int kCapacity>
struct Table {
    void* data[kCapacity][kMaxTensors];
    int64_t numel[kCapacity];
    uint32_t first[kCapacity + 1];  // the number of chunks of the tensors before it
    uint32_t index[kCapacity];      // the index among all tensors of the call
    uint8_t dtypes[kCapacity][kMaxTensors];
    bool aligned[kCapacity];
    int count;
    int64_t chunk;  // elements

    __device__ int tensor_of(uint32_t index) const {
        int low = 0, high = count;
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            (first[middle] <= index ? low : high) = middle;
        }
        return low;
    }
    __device__ DType dtype(int tensor, int operand) const { return static_cast<DType>(dtypes[tensor][operand]); }
    __host__ __device__ uint32_t chunks() const { return first[count]; }
};
static_assert(sizeof(Table<kFewTensors>) <= 3840 && sizeof(Table<kManyTensors>) <= 32000, "with the rule beside it");

// What a block processes.
struct Chunk {
    int tensor;
    int64_t begin, end;
    bool whole;
};

template <int kCapacity>
__device__ Chunk chunk_at(const Table<kCapacity>& table, uint32_t index) {
    Chunk out;
    out.tensor = table.tensor_of(index);
    out.begin = static_cast<int64_t>(index - table.first[out.tensor]) * table.chunk;
    out.end = out.begin + table.chunk;
    if (out.end > table.numel[out.tensor]) out.end = table.numel[out.tensor];
    out.whole = table.aligned[out.tensor] && (out.end - out.begin) % kTile == 0;
    return out;
}

// The tile at `begin` of the parameter, its gradient and its states, as floats. Operand kUnread is not read.
template <int kOperands, int kUnread = -1>
struct Values {
    float x[kOperands][kPerThread];

    template <bool kWhole, int kCapacity>
    __device__ void read(const Table<kCapacity>& table, const Chunk& chunk, int64_t begin) {
        uint32_t words[kOperands][kPerThread];
#pragma unroll
        for (int i = 0; i < kOperands; ++i) {
            if (i == kUnread) continue;
            const bool wide = table.dtype(chunk.tensor, i) == DType::Float32;
            load<kWhole>(table.data[chunk.tensor][i], wide, begin, chunk.end, words[i]);
        }
#pragma unroll
        for (int i = 0; i < kOperands; ++i) {
            if (i != kUnread) decode<kWhole>(words[i], table.dtype(chunk.tensor, i), x[i]);
        }
    }
    __device__ void get(int k, float (&element)[kOperands]) const {
#pragma unroll
        for (int i = 0; i < kOperands; ++i) element[i] = i == kUnread ? 0.0f : x[i][k];
    }
    __device__ void put(int k, const float (&element)[kOperands]) {
#pragma unroll
        for (int i = 0; i < kOperands; ++i) x[i][k] = element[i];
    }
    template <bool kWhole, int kCapacity>
    __device__ void write(const Table<kCapacity>& table, const Chunk& chunk, int64_t begin, int i) const {
        store<kWhole>(table.data[chunk.tensor][i], table.dtype(chunk.tensor, i), begin, chunk.end, x[i]);
    }
    template <bool kWhole, int kCapacity>
    __device__ void write_copy(const Table<kCapacity>& table, const Chunk& chunk, int64_t begin) const {
        void* copy = table.data[chunk.tensor][kMaxTensors - 1];
        const DType dtype = table.dtype(chunk.tensor, kMaxTensors - 1);
        if (copy) store<kWhole>(copy, dtype, begin, chunk.end, x[0]);
    }
};

__device__ inline bool is_noop(const void* flag) { return (*static_cast<const uint32_t*>(flag) & 0x7fffffffu) != 0; }

// Applies an elementwise rule in one pass.
template <bool kWhole, typename Rule, int kCapacity>
__device__ void update_chunk(const Table<kCapacity>& table, const Chunk& chunk, const Rule& rule) {
    constexpr int kOperands = 2 + Rule::kStates;
    for (int64_t begin = chunk.begin; begin < chunk.end; begin += kTile) {
        Values<kOperands> values;
        values.template read<kWhole>(table, chunk, begin);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            float element[kOperands];
            values.get(k, element);
            rule(element);
            values.put(k, element);
        }
        values.template write<kWhole>(table, chunk, begin, 0);
#pragma unroll
        for (int i = 2; i < kOperands; ++i) values.template write<kWhole>(table, chunk, begin, i);
        values.template write_copy<kWhole>(table, chunk, begin);
    }
}

template <typename Numbers, int kCapacity>
__global__ void __launch_bounds__(kThreads) update(const OPFORGE_GRID_CONSTANT Table<kCapacity> table,
                                                   const OPFORGE_GRID_CONSTANT Numbers numbers, const void* noop) {
    if (is_noop(noop)) return;
    const Chunk chunk = chunk_at(table, blockIdx.x);
    const auto rule = numbers.rule();
    if (chunk.whole) {
        update_chunk<true>(table, chunk, rule);
    } else {
        update_chunk<false>(table, chunk, rule);
    }
}

// Fills the table with tensors from `begin` on, and returns the index of the first tensor that is not in it. The chunks
// depend only on the tensors, so that sums over chunks are the same on every GPU.
template <int kCapacity>
int64_t fill(Table<kCapacity>& table, const TensorGroups& groups, int64_t begin) {
    int64_t total = 0, at = begin;
    table.count = 0;
    for (; at < groups.count && table.count < kCapacity; ++at) {
        const TensorGroup& group = groups.items[at];
        if (group.numel == 0) continue;
        const int slot = table.count++;
        table.numel[slot] = group.numel;
        table.index[slot] = static_cast<uint32_t>(at);
        table.aligned[slot] = true;
        for (int i = 0; i < kMaxTensors; ++i) {
            table.data[slot][i] = group.data[i];
            table.dtypes[slot][i] = static_cast<uint8_t>(group.dtypes[i]);
            if (reinterpret_cast<uintptr_t>(group.data[i]) % kAlignment != 0) table.aligned[slot] = false;
        }
        total += group.numel;
    }
    int64_t tiles = total / kBlocks / kTile;
    tiles = tiles < 1 ? 1 : tiles > kMostTiles ? kMostTiles : tiles;
    table.chunk = tiles * kTile;
    table.first[0] = 0;
    for (int slot = 0; slot < table.count; ++slot) {
        table.first[slot + 1] =
            table.first[slot] + static_cast<uint32_t>((table.numel[slot] + table.chunk - 1) / table.chunk);
    }
    return at;
}

// Calls step(table) for one table after the other, for all tensors, until one returns a problem.
template <int kCapacity, typename Step>
const char* each_table(const TensorGroups& groups, const Step& step) {
    Table<kCapacity> table;
    for (int64_t begin = 0; begin < groups.count;) {
        const int64_t next = fill(table, groups, begin);
        const char* problem = table.count > 0 ? step(table) : nullptr;
        if (problem) return problem;
        begin = next;
    }
    return nullptr;
}

// The same with the smaller table if that is enough: a large parameter makes each launch slightly slower.
template <typename Step>
const char* each_table(const TensorGroups& groups, const Step& step) {
    return groups.count <= kFewTensors ? each_table<kFewTensors>(groups, step) : each_table<kManyTensors>(groups, step);
}

template <typename Numbers>
const char* launch_update(const TensorGroups& groups, const Numbers& numbers) {
    return each_table(groups, [&](const auto& table) {
        update<Numbers><<<table.chunks(), kThreads, 0, static_cast<cudaStream_t>(groups.executor.stream)>>>(
            table, numbers, groups.noop);
        return launch_problem();
    });
}

}  // namespace opforge::cuda
