// Compiles the package's kernel at run time, with the compiler in libsycl. It needs no icpx.
#include <cstdint>
#include <cstring>
#include <string>
#include <sycl/sycl.hpp>

namespace syclex = sycl::ext::oneapi::experimental;

namespace {

std::string result;

constexpr const char* KERNEL = R"(
#include "opforge_sycl/softmax.hpp"
namespace syclex = sycl::ext::oneapi::experimental;
extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::nd_range_kernel<1>))
void softmax(const float* x, float* y, size_t columns) {
    opforge_sycl::softmax_row(sycl::ext::oneapi::this_work_item::get_nd_item<1>(), x, y, columns);
}
)";

}  // namespace

// Returns the device's name, or an error message that begins with an exclamation mark.
extern "C" __attribute__((visibility("default"))) const char* softmax(const char* header, const float* x, float* y,
                                                                      int64_t rows, int64_t columns) {
    try {
        sycl::queue queue;
        syclex::include_files headers{"opforge_sycl/softmax.hpp", header};
        auto source = syclex::create_kernel_bundle_from_source(queue.get_context(), syclex::source_language::sycl,
                                                               KERNEL, syclex::properties{headers});
        sycl::kernel kernel = syclex::build(source).ext_oneapi_get_kernel("softmax");
        const size_t bytes = static_cast<size_t>(rows * columns) * sizeof(float);
        auto* from = static_cast<float*>(sycl::malloc_shared(bytes, queue));
        auto* to = static_cast<float*>(sycl::malloc_shared(bytes, queue));
        std::memcpy(from, x, bytes);
        queue
            .submit([&](sycl::handler& on) {
                on.set_args(from, to, static_cast<size_t>(columns));
                on.parallel_for(sycl::nd_range<1>(static_cast<size_t>(rows) * 64, 64), kernel);
            })
            .wait_and_throw();
        std::memcpy(y, to, bytes);
        sycl::free(from, queue);
        sycl::free(to, queue);
        result = queue.get_device().get_info<sycl::info::device::name>();
    } catch (const std::exception& error) {
        result = std::string("!") + error.what();
    }
    return result.c_str();
}
