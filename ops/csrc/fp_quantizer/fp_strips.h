#pragma once

// Codes by strips of values that stay in registers between memory and memory.

#include <cstring>

#include "../cpu/simd/streaming.h"

namespace opforge::cpu {

template <typename Format>
constexpr int64_t bytes(int64_t codes) {
    return codes * Format::kBits / 8;
}

// Writes the packed codes of `count` values, the first of which is number `first`. encode(values, at, codes) does it
// for kStrip of them, from number `at` on. It must be inlined, since it would load its constants for each strip
// otherwise.
template <typename Format, int64_t kStrip, typename T, typename Encode>
void encode_strips(const T* x, int64_t first, int64_t count, uint8_t* out, const Encode& encode) {
    // Fetched a few lines at a time: all of a block at once would keep the processor's own loads waiting. What is
    // written is fetched too, half as far ahead, since there is less of it.
    constexpr int64_t kAhead = 4096;  // bytes
    int64_t k = 0;
    for (; k + kStrip <= count; k += kStrip) {
        prefetch(x + k + kAhead / static_cast<int64_t>(sizeof(T)), kStrip);
        __builtin_prefetch(out + bytes<Format>(k) + kAhead / 2, 1);
        encode(x + k, first + k, out + bytes<Format>(k));
    }
    if (k == count) return;
    T values[kStrip] = {};
    uint8_t codes[2 * kStrip];
    std::memcpy(values, x + k, static_cast<size_t>(count - k) * sizeof(T));
    encode_strips<Format, kStrip>(values, first + k, kStrip, codes, encode);
    std::memcpy(out + bytes<Format>(k), codes, static_cast<size_t>(bytes<Format>(count - k)));
}

// Writes the values of `count` packed codes. decode(codes, values, streams) does it for kStrip of them, and must be
// inlined as well.
template <typename Format, int64_t kStrip, typename T, typename Decode>
void decode_strips(const uint8_t* in, int64_t count, T* to, bool streams, const Decode& decode) {
    int64_t k = 0;
    for (; k + kStrip <= count; k += kStrip) decode(in + bytes<Format>(k), to + k, streams);
    if (k == count) return;
    uint8_t codes[2 * kStrip] = {};
    T values[kStrip];
    std::memcpy(codes, in + bytes<Format>(k), static_cast<size_t>(bytes<Format>(count - k)));
    decode_strips<Format, kStrip>(codes, kStrip, values, false, decode);
    std::memcpy(to + k, values, static_cast<size_t>(count - k) * sizeof(T));
}

// The numbers of the codes 0 ... kCount - 1; of the bits of a code above the format's none matters.
template <typename Format, int kCount>
struct Numbers {
    alignas(64) float x[kCount]{};

    constexpr Numbers() {
        for (int code = 0; code < kCount; ++code) {
            const int exponent = (code & static_cast<int>(Format::kLargest)) >> Format::kMantissaBits;
            const int mantissa = code & ((1 << Format::kMantissaBits) - 1);
            float number = static_cast<float>(mantissa + (exponent > 0 ? 1 << Format::kMantissaBits : 0));
            int power = (exponent > 0 ? exponent : 1) - Format::kBias - Format::kMantissaBits;
            for (; power < 0; ++power) number /= 2;
            for (; power > 0; --power) number *= 2;
            x[code] = (code >> (Format::kBits - 1) & 1) != 0 ? -number : number;
        }
    }
};

// Writes the values of `count` packed codes one by one.
template <typename Format, typename T>
void decode_each(const uint8_t* in, int64_t count, float scale, T* to) {
    for (int64_t k = 0; k < count; ++k) {
        const int64_t bit = k * Format::kBits, last = bit + Format::kBits - 1;
        const uint32_t both = in[bit / 8] | static_cast<uint32_t>(in[last / 8]) << (last / 8 - bit / 8) * 8;
        from_float(Format::number(both >> bit % 8 & (2 * Format::kLargest + 1)) * scale, to[k]);
    }
}

}  // namespace opforge::cpu
