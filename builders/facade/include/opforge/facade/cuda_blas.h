// torch's handle of cuBLAS. It is one of the library that torch was built with, which need not be this source's: a
// handle of another release would be read as what it is not. So both are compared before it is given.
#pragma once
#pragma GCC system_header
#include "cuda.h"

#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>

// Weak: a library loads beside a torch without CUDA.
extern "C" __attribute__((weak, visibility("default"))) cublasStatus_t cublasCreate_v2(cublasHandle_t*);

#pragma GCC visibility push(hidden)
namespace c10 {
namespace cuda {
inline namespace opforge_facade {
OPFORGE_IF_USED
cublasHandle_t getCurrentCUDABlasHandle() {
    void *handle = nullptr, *const of_torchs = of_torch("cublasCreate_v2");
    call_cuda("getCurrentCUDABlasHandle", shim::torch_get_current_cuda_blas_handle(), &handle);
    if (!of_torchs || reinterpret_cast<void*>(&cublasCreate_v2) != of_torchs) {
        c10::facade::fail(
            "getCurrentCUDABlasHandle: this library calls another cuBLAS than torch. Build it by the nvcc of the CUDA "
            "release that torch was built with, without a static cuBLAS");
    }
    return static_cast<cublasHandle_t>(handle);
}
}  // namespace opforge_facade
}  // namespace cuda
}  // namespace c10
#pragma GCC visibility pop
#endif
