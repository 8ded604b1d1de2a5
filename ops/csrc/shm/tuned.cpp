#include "tuned.h"

#include <algorithm>

#include <opforge/tunable.h>

namespace {

opforge::Tunables<1> tunables({{"parts", opforge::shm::kParts}});

}  // namespace

OPFORGE_TUNABLES(tunables)

namespace opforge::shm {

void write_tuned(Header& header) {
    tunables.each(kAnyDType, [&](int64_t low, int64_t high, const auto& values) {
        if (header.tuned == kMostTuned) return;
        const auto parts = static_cast<uint64_t>(std::clamp<int64_t>(values[0], 1, 1 << 16));
        header.parts[header.tuned++] = {static_cast<uint64_t>(low), static_cast<uint64_t>(high), parts};
    });
}

}  // namespace opforge::shm
