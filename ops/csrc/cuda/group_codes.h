#pragma once

// Encodes groups, for any source of values and any kind of codes. A group is read from memory once: the threads that
// share it hold its values in registers while they compute its range. A group that needs more registers than a block
// has (16 Ki values of 16 bits) is shared by the blocks of a cluster, if the GPU has clusters. What does not fit there
// either is read again, from a cache.

#include "group_vectors.h"

namespace opforge::cuda {

constexpr int kBlockThreads = 256;
constexpr int kMostThreads = 512;  // for one group

// Merges the ranges of `lanes` lanes of a warp, a power of two.
template <bool kCentred>
__device__ void merge_lanes(GroupRange& range, int lanes) {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        if (distance >= lanes) continue;
        GroupRange other = range;
        other.largest = shuffle_xor(range.largest, distance);
        if constexpr (!kCentred) {
            other.low = shuffle_xor(range.low, distance);
            other.high = shuffle_xor(range.high, distance);
        }
        range.add(other);
    }
}

// The 2^shift threads that share a group.
struct Row {
    int lanes, lane;
    int64_t group;

    __device__ explicit Row(int shift) : lanes(1 << shift) {
        const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
        lane = static_cast<int>(thread) & (lanes - 1);
        group = static_cast<int64_t>(thread >> shift);
    }
};

// Merges the ranges of all threads of a row. `shared` has a slot for each warp of the row, or of the block.
template <bool kCentred>
__device__ void merge(GroupRange& range, const Row& row, GroupRange* shared) {
    merge_lanes<kCentred>(range, row.lanes);
    if (row.lanes <= kWarp) return;
    const int lane = row.lane % kWarp, warps = row.lanes / kWarp;
    if (row.lanes <= static_cast<int>(blockDim.x)) {
        shared += static_cast<int>(threadIdx.x) / kWarp & -warps;  // the row's first slot
        if (lane == 0) shared[row.lane / kWarp] = range;
        __syncthreads();
    } else {
        sync_cluster();  // a block's shared memory exists only while the block runs
        if (lane < row.lanes / static_cast<int>(blockDim.x)) {
            auto* to = reinterpret_cast<uint32_t*>(shared + row.lane / kWarp);
            put(to, lane, range.largest), put(to + 1, lane, to_bits(range.low)), put(to + 2, lane, to_bits(range.high));
        }
        sync_cluster();
    }
    range = shared[lane & (warps - 1)];
#pragma unroll 1
    for (int i = lane + kWarp; i < warps; i += kWarp) range.add(shared[i]);
    merge_lanes<kCentred>(range, warps);
}

// For groups of whole vectors at aligned addresses: fewer than 2^31 groups of fewer than 2^30 elements. A thread holds
// `kHeld` vectors of the source at a time, so most groups are read once.
template <typename Source, typename Codes, bool kStochastic>
__global__ void __launch_bounds__(kMostThreads, Source::kResident)
    quantize(const OPFORGE_GRID_CONSTANT Source source, const OPFORGE_GRID_CONSTANT Codes codes, int shift) {
    using Held = typename Source::Held;
    constexpr int kHeld = Source::kHeld;
    __shared__ GroupRange shared[kMostInCluster * kMostThreads / kWarp];
    const Row row(shift);
    // Threads without a vector read one of another thread. That changes no extreme, and an unconditional load is
    // faster.
    const auto count = static_cast<uint32_t>(codes.groups.count);
    const auto end = static_cast<uint32_t>(codes.groups.elements);
    const bool exists = static_cast<uint32_t>(row.group) < count;
    const uint32_t group = exists ? static_cast<uint32_t>(row.group) : count - 1;
    const int64_t first = static_cast<int64_t>(static_cast<uint64_t>(group) * end);
    const uint32_t mine = static_cast<uint32_t>(row.lane) * Held::kCount;
    const uint32_t stride = static_cast<uint32_t>(row.lanes) * Held::kCount;

    Held held[kHeld];
    uint32_t begin = 0;  // the first element that the lanes hold
    const auto load = [&] {
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
            const uint32_t at = begin + mine + h * stride;
            held[h] = source.load(first, at < end ? at : end - Held::kCount);
        }
    };
    load();
    const auto find = [&](auto centred) {
        Extremes<typename Source::Element, centred.value> extremes;
#pragma unroll 1
        for (;;) {
#pragma unroll
            for (int h = 0; h < kHeld; ++h) extremes.add(held[h]);
            if (end - begin <= kHeld * stride) break;
            begin += kHeld * stride;
            load();
        }
        GroupRange range = extremes.range();
        merge<centred.value>(range, row, shared);
        return range;
    };
    const GroupRange range = codes.template find<Source::kSpecialised>(find);
    if (!exists) return;

    const auto params = codes.params(range);
    uint8_t* const to = codes.begin(group, params, row.lane == 0);
    // Backwards: the lanes still hold what was read last, and what was read before that is most likely in a cache.
    // `bits` and `centred` are constants if that is worth the extra code.
    codes.template finish<Source::kSpecialised && !kStochastic>([&](auto bits, auto centred) {
#pragma unroll 1
        for (;;) {
#pragma unroll
            for (int h = 0; h < kHeld; ++h) {
                const uint32_t at = begin + mine + h * stride;
                if (at >= end) continue;
                codes.template encode<kStochastic, centred.value>(bits, params, first + at, held[h],
                                                                  to + codes.bytes(bits, at));
            }
            if (begin == 0) break;
            begin -= kHeld * stride;
            load();
        }
    });
}

// For groups of any size at any address: as many codes at a time as are whole bytes.
template <typename Source, typename Codes>
__global__ void __launch_bounds__(kBlockThreads)
    quantize_any(const OPFORGE_GRID_CONSTANT Source source, const OPFORGE_GRID_CONSTANT Codes codes, int shift) {
    __shared__ GroupRange shared[kBlockThreads / kWarp];
    const Row row(shift);
    const bool exists = row.group < codes.groups.count;
    const int64_t first = row.group * codes.groups.elements;
    const int64_t end = exists ? first + codes.groups.elements : first;
    GroupRange range = GroupRange::of_nothing();
#pragma unroll 1
    for (int64_t at = first + row.lane; at < end; at += row.lanes) range.add(source.value(at));
    merge<false>(range, row, shared);
    if (!exists) return;

    const auto params = codes.params(range);
    uint8_t* const to = codes.begin(row.group, params, row.lane == 0);
    const int together = codes.together();
#pragma unroll 1
    for (int64_t at = first + row.lane * together; at < end; at += row.lanes * together) {
        codes.encode_together(params, at, source, to + codes.groups.bytes(at - first));
    }
}

// Launches `quantize` with enough threads per row to hold a group, or with the largest number of threads.
template <bool kStochastic, typename Source, typename Codes>
const char* launch_rows(const Source& source, const Codes& codes, int64_t vectors, cudaStream_t stream) {
    const auto kernel = &quantize<Source, Codes, kStochastic>;
    int most = kMostThreads;
    if (vectors > static_cast<int64_t>(Source::kHeld) * most && has_clusters(kernel)) most *= kMostInCluster;
    int shift = 0;
    while (1 << shift < most && static_cast<int64_t>(Source::kHeld) << shift < vectors) ++shift;
    const int64_t lanes = 1 << shift;
    const int threads = lanes <= kBlockThreads ? kBlockThreads : kMostThreads;
    const int64_t blocks = (codes.groups.count * lanes + threads - 1) / threads;
    if (blocks > 0x7fffffff) return "it has more groups than a launch can have blocks";
    const auto grid = static_cast<unsigned>(blocks);
    if (lanes > threads) {
        return launch_clusters(kernel, static_cast<unsigned>(lanes / threads), grid, threads, stream, source, codes,
                               shift);
    }
    quantize<Source, Codes, kStochastic><<<grid, threads, 0, stream>>>(source, codes, shift);
    return launch_problem();
}

// Launches `quantize`, or `quantize_any` with the source `any`, which reads the same values one by one.
template <typename Source, typename Any, typename Codes>
const char* launch(const Source& source, const Any& any, const Codes& codes, bool whole, const Executor& executor) {
    const auto& groups = codes.groups;
    const int64_t vectors = (groups.elements + Source::Held::kCount - 1) / Source::Held::kCount;
    const auto stream = static_cast<cudaStream_t>(executor.stream);
    if (!whole || groups.elements >= 1 << 30 || groups.count > 0x7fffffff) {
        const int64_t each = groups.elements / 8;
        const int shift = each < 2 ? 0 : each < kWarp ? 3 : each < kBlockThreads ? 5 : 8;
        const int64_t blocks = ((groups.count << shift) + kBlockThreads - 1) / kBlockThreads;
        if (blocks > 0x7fffffff) return "it has more groups than a launch can have blocks";
        quantize_any<<<static_cast<unsigned>(blocks), kBlockThreads, 0, stream>>>(any, codes, shift);
        return launch_problem();
    }
    if constexpr (Source::kCanBeStochastic) {
        if (codes.stochastic) return launch_rows<true>(source, codes, vectors, stream);
    }
    return launch_rows<false>(source, codes, vectors, stream);
}

inline bool is_aligned(const void* address, size_t size) { return reinterpret_cast<uintptr_t>(address) % size == 0; }

}  // namespace opforge::cuda
