#pragma once

// A device's context, queue and programs, created once a process; tensors as buffers; and running a kernel. Every
// failed call throws; torch turns that into a RuntimeError.

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace opforge_opencl {

inline void check(cl_int code, const char* call) {
    if (code != CL_SUCCESS) throw std::runtime_error(std::string(call) + " failed with code " + std::to_string(code));
}

class Device {
public:
    explicit Device(cl_device_id id) : id_(id) {
        cl_int code = CL_SUCCESS;
        context_ = clCreateContext(nullptr, 1, &id_, nullptr, nullptr, &code);
        check(code, "clCreateContext");
        queue_ = clCreateCommandQueue(context_, id_, 0, &code);
        check(code, "clCreateCommandQueue");
    }

    cl_context context() const { return context_; }
    cl_command_queue queue() const { return queue_; }

    // Returns a kernel of the program with this text. The driver compiles the program the first time.
    cl_kernel kernel(const char* text, const char* name) {
        cl_int code = CL_SUCCESS;
        cl_kernel kernel = clCreateKernel(program(text), name, &code);
        check(code, "clCreateKernel");
        return kernel;
    }

private:
    cl_program program(const char* text) {
        const std::lock_guard<std::mutex> guard(lock_);
        cl_program& cached = programs_[text];
        if (cached != nullptr) return cached;
        cl_int code = CL_SUCCESS;
        cl_program program = clCreateProgramWithSource(context_, 1, &text, nullptr, &code);
        check(code, "clCreateProgramWithSource");
        if (clBuildProgram(program, 1, &id_, "", nullptr, nullptr) != CL_SUCCESS) {
            size_t size = 0;
            clGetProgramBuildInfo(program, id_, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
            std::string log(size, '\0');
            clGetProgramBuildInfo(program, id_, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
            throw std::runtime_error("the OpenCL driver cannot compile the kernel:\n" + log);
        }
        return cached = program;
    }

    cl_device_id id_;
    cl_context context_ = nullptr;
    cl_command_queue queue_ = nullptr;
    std::mutex lock_;
    std::map<const char*, cl_program> programs_;
};

// Returns the device with this number, counted over all platforms.
inline Device& device(int64_t number) {
    static std::mutex lock;
    static std::map<int64_t, std::unique_ptr<Device>> devices;
    const std::lock_guard<std::mutex> guard(lock);
    std::unique_ptr<Device>& cached = devices[number];
    if (cached != nullptr) return *cached;
    cl_uint count = 0;
    clGetPlatformIDs(0, nullptr, &count);
    std::vector<cl_platform_id> platforms(count);
    if (count > 0) check(clGetPlatformIDs(count, platforms.data(), nullptr), "clGetPlatformIDs");
    std::vector<cl_device_id> all;
    for (cl_platform_id platform : platforms) {
        cl_uint here = 0;
        if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &here) != CL_SUCCESS) continue;
        all.resize(all.size() + here);
        check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, here, &all[all.size() - here], nullptr), "clGetDeviceIDs");
    }
    if (number < 0 || number >= static_cast<int64_t>(all.size()))
        throw std::runtime_error("there is no OpenCL device " + std::to_string(number) + ": this machine has " +
                                 std::to_string(all.size()) + ", counted from 0");
    cached = std::make_unique<Device>(all[static_cast<size_t>(number)]);
    return *cached;
}

// Host memory as a buffer of the device. It is not copied if the device can access host memory.
class Buffer {
public:
    Buffer(Device& on, const void* data, size_t bytes, bool written) : on_(on), bytes_(bytes), written_(written) {
        cl_int code = CL_SUCCESS;
        const cl_mem_flags flags = CL_MEM_USE_HOST_PTR | (written ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY);
        memory_ = clCreateBuffer(on.context(), flags, bytes, const_cast<void*>(data), &code);
        check(code, "clCreateBuffer");
    }
    ~Buffer() { clReleaseMemObject(memory_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    cl_mem memory() const { return memory_; }

    // Makes what the device wrote visible to the host. By the standard, only mapping does that.
    void fetch() const {
        if (!written_) return;
        cl_int code = CL_SUCCESS;
        void* at =
            clEnqueueMapBuffer(on_.queue(), memory_, CL_TRUE, CL_MAP_READ, 0, bytes_, 0, nullptr, nullptr, &code);
        check(code, "clEnqueueMapBuffer");
        check(clEnqueueUnmapMemObject(on_.queue(), memory_, at, 0, nullptr, nullptr), "clEnqueueUnmapMemObject");
    }

private:
    Device& on_;
    size_t bytes_;
    bool written_;
    cl_mem memory_ = nullptr;
};

// An argument in each work group's local memory.
struct Local {
    size_t bytes;
};

// Runs a kernel over `items` work items, in groups of `group` (0: the driver chooses), and waits for its end.
class Run {
public:
    Run(Device& on, const char* text, const char* name) : on_(on), kernel_(on.kernel(text, name)) {}
    ~Run() { clReleaseKernel(kernel_); }
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    template <typename... Arguments>
    void operator()(size_t items, size_t group, const Arguments&... arguments) {
        (set(arguments), ...);
        check(clEnqueueNDRangeKernel(on_.queue(), kernel_, 1, nullptr, &items, group > 0 ? &group : nullptr, 0, nullptr,
                                     nullptr),
              "clEnqueueNDRangeKernel");
        (fetch(arguments), ...);
        check(clFinish(on_.queue()), "clFinish");
    }

private:
    void set(const Buffer& buffer) {
        const cl_mem memory = buffer.memory();
        check(clSetKernelArg(kernel_, next_++, sizeof memory, &memory), "clSetKernelArg");
    }
    void set(const Local& local) { check(clSetKernelArg(kernel_, next_++, local.bytes, nullptr), "clSetKernelArg"); }
    template <typename Number>
    void set(const Number& number) {
        check(clSetKernelArg(kernel_, next_++, sizeof number, &number), "clSetKernelArg");
    }
    static void fetch(const Buffer& buffer) { buffer.fetch(); }
    template <typename Other>
    static void fetch(const Other&) {}

    Device& on_;
    cl_kernel kernel_;
    cl_uint next_ = 0;
};

}  // namespace opforge_opencl
