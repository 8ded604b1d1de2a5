// The functions of torch's C interface that opforge's own code calls, declared as torch declares them. torch's headers
// of them include its number types with <sstream>, <iostream> and <complex>: a third of the time of an op's side of
// torch. A unit that includes torch's headers too compares the declarations.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/macros.h>
#include <torch/csrc/stable/version.h>

#include <cstddef>
#include <cstdint>

class TorchLibraryOpaque;
struct StableListOpaque;
struct DeviceGuardOpaque;

extern "C" {

using StableIValue = uint64_t;
using TorchLibraryHandle = TorchLibraryOpaque*;
using StableListHandle = StableListOpaque*;
using DeviceGuardHandle = DeviceGuardOpaque*;

#define OPFORGE_CONSTANT(name) AOTI_TORCH_EXPORT int32_t aoti_torch_##name();
#define OPFORGE_SHIM AOTI_TORCH_EXPORT AOTITorchError

OPFORGE_CONSTANT(device_type_cpu)
OPFORGE_CONSTANT(device_type_cuda)
OPFORGE_CONSTANT(device_type_meta)
OPFORGE_CONSTANT(device_type_mps)
OPFORGE_CONSTANT(device_type_xpu)
OPFORGE_CONSTANT(dtype_bfloat16)
OPFORGE_CONSTANT(dtype_bool)
OPFORGE_CONSTANT(dtype_complex128)
OPFORGE_CONSTANT(dtype_complex64)
OPFORGE_CONSTANT(dtype_float16)
OPFORGE_CONSTANT(dtype_float32)
OPFORGE_CONSTANT(dtype_float64)
OPFORGE_CONSTANT(dtype_float8_e4m3fn)
OPFORGE_CONSTANT(dtype_float8_e5m2)
OPFORGE_CONSTANT(dtype_int16)
OPFORGE_CONSTANT(dtype_int32)
OPFORGE_CONSTANT(dtype_int64)
OPFORGE_CONSTANT(dtype_int8)
OPFORGE_CONSTANT(dtype_uint8)
OPFORGE_CONSTANT(layout_strided)
AOTI_TORCH_EXPORT size_t aoti_torch_dtype_element_size(int32_t dtype);

// Tensors.
OPFORGE_SHIM aoti_torch_delete_tensor_object(AtenTensorHandle tensor);
OPFORGE_SHIM aoti_torch_empty_strided(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                      int32_t device_type, int32_t device_index, AtenTensorHandle* tensor);
OPFORGE_SHIM aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* index);
OPFORGE_SHIM aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* type);
OPFORGE_SHIM aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* dim);
OPFORGE_SHIM aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* dtype);
OPFORGE_SHIM aoti_torch_get_layout(AtenTensorHandle tensor, int32_t* layout);
OPFORGE_SHIM aoti_torch_get_numel(AtenTensorHandle tensor, int64_t* numel);
OPFORGE_SHIM aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** sizes);
OPFORGE_SHIM aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** strides);
OPFORGE_SHIM aoti_torch_is_contiguous(AtenTensorHandle tensor, bool* is_contiguous);
OPFORGE_SHIM torch_get_const_data_ptr(AtenTensorHandle tensor, const void** data);
OPFORGE_SHIM torch_get_mutable_data_ptr(AtenTensorHandle tensor, void** data);

// Lists.
OPFORGE_SHIM torch_delete_list(StableListHandle list);
OPFORGE_SHIM torch_list_get_item(StableListHandle list, size_t index, StableIValue* item);
OPFORGE_SHIM torch_list_size(StableListHandle list, size_t* size);

// Registration.
OPFORGE_SHIM aoti_torch_delete_library_object(TorchLibraryHandle library);
OPFORGE_SHIM aoti_torch_library_def(TorchLibraryHandle library, const char* schema);
OPFORGE_SHIM aoti_torch_library_init_fragment(const char* ns, const char* file, uint32_t line,
                                              TorchLibraryHandle* library);
OPFORGE_SHIM aoti_torch_library_init_impl(const char* ns, const char* key, const char* file, uint32_t line,
                                          TorchLibraryHandle* library);
OPFORGE_SHIM torch_library_impl(TorchLibraryHandle library, const char* name,
                                void (*kernel)(StableIValue*, uint64_t, uint64_t), uint64_t version);
OPFORGE_SHIM torch_library_set_python_module(TorchLibraryHandle library, const char* module, const char* context);

// Where a kernel runs.
OPFORGE_SHIM aoti_torch_create_device_guard(int32_t index, DeviceGuardHandle* guard);
OPFORGE_SHIM aoti_torch_delete_device_guard(DeviceGuardHandle guard);
OPFORGE_SHIM torch_parallel_for(int64_t begin, int64_t end, int64_t grain, void (*part)(int64_t, int64_t, void*),
                                void* context);

#undef OPFORGE_CONSTANT
#undef OPFORGE_SHIM
}
