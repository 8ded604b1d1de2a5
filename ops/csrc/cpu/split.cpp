#include "split.h"

#include <opforge/tunable.h>

namespace {

opforge::Tunables<2> tunables({{"grain", opforge::cpu::kGrain}, {"threads", 0}});

}  // namespace

OPFORGE_TUNABLES(tunables)

namespace opforge::cpu {

Split split_for(DType dtype, int64_t elements) {
    const auto values = tunables.of(scalar_type(dtype), elements);
    return {values[0], values[1]};
}

}  // namespace opforge::cpu
