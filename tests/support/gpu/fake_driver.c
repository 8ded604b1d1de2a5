// A fake GPU driver: it logs its calls, and returns the errors that the environment requests.
//
//   FAKE_GPU_LOG         the file of the log, one line per call
//   FAKE_GPU_CAPABILITY  the device's compute capability, such as 90
//   FAKE_GPU_SHARED      the largest shared memory of a block, in bytes
//   FAKE_GPU_FAIL        "FUNCTION=ERROR": this function returns this error
//   FAKE_GPU_CAPTURING   a graph is being captured, in the mode "global"
//   FAKE_GPU_PARAMETERS  the number of eight-byte parameters of a launch, for the log
//
// With -DHIP it is the HIP runtime, with -DTOO_OLD a driver without cuLaunchKernel. It includes cuda.h if that exists,
// so that the compiler compares these functions with the real declarations.
//
// After a call of `fake_gpu_executes`, launches are executed by the given function (tests/support/ptx/ptx_device.py).

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int called(const char* function, const char* details) {
    const char* path = getenv("FAKE_GPU_LOG");
    const char* failing = getenv("FAKE_GPU_FAIL");
    if (path) {
        FILE* file = fopen(path, "a");
        fprintf(file, "%s%s%s\n", function, *details ? " " : "", details);
        fclose(file);
    }
    const size_t length = strlen(function);
    if (failing && !strncmp(failing, function, length) && failing[length] == '=') return atoi(failing + length + 1);
    return 0;
}

static int number(const char* variable, int otherwise) {
    const char* text = getenv(variable);
    return text ? atoi(text) : otherwise;
}

static int launched(const char* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared,
                    void* stream, void** parameters) {
    char text[1024] = "";
    if (!getenv("FAKE_GPU_LOG")) return called(function, text);  // fast, so that launches can be timed
    int used = snprintf(text, sizeof text, "grid %u %u %u threads %u shared %u stream %llu", x, y, z, threads, shared,
                        (unsigned long long)(uintptr_t)stream);
    for (int i = 0; i < number("FAKE_GPU_PARAMETERS", 0); ++i) {
        uint64_t value = 0;
        memcpy(&value, parameters[i], sizeof value);
        used += snprintf(text + used, sizeof text - used, " %llx", (unsigned long long)value);
    }
    return called(function, text);
}

#ifndef HIP
#if __has_include(<cuda.h>)
#include <cuda.h>
#else
typedef int CUresult, CUdevice, CUdevice_attribute, CUfunction_attribute, CUstreamCaptureMode;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream;
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#endif

#define CONTEXTS 8
static _Thread_local CUcontext contexts[CONTEXTS];
static _Thread_local int depth = 0;  // 0: the thread has no current context

static _Thread_local CUstreamCaptureMode capture_mode = (CUstreamCaptureMode)0;

struct loaded {
    const void* image;
    char name[256];
    int shared;  // the most bytes that a block may use
};
typedef void (*executor)(const void* image, const char* name, const unsigned* grid, unsigned threads, unsigned shared,
                         void** parameters);
static executor execute = 0;

void fake_gpu_executes(executor function) { execute = function; }

CUresult cuInit(unsigned flags) { return (CUresult)called("cuInit", ""); }
CUresult cuDriverGetVersion(int* version) {
    *version = 13010;
    return (CUresult)0;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
    *text = "no kernel image is available for execution on the device";
    return (CUresult)0;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return (CUresult)0;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    const int capability = number("FAKE_GPU_CAPABILITY", 90);
    if (attribute == 75) *value = capability / 10;
    if (attribute == 76) *value = capability % 10;
    if (attribute == 97) *value = number("FAKE_GPU_SHARED", 232448);
    return (CUresult)0;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    *context = (CUcontext)(uintptr_t)(0x1000 + device);
    return (CUresult)called("cuDevicePrimaryCtxRetain", "");
}
CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = depth ? contexts[depth - 1] : 0;
    return (CUresult)0;
}
CUresult cuCtxPushCurrent(CUcontext context) {
    if (depth == CONTEXTS) return (CUresult)2;
    contexts[depth++] = context;
    return (CUresult)0;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
    if (!depth) return (CUresult)201;
    *context = contexts[--depth];
    return (CUresult)0;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    const CUstreamCaptureMode before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return (CUresult)0;
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    if (!depth) return (CUresult)201;
    if (getenv("FAKE_GPU_CAPTURING") && capture_mode != 2) return (CUresult)900;
    *module = (CUmodule)image;
    return (CUresult)called("cuModuleLoadData", *(const unsigned char*)image == 0x7f ? "ELF" : "text");
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    struct loaded* kernel = calloc(1, sizeof *kernel);
    kernel->image = (const void*)module;
    kernel->shared = 48 << 10;
    snprintf(kernel->name, sizeof kernel->name, "%s", name);
    *function = (CUfunction)kernel;
    return (CUresult)called("cuModuleGetFunction", name);
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    if (attribute == 8) ((struct loaded*)function)->shared = value;
    return (CUresult)called("cuFuncSetAttribute", "");
}
#ifndef TOO_OLD
CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                        unsigned threads_z, unsigned shared, CUstream stream, void** parameters, void** extra) {
    const struct loaded* kernel = (const struct loaded*)function;
    const unsigned grid[3] = {x, y, z}, all = threads * threads_y * threads_z;
    if (!depth) return (CUresult)201;
    if (!x || !y || !z || x > 0x7fffffff || y > 65535 || z > 65535 || !all || all > 1024) return (CUresult)1;
    if (shared > (unsigned)kernel->shared) return (CUresult)1;
    if (execute) execute(kernel->image, kernel->name, grid, all, shared, parameters);
    return (CUresult)launched("cuLaunchKernel", x, y, z, all, shared, (void*)stream, parameters);
}
#endif

#else

static int current = 0;

int hipInit(unsigned flags) { return called("hipInit", ""); }
int hipDriverGetVersion(int* version) {
    *version = 60342131;
    return 0;
}
const char* hipGetErrorString(int error) { return "no kernel image is available for execution on the device"; }
int hipGetDevice(int* device) {
    *device = current;
    return 0;
}
int hipSetDevice(int device) {
    char text[16];
    snprintf(text, sizeof text, "%d", device);
    current = device;
    return called("hipSetDevice", text);
}
int hipModuleLoadData(void** module, const void* image) {
    *module = (void*)0x2000;
    return called("hipModuleLoadData", "");
}
int hipModuleGetFunction(void** function, void* module, const char* name) {
    *function = (void*)0x3000;
    return called("hipModuleGetFunction", name);
}
int hipModuleLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                          unsigned threads_z, unsigned shared, void* stream, void** parameters, void** extra) {
    return launched("hipModuleLaunchKernel", x, y, z, threads * threads_y * threads_z, shared, stream, parameters);
}
#endif
