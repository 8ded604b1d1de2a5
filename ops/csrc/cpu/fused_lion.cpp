#include "../fused/kernels.h"
#include "fused_multi_tensor.h"

namespace opforge {

const char* launch_lion(const TensorGroups& groups, const LionNumbers& numbers) {
    return cpu::launch_update(groups, numbers);
}

}  // namespace opforge
