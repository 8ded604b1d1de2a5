#include <opforge/fp_quantizing.h>

#include <opforge/element.h>

#include <type_traits>

#if defined(__BMI2__)
#include <immintrin.h>
#endif

#include "../simd/streaming.h"
#include "../update.h"
#include "random_halves.h"

namespace opforge {
namespace {

constexpr int64_t kWord = 8;  // bytes
static_assert(cpu::kBlock % kWord == 0, "only the last block of a group has a part of a word");

// A code in memory before it is packed.
template <typename Format>
using Lane = std::conditional_t<(Format::kBits > 8), uint16_t, uint8_t>;

// The codes in one word, and their bytes when they are packed.
template <typename Format>
constexpr int64_t kCodes = kWord / static_cast<int64_t>(sizeof(Lane<Format>));
template <typename Format>
constexpr int64_t kBytes = kCodes<Format> * Format::kBits / 8;

// Calls work(begin, count) for each block of `total` elements.
template <typename Work>
void each_block(int64_t total, const Work& work) {
    for (int64_t begin = 0; begin < total; begin += cpu::kBlock) work(begin, std::min(cpu::kBlock, total - begin));
}

// Returns the bits of the largest magnitude as a float. Bits have the order of the magnitudes, with NaN above all.
uint32_t largest_magnitude(const float* x, int64_t count) {
    int32_t largest = 0;
    for (int64_t k = 0; k < count; ++k) {
        const auto magnitude = static_cast<int32_t>(to_bits(x[k]) & 0x7fffffffu);
        largest = magnitude > largest ? magnitude : largest;
    }
    return static_cast<uint32_t>(largest);
}
template <typename T>
uint32_t largest_magnitude(const T* x, int64_t count) {
    int16_t largest = 0;
    for (int64_t k = 0; k < count; ++k) {
        const auto magnitude = static_cast<int16_t>(x[k].bits & 0x7fffu);
        largest = magnitude > largest ? magnitude : largest;
    }
    return to_bits(to_float(T{static_cast<uint16_t>(largest)}));
}

// The bits of a word in which its codes are before they are packed.
template <typename Format>
constexpr uint64_t kCodeBits =
    ~uint64_t{0} / (~uint64_t{0} >> (64 - 8 * sizeof(Lane<Format>))) * ((uint64_t{1} << Format::kBits) - 1);

// Return a word's codes together in its lowest bits, and back. All CPUs with AVX-512 have an instruction for each; on
// older ones of AMD it takes hundreds of cycles.
#if defined(__AVX512BW__) && defined(__BMI2__)
template <typename Format>
uint64_t pack_word(uint64_t lanes) {
    return _pext_u64(lanes, kCodeBits<Format>);
}
template <typename Format>
uint64_t unpack_word(uint64_t codes) {
    return _pdep_u64(codes, kCodeBits<Format>);
}
#else
template <typename Format>
uint64_t pack_word(uint64_t lanes) {
    return packed<8 * sizeof(Lane<Format>), Format::kBits>(lanes);
}
template <typename Format>
uint64_t unpack_word(uint64_t codes) {
    return unpacked<8 * sizeof(Lane<Format>), Format::kBits>(codes);
}
#endif

// Bytes that are read or written for a whole word of codes: up to two more than it has, since the compiler would split
// an access of six bytes. These are the group's scale at most, which is written after the codes.
template <typename Format>
constexpr size_t kAccess = kBytes<Format> == 6 ? 8 : kBytes<Format>;

// Writes `count` packed codes in front of a scale. `codes` has zeros up to a whole word.
template <typename Format>
void pack(const Lane<Format>* codes, int64_t count, uint8_t* out) {
    const auto word = [&](int64_t at, size_t bytes) {
        uint64_t lanes;
        std::memcpy(&lanes, codes + at, sizeof lanes);
        lanes = pack_word<Format>(lanes);
        std::memcpy(out + at * Format::kBits / 8, &lanes, bytes);
    };
    int64_t k = 0;
    for (; k + kCodes<Format> <= count; k += kCodes<Format>) word(k, kAccess<Format>);
    if (k < count) word(k, static_cast<size_t>((count - k) * Format::kBits / 8));
}

// Undoes `pack`. There is space for a whole word behind the codes.
template <typename Format>
void unpack(const uint8_t* in, int64_t count, Lane<Format>* codes) {
    const auto word = [&](int64_t at, size_t bytes) {
        uint64_t lanes = 0;
        std::memcpy(&lanes, in + at * Format::kBits / 8, bytes);
        lanes = unpack_word<Format>(lanes);
        std::memcpy(codes + at, &lanes, sizeof lanes);
    };
    int64_t k = 0;
    for (; k + kCodes<Format> <= count; k += kCodes<Format>) word(k, kAccess<Format>);
    if (k < count) word(k, static_cast<size_t>((count - k) * Format::kBits / 8));
}

// Returns `count` values as floats: in place, or converted into the buffer.
inline const float* as_floats(const float* values, int64_t, float*) { return values; }
template <typename T>
const float* as_floats(const T* values, int64_t count, float* buffer) {
    cpu::to_floats(values, count, buffer);
    return buffer;
}

// Whether codes are computed as parts of float16 numbers, which CPUs convert: multiplied by a power of two, the
// smallest normal number of the format is float16's. The result is that of the format's own functions.
template <typename Format>
constexpr bool kThroughHalves = cpu::kTruncatesHalves && Format::kExponentBits < 5;
constexpr int kHalfBias = 15;
constexpr int kHalfMantissa = 10;

// Encodes values to nearest, after a multiplication by `inverse`. `Vec` is a parameter since not each has
// store_truncated.
template <typename Format, typename Vec = cpu::Vec>
void encode(const float* x, int64_t count, float inverse, Lane<Format>* codes) {
    int64_t k = 0;
    if constexpr (kThroughHalves<Format>) {
        constexpr int kShift = kHalfMantissa - Format::kMantissaBits;
        constexpr float kFactor = 1.0f / (1 << (kHalfBias - Format::kBias));
        const Vec first(inverse), second(kFactor);  // their product could be subnormal
        alignas(64) Float16 halves[cpu::kBlock];
        for (; k + Vec::kWidth <= count; k += Vec::kWidth) {
            store_truncated(halves + k, Vec(cpu::load(x + k)) * first * second);
        }
        for (int64_t i = 0; i < k; ++i) {
            const uint16_t half = halves[i].bits;
            const auto magnitude = static_cast<uint16_t>(half & 0x7fffu);
            const auto rounded =
                static_cast<uint16_t>(static_cast<uint16_t>(magnitude + (1u << (kShift - 1))) >> kShift);
            const auto held = rounded < Format::kLargest ? rounded : static_cast<uint16_t>(Format::kLargest);
            const auto sign = static_cast<uint16_t>((half & 0x8000u) >> (16 - Format::kBits));
            codes[i] = static_cast<Lane<Format>>(sign | held);
        }
    }
    for (; k < count; ++k) codes[k] = static_cast<Lane<Format>>(Format::code(x[k] * inverse, Format::kHalf));
}

// Writes the values of codes.
template <typename Format>
void decode(const Lane<Format>* codes, int64_t count, float scale, float* to) {
    int64_t k = 0;
    if constexpr (kThroughHalves<Format>) {
        constexpr int kShift = kHalfMantissa - Format::kMantissaBits;
        const cpu::Vec first(1 << (kHalfBias - Format::kBias)), second(scale);  // their product could be inf
        alignas(64) Float16 halves[cpu::kBlock];
        for (int64_t i = 0; i < count; ++i) {
            const uint16_t code = codes[i];
            const auto sign = static_cast<uint16_t>((code >> (Format::kBits - 1)) << 15);
            halves[i].bits = static_cast<uint16_t>(sign | (code & Format::kLargest) << kShift);
        }
        for (; k + cpu::Vec::kWidth <= count; k += cpu::Vec::kWidth) {
            cpu::store(to + k, cpu::load(halves + k) * first * second);
        }
    }
    for (; k < count; ++k) to[k] = Format::number(codes[k]) * scale;
}

// Encodes values with stochastic rounding.
template <typename Format>
void encode_randomly(const float* x, int64_t count, float inverse, const uint16_t* random, Lane<Format>* codes) {
    for (int64_t k = 0; k < count; ++k) {
        codes[k] = static_cast<Lane<Format>>(Format::code(x[k] * inverse, Format::carry(random[k])));
    }
}

template <typename Format, typename T>
void quantize(const FpQuantizeCall& call, const T* input) {
    const FpGroups& groups = call.groups;
    const int64_t row = groups.row();
    const PhiloxKeys keys(call.seed);
    const int64_t grain = std::max<int64_t>(1, cpu::kGrain / groups.elements);
    cpu::share(call.executor, groups.count, grain, [&](int64_t from, int64_t to) {
        alignas(64) float buffer[cpu::kBlock];
        alignas(64) Lane<Format> codes[cpu::kBlock];
        for (int64_t group = from; group < to; ++group) {
            const T* const values = input + group * groups.elements;
            uint8_t* const out = call.rows + group * row;
            const FpScale scale = FpScale::of(largest_magnitude(values, groups.elements), Format::range());
            cpu::prefetch(values + groups.elements, std::min(groups.elements, cpu::kBlock));
            if (!scale.encodes()) {
                std::memset(out, 0, static_cast<size_t>(row));
            }
            each_block(scale.encodes() ? groups.elements : 0, [&](int64_t begin, int64_t count) {
                const float inverse =
                    scale.inverse;  // a copy: otherwise the compiler assumes that stores may change it
                const float* const x = as_floats(values + begin, count, buffer);
                // Codes of 8 bits are not packed.
                Lane<Format>* target = codes;
                if constexpr (Format::kBits == 8) target = out + begin;
                if (call.stochastic) {
                    const cpu::RandomHalves random(keys, call.offset, group * groups.elements + begin, count);
                    encode_randomly<Format>(x, count, inverse, random.begin(), target);
                } else {
                    encode<Format>(x, count, inverse, target);
                }
                if constexpr (Format::kBits != 8) {
                    for (int64_t k = count; k % kCodes<Format> != 0; ++k) codes[k] = 0;
                    pack<Format>(codes, count, out + groups.bytes(begin));
                }
            });
            std::memcpy(out + row - FpGroups::kScaleBytes, &scale.scale, FpGroups::kScaleBytes);
        }
    });
}

template <typename Format, typename T>
void dequantize(const FpDequantizeCall& call, T* output) {
    const FpGroups& groups = call.groups;
    const int64_t grain = std::max<int64_t>(1, cpu::kGrain / groups.elements);
    const bool streams = cpu::streams(groups.count * groups.elements * static_cast<int64_t>(sizeof(T)));
    cpu::share(call.executor, groups.count, grain, [&](int64_t from, int64_t to) {
        alignas(64) float buffer[cpu::kBlock];
        alignas(64) T result[cpu::kBlock];
        alignas(64) Lane<Format> codes[cpu::kBlock];
        for (int64_t group = from; group < to; ++group) {
            const uint8_t* const row = call.rows + call.source(group) * groups.row();
            cpu::prefetch(row + groups.row(), std::min(groups.row(), cpu::kBlock * 2));
            float scale;
            std::memcpy(&scale, row + groups.bytes(groups.elements), sizeof scale);
            each_block(groups.elements, [&](int64_t begin, int64_t count) {
                const Lane<Format>* source = codes;
                if constexpr (Format::kBits == 8) {
                    source = row + begin;
                } else {
                    unpack<Format>(row + groups.bytes(begin), count, codes);
                }
                T* const at = output + group * groups.elements + begin;
                T* const to = streams ? result : at;
                if constexpr (std::is_same_v<T, float>) {
                    decode<Format>(source, count, scale, to);
                } else {
                    decode<Format>(source, count, scale, buffer);
                    cpu::from_floats(buffer, count, to);
                }
                if (streams) cpu::stream(at, result, count);
            });
        }
        if (streams) cpu::end_streams();
    });
}

}  // namespace

const char* launch_fp_quantize(const FpQuantizeCall& call) {
    with_format(call.groups, [&](auto format) {
        cpu::with_elements(call.dtype, const_cast<void*>(call.input),
                           [&](const auto* input) { quantize<decltype(format)>(call, input); });
    });
    return nullptr;
}

const char* launch_fp_dequantize(const FpDequantizeCall& call) {
    with_format(call.groups, [&](auto format) {
        cpu::with_elements(call.dtype, call.output, [&](auto* output) { dequantize<decltype(format)>(call, output); });
    });
    return nullptr;
}

}  // namespace opforge
