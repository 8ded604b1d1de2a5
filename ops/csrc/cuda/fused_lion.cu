#include "../fused/kernels.h"
#include "multi_tensor.h"

namespace opforge {

const char* launch_lion(const TensorGroups& groups, const LionNumbers& numbers) {
    return cuda::launch_update(groups, numbers);
}

}  // namespace opforge
