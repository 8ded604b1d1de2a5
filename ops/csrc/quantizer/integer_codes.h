#pragma once

// Groups as integer codes of 8 or 4 bits, whose params are in a tensor of their own.

#include "../cuda/group_vectors.h"

namespace opforge::cuda {

struct IntegerCodes {
    Groups groups;
    uint8_t* codes;
    float* parameters;
    Swizzle swizzle;
    bool stochastic;
    PhiloxKeys keys;
    uint64_t offset;

    // Calls find(centred) for the group's range.
    template <bool kSpecialised, typename Find>
    __device__ GroupRange find(const Find& find) const {
        if (kSpecialised && groups.symmetric) return find(std::bool_constant<kSpecialised>{});
        return find(std::false_type{});
    }
    __device__ GroupParams params(const GroupRange& range) const {
        return GroupParams(range, groups.levels(), groups.symmetric);
    }
    // Returns where the group's codes begin. Writes its params if `stores`. `Int` can hold the number of groups.
    template <typename Int>
    __device__ uint8_t* begin(Int group, const GroupParams& params, bool stores) const {
        const Int position = swizzle.position(group, static_cast<Int>(groups.count));
        if (stores) params.store(parameters, position, groups.symmetric);
        return codes + groups.bytes(static_cast<int64_t>(position) * groups.elements);
    }
    // Calls use(bits, centred).
    template <bool kSpecialised, typename Use>
    __device__ void finish(const Use& use) const {
        if constexpr (kSpecialised) {
            if (groups.symmetric && groups.bits == 8) return use(Constant<8>{}, std::true_type{});
            if (groups.symmetric) return use(Constant<4>{}, std::true_type{});
        }
        use(groups.bits, std::false_type{});
    }
    __device__ static uint32_t bytes(int bits, uint32_t codes) { return bits == 8 ? codes : codes / 2; }

    // Encodes a vector, whose first element is number `at` of all elements, and writes its codes in one store.
    template <bool kStochastic, bool kCentred, typename T, int kWords>
    __device__ void encode(int bits, const GroupParams& params, int64_t at, const Vector<T, kWords>& x,
                           uint8_t* to) const {
        constexpr int kCount = kWords * kInWord<T>;
        const float levels = groups.levels();
        uint32_t codes[kCount];
        // The second code of a byte is 8 too large until the end, so that it does not borrow from the first.
        const float zero[] = {GroupParams::kZero, GroupParams::kZero + (bits == 4 ? 8.0f : 0.0f)};
        if constexpr (kStochastic) {
            // A vector uses all numbers of a draw, or its first or second half.
            const Philox philox(keys, static_cast<uint64_t>(at) / Philox::kCount, offset);
            const bool second = kCount < Philox::kCount && at % Philox::kCount != 0;
#pragma unroll
            for (int k = 0; k < kCount; ++k) {
                const uint32_t word = second ? philox.words[(k + kCount) / 2 % 4] : philox.words[k / 2];
                codes[k] = params.random_code(x[k], levels, Philox::uniform(word, k % 2), zero[k % 2]);
            }
        } else {
#pragma unroll
            for (int k = 0; k < kCount; ++k) {
                codes[k] =
                    kCentred ? params.centred_code(x[k], levels, zero[k % 2]) : params.code(x[k], levels, zero[k % 2]);
            }
        }
        uint32_t words[kCount / 4];
        if (bits == 8) {
#pragma unroll
            for (int w = 0; w < kCount / 4; ++w) words[w] = word_of_bytes(codes + 4 * w, 4);
            if constexpr (kCount == 8) {
                *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
            } else {
                *reinterpret_cast<uint32_t*>(to) = words[0];
            }
        } else {
            uint32_t pairs[kCount / 2];
#pragma unroll
            for (int i = 0; i < kCount / 2; ++i) pairs[i] = codes[2 * i] * 16 + codes[2 * i + 1];
            const uint32_t word = word_of_bytes(pairs, kCount / 2) ^ 0x08080808u;
            if constexpr (kCount == 8) {
                *reinterpret_cast<uint32_t*>(to) = word;
            } else {
                *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(word);
            }
        }
    }

    // The codes that share a byte, and their encoding.
    __device__ int together() const { return groups.bits == 8 ? 1 : 2; }
    template <typename Source>
    __device__ void encode_together(const GroupParams& params, int64_t begin, const Source& source, uint8_t* to) const {
        const float levels = groups.levels();
        uint32_t byte = 0;
#pragma unroll 1
        for (int64_t at = begin; at < begin + together(); ++at) {
            uint32_t code;
            if (stochastic) {
                const auto counter = static_cast<uint64_t>(at);
                const Philox philox(keys, counter / Philox::kCount, offset);
                const float uniform = philox.uniform(static_cast<int>(counter % Philox::kCount));
                code = params.random_code(source.value(at), levels, uniform);
            } else {
                code = params.code(source.value(at), levels);
            }
            byte = together() == 1 ? code : byte << 4 | (code & 0xfu);
        }
        *to = static_cast<uint8_t>(byte);
    }
};

}  // namespace opforge::cuda
