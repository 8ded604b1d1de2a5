#pragma once

// Philox draws, a vector of them at once. Each word of a draw is the lower half of a lane of 64 bits, which is what
// vectors multiply; the upper halves are ignored.

#include <cstring>

#include <opforge/quantizing.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace opforge::cpu {

#if defined(__AVX512F__)

struct PhiloxLanes {
    using Lanes = __m512i;
    static constexpr int kWidth = 8;

    static Lanes all(uint64_t x) { return _mm512_set1_epi64(static_cast<int64_t>(x)); }
    static Lanes product(Lanes a, Lanes b) { return _mm512_mul_epu32(a, b); }
    static Lanes upper(Lanes a) { return _mm512_srli_epi64(a, 32); }
    static Lanes mix(Lanes a, Lanes b, Lanes c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
    // The counters of the draws, in the order in which `store` writes them.
    static Lanes counters(uint64_t first) {
        return _mm512_add_epi64(all(first), _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
    }
    // Writes all words of the first draw, then those of the next.
    static void store(void* to, const Lanes* words) {
        const Lanes first = _mm512_mask_shuffle_epi32(words[0], 0xaaaa, words[1], _MM_PERM_CCAA);
        const Lanes second = _mm512_mask_shuffle_epi32(words[2], 0xaaaa, words[3], _MM_PERM_CCAA);
        _mm512_storeu_si512(to, _mm512_unpacklo_epi64(first, second));
        _mm512_storeu_si512(static_cast<char*>(to) + 64, _mm512_unpackhi_epi64(first, second));
    }
};

#elif defined(__AVX2__)

struct PhiloxLanes {
    using Lanes = __m256i;
    static constexpr int kWidth = 4;

    static Lanes all(uint64_t x) { return _mm256_set1_epi64x(static_cast<int64_t>(x)); }
    static Lanes product(Lanes a, Lanes b) { return _mm256_mul_epu32(a, b); }
    static Lanes upper(Lanes a) { return _mm256_srli_epi64(a, 32); }
    static Lanes mix(Lanes a, Lanes b, Lanes c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
    static Lanes counters(uint64_t first) { return _mm256_add_epi64(all(first), _mm256_setr_epi64x(0, 2, 1, 3)); }
    static void store(void* to, const Lanes* words) {
        const Lanes first = _mm256_blend_epi32(words[0], _mm256_slli_epi64(words[1], 32), 0xaa);
        const Lanes second = _mm256_blend_epi32(words[2], _mm256_slli_epi64(words[3], 32), 0xaa);
        auto* const out = static_cast<__m256i*>(to);
        _mm256_storeu_si256(out, _mm256_unpacklo_epi64(first, second));
        _mm256_storeu_si256(out + 1, _mm256_unpackhi_epi64(first, second));
    }
};

#else

struct PhiloxLanes {
    using Lanes = uint64_t;
    static constexpr int kWidth = 1;

    static Lanes all(uint64_t x) { return x; }
    static Lanes product(Lanes a, Lanes b) { return (a & 0xffffffffu) * b; }
    static Lanes upper(Lanes a) { return a >> 32; }
    static Lanes mix(Lanes a, Lanes b, Lanes c) { return a ^ b ^ c; }
    static Lanes counters(uint64_t first) { return first; }
    static void store(void* to, const Lanes* words) {
        const uint32_t draw[] = {static_cast<uint32_t>(words[0]), static_cast<uint32_t>(words[1]),
                                 static_cast<uint32_t>(words[2]), static_cast<uint32_t>(words[3])};
        std::memcpy(to, draw, sizeof draw);
    }
};

#endif

// Writes draws `counter`, `counter + 1`, ...: kWidth of them, of Philox::kCount numbers of 16 bits each.
inline void draw_philox(const PhiloxKeys& keys, uint64_t counter, uint64_t offset, uint16_t* numbers) {
    using L = PhiloxLanes;
    L::Lanes words[] = {L::counters(counter), L::all(0), L::all(offset), L::all(offset >> 32)};
    words[1] = L::upper(words[0]);
    for (const auto& key : keys.words) {
        const L::Lanes first = L::product(words[0], L::all(Philox::kFirst));
        const L::Lanes second = L::product(words[2], L::all(Philox::kSecond));
        words[0] = L::mix(L::upper(second), words[1], L::all(key[0]));
        words[2] = L::mix(L::upper(first), words[3], L::all(key[1]));
        words[1] = second;
        words[3] = first;
    }
    L::store(numbers, words);
}

}  // namespace opforge::cpu
