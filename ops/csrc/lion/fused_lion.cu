#include "../cuda/multi_tensor.h"
#include "../fused/kernels.h"

namespace opforge {

const char* launch_lion(const TensorGroups& groups, const LionNumbers& numbers) {
    return cuda::launch_update(groups, numbers);
}

}  // namespace opforge
