// A CUDA driver that does nothing, for Triton's host library: every call succeeds, on a device of capability 9.0.
// FAKE_CUDA_LOG is a file that gets a line for each module that is loaded, and each launch.

#include <stdio.h>
#include <stdlib.h>

static int done(const char* function) {
    const char* path = getenv("FAKE_CUDA_LOG");
    if (path) {
        FILE* file = fopen(path, "a");
        fprintf(file, "%s\n", function);
        fclose(file);
    }
    return 0;
}

int cuCtxGetCurrent(void** context) {
    *context = (void*)1;
    return 0;
}
int cuCtxSetCurrent(void* context) { return 0; }
int cuCtxGetLimit(size_t* value, int limit) {
    *value = 1 << 20;
    return 0;
}
int cuCtxSetLimit(int limit, size_t value) { return 0; }
int cuCtxGetDevice(int* device) {
    *device = 0;
    return 0;
}
int cuDeviceGet(int* device, int number) {
    *device = number;
    return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    *value = 232448;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
    *context = (void*)1;
    return 0;
}
int cuDriverGetVersion(int* version) {
    *version = 13000;
    return 0;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) {
    *value = attribute == 0 ? 1024 : 0;  // the most threads of a block
    return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) { return 0; }
int cuFuncSetCacheConfig(void* function, int config) { return 0; }
int cuGetErrorString(int error, const char** text) {
    *text = "no error";
    return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    *function = (void*)1;
    return 0;
}
int cuModuleLoadData(void** module, const void* image) {
    *module = (void*)1;
    return done("cuModuleLoadData");
}
int cuModuleUnload(void* module) { return 0; }
int cuLaunchKernelEx(const void* config, void* function, void** parameters, void** extra) {
    return done("cuLaunchKernelEx");
}
int cuOccupancyMaxActiveClusters(int* number, void* function, const void* config) {
    *number = 1;
    return 0;
}
int cuPointerGetAttribute(void* data, int attribute, unsigned long long pointer) {
    *(unsigned long long*)data = pointer;
    return 0;
}
int cuStreamIsCapturing(void* stream, int* status) {
    *status = 0;
    return 0;
}
int cuTensorMapEncodeTiled(void) { return 0; }
int cuTensorMapEncodeIm2col(void) { return 0; }
