// Stands in for a GPU's driver where there is none: writes down what it is asked to do, and refuses what it is told to.
//
// FAKE_GPU_LOG: where to write, a line a call. FAKE_GPU_CAPABILITY, FAKE_GPU_SHARED: what the device is. FAKE_GPU_FAIL:
// "FUNCTION=ERROR". FAKE_GPU_PARAMETERS: how many eight-byte parameters a launch has. Built with -DHIP it is the HIP
// runtime. Where cuda.h can be found it is included, so that these are the real functions' types.

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
    if (!getenv("FAKE_GPU_LOG")) return called(function, text);  // so that a launch can be timed
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
typedef int CUresult, CUdevice, CUdevice_attribute, CUfunction_attribute;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream;
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#endif

static CUcontext current = 0;  // as in a thread that has launched nothing

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
    *context = current;
    return (CUresult)0;
}
CUresult cuCtxPushCurrent(CUcontext context) {
    current = context;
    return (CUresult)0;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
    *context = current;
    current = 0;
    return (CUresult)0;
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    const unsigned char* bytes = (const unsigned char*)image;
    *module = (CUmodule)0x2000;
    return (CUresult)called("cuModuleLoadData", bytes[0] == 0x7f ? "ELF" : "text");
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    *function = (CUfunction)0x3000;
    return (CUresult)called("cuModuleGetFunction", name);
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    return (CUresult)called("cuFuncSetAttribute", "");
}
#ifndef TOO_OLD
CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                        unsigned threads_z, unsigned shared, CUstream stream, void** parameters, void** extra) {
    return (CUresult)launched("cuLaunchKernel", x, y, z, threads * threads_y * threads_z, shared, (void*)stream,
                              parameters);
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
