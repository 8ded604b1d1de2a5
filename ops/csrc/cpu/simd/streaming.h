#pragma once

// Large results that are written past the caches: an ordinary store first reads the line that it changes, which costs
// as much as the store.

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace opforge::cpu {

constexpr uintptr_t kLine = 64;  // bytes of a line of the caches

// Returns whether a result of this size, in bytes, is streamed: the next reader would not find it in a cache.
inline bool streams(int64_t bytes) {
#if defined(__SSE2__)
    return bytes >= int64_t{4} << 20;
#else
    return bytes < 0;
#endif
}

// Copies elements past the caches.
template <typename T>
void stream(T* to, const T* from, int64_t count) {
    auto* out = reinterpret_cast<char*>(to);
    const auto* in = reinterpret_cast<const char*>(from);
    auto bytes = static_cast<size_t>(count) * sizeof(T);
#if defined(__SSE2__)
    const size_t head = (16 - reinterpret_cast<uintptr_t>(out) % 16) % 16;
    if (head < bytes) {
        std::memcpy(out, in, head);
        out += head, in += head, bytes -= head;
#if defined(__AVX512F__)
        if (reinterpret_cast<uintptr_t>(out) % 64 == 0) {
            for (; bytes >= 64; out += 64, in += 64, bytes -= 64) {
                _mm512_stream_si512(reinterpret_cast<__m512i*>(out), _mm512_loadu_si512(in));
            }
        }
#endif
        for (; bytes >= 16; out += 16, in += 16, bytes -= 16) {
            _mm_stream_si128(reinterpret_cast<__m128i*>(out), _mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
        }
    }
#endif
    std::memcpy(out, in, bytes);
}

// Writes a vector, past the caches if `streams`; then the address must be a multiple of the vector's size.
#if defined(__AVX512F__)
inline void put(void* to, __m512i x, bool streams) {
    if (streams) return _mm512_stream_si512(static_cast<__m512i*>(to), x);
    _mm512_storeu_si512(to, x);
}
#elif defined(__AVX2__)
inline void put(void* to, __m256i x, bool streams) {
    auto* const vector = static_cast<__m256i*>(to);
    streams ? _mm256_stream_si256(vector, x) : _mm256_storeu_si256(vector, x);
}
#endif

// Makes what was streamed visible before what this thread writes next.
inline void end_streams() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// Fetches elements into the caches. They may be beyond the end of the memory.
template <typename T>
void prefetch(const T* from, int64_t count) {
    const auto* at = reinterpret_cast<const char*>(from);
    const auto bytes = count * static_cast<int64_t>(sizeof(T));
    for (int64_t k = 0; k < bytes; k += 64) __builtin_prefetch(at + k);
}

}  // namespace opforge::cpu
