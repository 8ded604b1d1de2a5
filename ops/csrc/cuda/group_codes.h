#pragma once

// Groups turned to codes, whatever their values come from. A group is read from memory once: the threads that share it
// hold its values in registers while they find its range. Only what is beyond the registers of a block, 16 Ki
// values of 16 bits, is read again, from a cache.

#include <opforge/quantizing.h>

#include "words.h"

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

// A vector of values as it lies in registers: kWords words of T.
template <typename T, int kWords>
struct Vector {
    static constexpr int kCount = kWords * kInWord<T>;
    uint32_t words[kWords];

    __device__ float operator[](int k) const { return value_in<T>(words[k / kInWord<T>], k % kInWord<T>); }
};

// What is known of the values in words, place by place of a word: NaN where one was. Of a centred group, whose offset is
// zero, it is enough to know the largest magnitude, `high`.
template <typename T, bool kCentred>
struct Extremes {
    uint32_t low = repeated(INFINITY), high = kCentred ? 0 : repeated(-INFINITY);

    template <int kWords>
    __device__ void add(const Vector<T, kWords>& x) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
            if constexpr (!kCentred) low = smaller_of<T>(low, x.words[w]);
            high = larger_of<T>(high, kCentred ? magnitudes<T>(x.words[w]) : x.words[w]);
        }
    }
    __device__ GroupRange range() const {
        GroupRange out = GroupRange::of_nothing();
#pragma unroll
        for (int k = 0; k < kInWord<T>; ++k) {
            if constexpr (kCentred) {
                out.add_magnitude(value_in<T>(high, k));
            } else {
                out.add(value_in<T>(low, k)), out.add(value_in<T>(high, k));
            }
        }
        return out;
    }

private:
    __device__ static uint32_t repeated(float x) {
        if constexpr (sizeof(T) == 4) {
            return to_bits(x);
        } else {
            return word_of<T>(x, x);
        }
    }
};

// Turns a vector whose first element is number `at` of all to codes, and writes them at once.
template <int kBits, bool kStochastic, bool kCentred, typename T, int kWords>
__device__ void encode(const Output& out, const GroupParams& params, int64_t at, const Vector<T, kWords>& x,
                       uint8_t* to) {
    constexpr int kCount = kWords * kInWord<T>;
    const float levels = out.groups.levels();
    uint32_t codes[kCount];
    // Of two in a byte the second is 8 too large until the end, so that it borrows nothing from the first.
    const auto zero = [](int k) { return GroupParams::kZero + (kBits == 4 && k % 2 == 1 ? 8.0f : 0.0f); };
    if constexpr (kStochastic) {
        // A vector has all the numbers of a draw, or the first or second half of them.
        const Philox philox(out.seed, static_cast<uint64_t>(at) / Philox::kCount, out.offset);
        const bool second = kCount < Philox::kCount && at % Philox::kCount != 0;
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
            const uint32_t word = second ? philox.words[(k + kCount) / 2 % 4] : philox.words[k / 2];
            codes[k] = params.random_code(x[k], levels, Philox::uniform(word, k % 2), zero(k));
        }
    } else {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
            codes[k] = kCentred ? params.centred_code(x[k], levels, zero(k)) : params.code(x[k], levels, zero(k));
        }
    }
    constexpr int kBytes = kCount * kBits / 8;
    uint32_t bytes[kBytes];
#pragma unroll
    for (int i = 0; i < kBytes; ++i) bytes[i] = kBits == 8 ? codes[i] : codes[2 * i] * 16 + codes[2 * i + 1];
    uint32_t words[(kBytes + 3) / 4] = {};
#pragma unroll
    for (int i = 0; i < kBytes; ++i) words[i / 4] |= (bytes[i] & 0xffu) << i % 4 * 8;
    if constexpr (kBits == 4) words[0] ^= 0x08080808u;
    if constexpr (kBytes == 8) {
        *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    } else if constexpr (kBytes == 4) {
        *reinterpret_cast<uint32_t*>(to) = words[0];
    } else {
        *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(words[0]);
    }
}

// What some lanes of a warp, a power of two of them, know together.
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

// What all the threads of a group know together.
template <bool kCentred>
__device__ void merge(GroupRange& range, int lanes, GroupRange* shared) {
    merge_lanes<kCentred>(range, lanes);
    if (lanes <= kWarp) return;
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warps = lanes / kWarp;  // a power of two, and no more than a warp has lanes
    if (lane == 0) shared[warp] = range;
    __syncthreads();
    range = shared[(warp & -warps) + (lane & (warps - 1))];
    merge_lanes<kCentred>(range, warps);
}

// The threads that share a group, 2^shift of them.
struct Row {
    int lanes, lane;
    int64_t group;

    __device__ explicit Row(int shift)
        : lanes(1 << shift),
          lane(static_cast<int>(threadIdx.x) & (lanes - 1)),
          group(static_cast<int64_t>(blockIdx.x) * (blockDim.x >> shift) + (threadIdx.x >> shift)) {}
};

// Groups of whole vectors at aligned addresses, fewer than 2^31, of fewer than 2^30 elements. A thread holds kHeld
// vectors at a time: most groups are read once.
template <typename Source, int kHeld, bool kStochastic>
__global__ void __launch_bounds__(kMostThreads, Source::kResident)
    quantize(const OPFORGE_GRID_CONSTANT Source source, const OPFORGE_GRID_CONSTANT Output out, int shift) {
    using Held = typename Source::Held;
    __shared__ GroupRange shared[kMostThreads / kWarp];
    const bool symmetric = out.groups.symmetric;
    const Row row(shift);
    // Who has nothing to read reads what another does: it changes no extreme, and a load that is always made costs less.
    const auto count = static_cast<uint32_t>(out.groups.count), end = static_cast<uint32_t>(out.groups.elements);
    const bool exists = static_cast<uint32_t>(row.group) < count;
    const uint32_t group = exists ? static_cast<uint32_t>(row.group) : count - 1;
    const int64_t first = static_cast<int64_t>(static_cast<uint64_t>(group) * end);
    const uint32_t mine = static_cast<uint32_t>(row.lane) * Held::kCount;
    const uint32_t stride = static_cast<uint32_t>(row.lanes) * Held::kCount;

    Held held[kHeld];
    uint32_t begin = 0;  // of what all lanes hold
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
        merge<centred.value>(range, row.lanes, shared);
        return range;
    };
    const GroupRange range = symmetric ? find(std::true_type{}) : find(std::false_type{});
    if (!exists) return;

    const GroupParams params(range, out.groups.levels(), symmetric);
    const uint32_t place = out.swizzle.place(group, count);
    if (row.lane == 0) params.store(out.params, place, symmetric);
    uint8_t* const to = out.codes + out.groups.bytes(static_cast<int64_t>(static_cast<uint64_t>(place) * end));
    // Backwards, since what was read last is held, and what was read before it is the likeliest to be in a cache.
    const auto finish = [&](auto bits, auto centred) {
#pragma unroll 1
        for (;;) {
#pragma unroll
            for (int h = 0; h < kHeld; ++h) {
                const uint32_t at = begin + mine + h * stride;
                if (at >= end) continue;
                encode<bits.value, kStochastic, centred.value>(out, params, first + at, held[h],
                                                               to + at * bits.value / 8);
            }
            if (begin == 0) break;
            begin -= kHeld * stride;
            load();
        }
    };
    using Eight = std::integral_constant<int, 8>;
    using Four = std::integral_constant<int, 4>;
    if (symmetric && !kStochastic) {
        out.groups.bits == 8 ? finish(Eight{}, std::true_type{}) : finish(Four{}, std::true_type{});
    } else {
        out.groups.bits == 8 ? finish(Eight{}, std::false_type{}) : finish(Four{}, std::false_type{});
    }
}

// Groups of any size at any address: element by element, or pair by pair where two share a byte.
template <typename Source>
__global__ void __launch_bounds__(kMostThreads, Source::kResident)
    quantize_any(const OPFORGE_GRID_CONSTANT Source source, const OPFORGE_GRID_CONSTANT Output out, int shift) {
    __shared__ GroupRange shared[kMostThreads / kWarp];
    const Row row(shift);
    const bool exists = row.group < out.groups.count;
    const int64_t first = row.group * out.groups.elements;
    const int64_t end = exists ? first + out.groups.elements : first;
    GroupRange range = GroupRange::of_nothing();
#pragma unroll 1
    for (int64_t at = first + row.lane; at < end; at += row.lanes) range.add(source.one(at));
    merge<false>(range, row.lanes, shared);
    if (!exists) return;

    const float levels = out.groups.levels();
    const GroupParams params(range, levels, out.groups.symmetric);
    const int64_t place = out.swizzle.place(row.group, out.groups.count);
    if (row.lane == 0) params.store(out.params, place, out.groups.symmetric);
    uint8_t* to = out.codes + out.groups.bytes(place * out.groups.elements);
    const int together = out.groups.bits == 8 ? 1 : 2;
#pragma unroll 1
    for (int64_t begin = first + row.lane * together; begin < end; begin += row.lanes * together) {
        uint32_t byte = 0;
#pragma unroll 1
        for (int64_t at = begin; at < begin + together; ++at) {
            uint32_t code;
            if (out.stochastic) {
                const auto counter = static_cast<uint64_t>(at);
                const Philox philox(out.seed, counter / Philox::kCount, out.offset);
                const float uniform = philox.uniform(static_cast<int>(counter % Philox::kCount));
                code = params.random_code(source.one(at), levels, uniform);
            } else {
                code = params.code(source.one(at), levels);
            }
            byte = together == 1 ? code : byte << 4 | (code & 0xfu);
        }
        to[(begin - first) / together] = static_cast<uint8_t>(byte);
    }
}

template <typename Source>
const char* launch(const Source& source, const Output& out, bool whole, const Place& place) {
    const Groups& groups = out.groups;
    const int64_t vectors = (groups.elements + Source::Held::kCount - 1) / Source::Held::kCount;
    // Much for each thread to do, but at least four neighbours that read side by side.
    const bool few = vectors <= 4 * Source::kFewHeld || out.stochastic;
    const int held = few ? Source::kFewHeld : Source::kMostHeld;
    int shift = 0;
    while (1 << shift < kMostThreads && static_cast<int64_t>(held) << shift < vectors) ++shift;
    const int threads = 1 << shift > kBlockThreads ? 1 << shift : kBlockThreads;
    const int64_t in_block = threads >> shift;
    const int64_t blocks = (groups.count + in_block - 1) / in_block;
    if (blocks > 0x7fffffff) return "it has more groups than a launch can have blocks";
    const auto grid = static_cast<unsigned>(blocks);
    const auto stream = static_cast<cudaStream_t>(place.stream);
    if (!whole || groups.elements >= 1 << 30 || groups.count > 0x7fffffff) {
        quantize_any<<<grid, threads, 0, stream>>>(source, out, shift);
    } else if (out.stochastic) {
        if constexpr (Source::kCanBeStochastic) {
            quantize<Source, Source::kFewHeld, true><<<grid, threads, 0, stream>>>(source, out, shift);
        }
    } else if (few) {
        quantize<Source, Source::kFewHeld, false><<<grid, threads, 0, stream>>>(source, out, shift);
    } else {
        quantize<Source, Source::kMostHeld, false><<<grid, threads, 0, stream>>>(source, out, shift);
    }
    return launch_problem();
}

inline bool is_aligned(const void* address, size_t size) { return reinterpret_cast<uintptr_t>(address) % size == 0; }

}  // namespace opforge::cuda
