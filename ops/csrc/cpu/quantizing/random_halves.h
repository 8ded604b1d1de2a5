#pragma once

#include <opforge/quantizing.h>

#include <cstring>

#include "../elementwise.h"

namespace opforge::cpu {

// Random numbers of 16 bits for the elements of a block, as Philox gives them: each depends on the element's index
// alone. Draws are computed side by side, one in each lane, which compilers turn into vectors.
class RandomHalves {
public:
    // For elements [begin, begin + count) of the whole call; at most kBlock.
    RandomHalves(const PhiloxKeys& keys, uint64_t offset, int64_t begin, int64_t count)
        : first_(begin % Philox::kCount) {
        const int64_t draws = (first_ + count + Philox::kCount - 1) / Philox::kCount;
        for (int64_t draw = 0; draw < draws; draw += kLanes) {
            fill(keys, static_cast<uint64_t>(begin / Philox::kCount + draw), offset, numbers_ + draw * Philox::kCount);
        }
    }

    // The numbers, in the order of the elements.
    const uint16_t* begin() const { return numbers_ + first_; }

private:
    static constexpr int kLanes = 32;
    static constexpr int kWords = Philox::kCount / 2;

    static void fill(const PhiloxKeys& keys, uint64_t counter, uint64_t offset, uint16_t* numbers) {
        alignas(64) uint32_t words[kWords][kLanes];
        for (int lane = 0; lane < kLanes; ++lane) {
            const uint64_t own = counter + static_cast<uint64_t>(lane);
            words[0][lane] = static_cast<uint32_t>(own);
            words[1][lane] = static_cast<uint32_t>(own >> 32);
            words[2][lane] = static_cast<uint32_t>(offset);
            words[3][lane] = static_cast<uint32_t>(offset >> 32);
        }
        for (const auto& key : keys.words) {
            const uint32_t first_key = key[0], second_key = key[1];
            for (int lane = 0; lane < kLanes; ++lane) {
                const uint64_t first = static_cast<uint64_t>(words[0][lane]) * Philox::kFirst;
                const uint64_t second = static_cast<uint64_t>(words[2][lane]) * Philox::kSecond;
                words[0][lane] = static_cast<uint32_t>(second >> 32) ^ words[1][lane] ^ first_key;
                words[2][lane] = static_cast<uint32_t>(first >> 32) ^ words[3][lane] ^ second_key;
                words[1][lane] = static_cast<uint32_t>(second);
                words[3][lane] = static_cast<uint32_t>(first);
            }
        }
        // The lower half of a word comes first, as in memory.
        alignas(64) uint32_t draws[kLanes][kWords];
        for (int lane = 0; lane < kLanes; ++lane) {
            for (int word = 0; word < kWords; ++word) draws[lane][word] = words[word][lane];
        }
        std::memcpy(numbers, draws, sizeof draws);
    }

    int64_t first_;
    uint16_t numbers_[kBlock + Philox::kCount * (kLanes + 1)];
};

}  // namespace opforge::cpu
