#pragma once

// Groups turned to codes, whatever their values come from. A group is read from memory once: the threads that share it
// hold its values in registers while they find its range. Only what is beyond the registers of a block, 16 Ki
// values of 16 bits, is read again, from a cache.

#include <opforge/quantizing.h>

#include "runtime.h"

namespace opforge::cuda {

constexpr int kBlockThreads = 256;
constexpr int kMostThreads = 512;  // for one group

// What a kernel knows of its output.
struct Output {
    Groups groups;
    uint8_t* codes;
    float* params;
    Swizzle swizzle;
    bool stochastic;
    uint64_t seed, offset;
};

// Turns a vector of values, of which the first is element `at` of all and `within` of its group, to codes.
template <bool kStochastic, int kCount>
__device__ void write(const Output& out, const GroupParams& params, int64_t place, int64_t at, int64_t within,
                      const float (&x)[kCount]) {
    const float levels = out.groups.levels();
    uint32_t codes[kCount];
#pragma unroll
    for (int k = 0; k < kCount; k += 4) {
        if constexpr (kStochastic) {
            const Philox philox(out.seed, static_cast<uint64_t>(at + k) / 4, out.offset);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                codes[k + i] = static_cast<uint32_t>(params.code(x[k + i], levels, philox.uniform(i)));
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) codes[k + i] = static_cast<uint32_t>(params.code(x[k + i], levels));
        }
    }
    uint8_t* to = out.codes + out.groups.bytes(place * out.groups.elements + within);
    if (out.groups.bits == 8) {
        uint32_t words[kCount / 4];
#pragma unroll
        for (int w = 0; w < kCount / 4; ++w) {
            const uint32_t* four = codes + 4 * w;
            words[w] = (four[0] & 0xffu) | (four[1] & 0xffu) << 8 | (four[2] & 0xffu) << 16 | four[3] << 24;
        }
        if constexpr (kCount == 8) {
            *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
        } else {
            *reinterpret_cast<uint32_t*>(to) = words[0];
        }
    } else {
        uint32_t word = 0;
#pragma unroll
        for (int k = 0; k < kCount; k += 2) {
            word |= ((codes[k] & 0xfu) << 4 | (codes[k + 1] & 0xfu)) << 4 * k;
        }
        if constexpr (kCount == 8) {
            *reinterpret_cast<uint32_t*>(to) = word;
        } else {
            *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(word);
        }
    }
}

__device__ inline void merge(GroupRange& range, int lanes, GroupRange* shared) {
    for (int distance = (lanes < kWarp ? lanes : kWarp) / 2; distance > 0; distance /= 2) {
        GroupRange other;
        other.largest = shuffle_xor(range.largest, distance);
        other.low = shuffle_xor(range.low, distance);
        other.high = shuffle_xor(range.high, distance);
        range.add(other);
    }
    if (lanes <= kWarp) return;
    const int warp = threadIdx.x / kWarp;
    if (threadIdx.x % kWarp == 0) shared[warp] = range;
    __syncthreads();
    const int warps = lanes / kWarp;
    for (int i = 0; i < warps; ++i) range.add(shared[warp / warps * warps + i]);
}

// The threads that share a group.
struct Row {
    int lanes;  // how many: a power of two
    int lane;
    int64_t group;
    int64_t first, end;  // its elements; none where there is no such group

    __device__ Row(const Groups& groups, int count) : lanes(count) {
        const int thread = static_cast<int>(threadIdx.x);
        lane = thread % lanes;
        group = static_cast<int64_t>(blockIdx.x) * (static_cast<int>(blockDim.x) / lanes) + thread / lanes;
        first = group * groups.elements;
        end = group < groups.count ? first + groups.elements : first;
    }
};

// Groups of whole vectors at aligned addresses. `kBeyond`: a group may be larger than what its threads hold.
template <typename Source, int kHeld, bool kBeyond, bool kStochastic>
__global__ void __launch_bounds__(kMostThreads, Source::kResident)
    quantize(const OPFORGE_GRID_CONSTANT Source source, const OPFORGE_GRID_CONSTANT Output out, int lanes) {
    constexpr int kCount = Source::kCount;
    __shared__ GroupRange shared[kMostThreads / kWarp];
    const Row row(out.groups, lanes);
    const int64_t stride = static_cast<int64_t>(lanes) * kCount;
    const int64_t mine = row.first + row.lane * kCount;
    const auto add = [&](GroupRange& range, const typename Source::Held& one) {
        float x[kCount];
        Source::decode(one, x);
#pragma unroll
        for (int k = 0; k < kCount; ++k) range.add(x[k]);
    };

    typename Source::Held held[kHeld] = {};
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
        if (mine + h * stride < row.end) held[h] = source.load(mine + h * stride);
    }
    GroupRange range = GroupRange::of_nothing();
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
        if (mine + h * stride < row.end) add(range, held[h]);
    }
    if constexpr (kBeyond) {
#pragma unroll 2
        for (int64_t at = mine + kHeld * stride; at < row.end; at += stride) add(range, source.load(at));
    }
    merge(range, lanes, shared);
    if (row.first == row.end) return;

    const GroupParams params(range, out.groups.levels(), out.groups.symmetric);
    const int64_t place = out.swizzle.place(row.group, out.groups.count);
    if (row.lane == 0) params.store(out.params, place, out.groups.symmetric);
    const auto finish = [&](const typename Source::Held& one, int64_t at) {
        float x[kCount];
        Source::decode(one, x);
        write<kStochastic>(out, params, place, at, at - row.first, x);
    };
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
        if (mine + h * stride < row.end) finish(held[h], mine + h * stride);
    }
    if constexpr (kBeyond) {
#pragma unroll 1
        for (int64_t at = mine + kHeld * stride; at < row.end; at += stride) finish(source.load(at), at);
    }
}

// Groups of any size at any address: element by element, or pair by pair where two share a byte.
template <typename Source>
__global__ void __launch_bounds__(kMostThreads, Source::kResident)
    quantize_any(const OPFORGE_GRID_CONSTANT Source source, const OPFORGE_GRID_CONSTANT Output out, int lanes) {
    __shared__ GroupRange shared[kMostThreads / kWarp];
    const Row row(out.groups, lanes);
    GroupRange range = GroupRange::of_nothing();
#pragma unroll 1
    for (int64_t at = row.first + row.lane; at < row.end; at += lanes) range.add(source.one(at));
    merge(range, lanes, shared);
    if (row.first == row.end) return;

    const float levels = out.groups.levels();
    const GroupParams params(range, levels, out.groups.symmetric);
    const int64_t place = out.swizzle.place(row.group, out.groups.count);
    if (row.lane == 0) params.store(out.params, place, out.groups.symmetric);
    uint8_t* to = out.codes + out.groups.bytes(place * out.groups.elements);
    const int together = out.groups.bits == 8 ? 1 : 2;
#pragma unroll 1
    for (int64_t begin = row.first + row.lane * together; begin < row.end; begin += lanes * together) {
        int byte = 0;
#pragma unroll 1
        for (int64_t at = begin; at < begin + together; ++at) {
            int code;
            if (out.stochastic) {
                const auto counter = static_cast<uint64_t>(at);
                const Philox philox(out.seed, counter / 4, out.offset);
                code = params.code(source.one(at), levels, philox.uniform(static_cast<int>(counter % 4)));
            } else {
                code = params.code(source.one(at), levels);
            }
            byte = together == 1 ? code : byte << 4 | (code & 0xf);
        }
        to[(begin - row.first) / together] = static_cast<uint8_t>(byte);
    }
}

template <typename Source>
const char* launch(const Source& source, const Output& out, bool whole, const Place& place) {
    const int64_t vectors = (out.groups.elements + Source::kCount - 1) / Source::kCount;
    int lanes = 1;
    while (lanes < kMostThreads && lanes * 2 < vectors) lanes *= 2;
    const int threads = lanes > kBlockThreads ? lanes : kBlockThreads;
    const int64_t blocks = (out.groups.count + threads / lanes - 1) / (threads / lanes);
    if (blocks > 0x7fffffff) return "it has more groups than a launch can have blocks";
    const auto grid = static_cast<unsigned>(blocks);
    const auto stream = static_cast<cudaStream_t>(place.stream);
    if (!whole) {
        quantize_any<<<grid, threads, 0, stream>>>(source, out, lanes);
    } else if (out.stochastic) {
        if constexpr (Source::kCanBeStochastic) {
            quantize<Source, 2, true, true><<<grid, threads, 0, stream>>>(source, out, lanes);
        }
    } else if (Source::kMayBeSmall && vectors <= 2 * static_cast<int64_t>(lanes)) {
        if constexpr (Source::kMayBeSmall) {
            quantize<Source, 2, false, false><<<grid, threads, 0, stream>>>(source, out, lanes);
        }
    } else {
        quantize<Source, Source::kMostHeld, true, false><<<grid, threads, 0, stream>>>(source, out, lanes);
    }
    return launch_problem();
}

inline bool is_aligned(const void* address, size_t size) { return reinterpret_cast<uintptr_t>(address) % size == 0; }

}  // namespace opforge::cuda
