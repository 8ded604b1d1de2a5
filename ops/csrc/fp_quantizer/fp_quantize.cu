#include <opforge/fp_quantizing.h>

#include "../cuda/group_codes.h"
#include "fp_words.h"

namespace opforge::cuda {
namespace {

// Groups as rows of floating-point codes, each with its scale behind them.
template <typename Format>
struct FpCodes {
    using Packing = FpWords<Format>;

    FpGroups groups;
    uint8_t* rows;
    bool stochastic;
    PhiloxKeys keys;
    uint64_t offset;

    template <bool kSpecialised, typename Find>
    __device__ GroupRange find(const Find& find) const {
        return find(std::true_type{});
    }
    __device__ FpScale params(const GroupRange& range) const { return FpScale::of(range.largest, Format::range()); }
    template <typename Int>
    __device__ uint8_t* begin(Int group, const FpScale& scale, bool stores) const {
        uint8_t* const row = rows + static_cast<int64_t>(group) * groups.row();
        if (stores) store_scale(row + groups.bytes(groups.elements), scale.scale);
        return row;
    }
    template <bool kSpecialised, typename Use>
    __device__ void finish(const Use& use) const {
        use(Constant<Format::kBits>{}, std::true_type{});
    }
    __device__ static int64_t bytes(int bits, uint32_t codes) { return static_cast<int64_t>(codes) * bits / 8; }

    // Encodes a vector, whose first element is number `at` of all elements, as whole words at an aligned address.
    template <bool kStochastic, bool kCentred, typename T, int kWords>
    __device__ void encode(int, const FpScale& scale, int64_t at, const Vector<T, kWords>& x, uint8_t* to) const {
        static_assert(Vector<T, kWords>::kCount == Packing::kCodes);
        uint32_t codes[Packing::kCodes];
#pragma unroll
        for (int k = 0; k < Packing::kCodes; ++k) codes[k] = Format::kHalf;
        if constexpr (kStochastic) {
            // A vector uses all numbers of one or two draws, or half of a draw.
#pragma unroll
            for (int k = 0; k < Packing::kCodes; k += Philox::kCount) {
                const Philox philox(keys, static_cast<uint64_t>(at + k) / Philox::kCount, offset);
                const bool second = at % Philox::kCount != 0;
#pragma unroll
                for (int i = 0; i < Philox::kCount && k + i < Packing::kCodes; ++i) {
                    const uint32_t word = second ? philox.words[(i + 4) / 2 % 4] : philox.words[i / 2];
                    codes[k + i] = Format::carry(word >> 16 * (i % 2) & 0xffffu);
                }
            }
        }
#pragma unroll
        for (int k = 0; k < Packing::kCodes; ++k) codes[k] = Format::code(x[k] * scale.inverse, codes[k]);
        Packing::store(codes, scale.encodes(), to);
    }

    // The codes that are whole bytes, and their encoding.
    __device__ static int together() { return Format::kBits == 8 ? 1 : Format::kBits == 6 ? 4 : 2; }
    template <typename Source>
    __device__ void encode_together(const FpScale& scale, int64_t begin, const Source& source, uint8_t* to) const {
        uint32_t bits = 0;
#pragma unroll 1
        for (int k = 0; k < together(); ++k) {
            uint32_t carry = Format::kHalf;
            if (stochastic) {
                const auto counter = static_cast<uint64_t>(begin + k);
                const Philox philox(keys, counter / Philox::kCount, offset);
                const auto number = static_cast<int>(counter % Philox::kCount);
                carry = Format::carry(philox.words[number / 2] >> 16 * (number % 2) & 0xffffu);
            }
            bits |= Format::code(source.value(begin + k) * scale.inverse, carry) << k * Format::kBits;
        }
        for (int byte = 0; byte < together() * Format::kBits / 8; ++byte) {
            to[byte] = static_cast<uint8_t>(scale.encodes() ? bits >> 8 * byte : 0);
        }
    }

private:
    __device__ static void store_scale(uint8_t* to, float scale) {
        for (int byte = 0; byte < FpGroups::kScaleBytes; ++byte) to[byte] = to_bits(scale) >> 8 * byte & 0xffu;
    }
};

template <typename Format, typename T>
const char* quantize_values(const FpQuantizeCall& call) {
    constexpr int kCodes = FpWords<Format>::kCodes;
    const FpCodes<Format> codes{call.groups, call.rows, call.stochastic, PhiloxKeys(call.seed), call.offset};
    const bool whole = call.groups.elements % kCodes == 0 && is_aligned(call.input, 16) && is_aligned(call.rows, 4);
    return launch(Values<T, kCodes / kInWord<T>>{static_cast<const T*>(call.input)}, AnyValues{call.input, call.dtype},
                  codes, whole, call.executor);
}

}  // namespace
}  // namespace opforge::cuda

namespace opforge {

const char* launch_fp_quantize(const FpQuantizeCall& call) {
    const char* problem = nullptr;
    with_format(call.groups, [&](auto format) {
        using Format = decltype(format);
        if (call.dtype == DType::Float32) {
            problem = cuda::quantize_values<Format, float>(call);
        } else if (call.dtype == DType::BFloat16) {
            problem = cuda::quantize_values<Format, BFloat16>(call);
        } else {
            problem = cuda::quantize_values<Format, Float16>(call);
        }
    });
    return problem;
}

}  // namespace opforge
