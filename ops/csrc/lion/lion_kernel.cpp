#include "../cpu/update.h"
#include "../fused/kernels.h"

namespace opforge {

const char* launch_lion(const TensorGroups& groups, const LionNumbers& numbers) {
    return cpu::launch_update<true>(groups, numbers.rule());
}

}  // namespace opforge
