// The functions of a GPU's driver that a launch needs. They are looked up by name when the first kernel is requested,
// so that neither building nor loading this needs a header or a library of a vendor.

#ifndef OPFORGE_LAUNCHER_DRIVER_H
#define OPFORGE_LAUNCHER_DRIVER_H

#include <cstddef>
#include <cstdint>

namespace opforge::launcher {

// Formats an error message for the caller. Each thread has its own buffer.
const char* refuse(const char* format, ...) __attribute__((format(printf, 1, 2)));

struct Limits {
    int capability;     // 90 for compute capability 9.0; 0 if images are tried one after the other
    int shared_memory;  // bytes that one block may use
};

// A driver library. Every function returns null, or an error message as `refuse` does.
class Driver {
public:
    virtual ~Driver() = default;
    virtual const char* open() = 0;  // loads the library, once
    virtual const char* limits(int device, Limits* out) = 0;
    virtual const char* enter(int device) = 0;  // makes the device current in this thread, until leave
    virtual void leave() = 0;
    virtual const char* load(const void* image, void** module) = 0;
    virtual const char* find(void* module, const char* symbol, void** function) = 0;
    virtual const char* allow_shared_memory(void* function, int bytes) = 0;
    virtual const char* launch(void* function, const unsigned grid[3], unsigned threads, unsigned shared, void* stream,
                               void** parameters) = 0;
};

Driver& cuda();
Driver& hip();

// Loads the first of `names` (which end with null) that can be loaded. Returns null, or the reasons if there is none.
const char* open_library(const char* what, const char* const* names, void** library);
const char* find_symbol(void* library, const char* what, const char* name, void** out);

}  // namespace opforge::launcher

#endif
