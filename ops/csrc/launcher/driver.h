// The few functions of a GPU's driver that a launch needs, found by name when the first kernel is asked for. No header
// and no library of a vendor is needed to build this, and none to load it.

#ifndef OPFORGE_LAUNCHER_DRIVER_H
#define OPFORGE_LAUNCHER_DRIVER_H

#include <cstddef>
#include <cstdint>

namespace opforge::launcher {

// What went wrong, for whoever called; each thread has its own.
const char* refuse(const char* format, ...) __attribute__((format(printf, 1, 2)));

struct Limits {
    int capability;     // 90 for compute capability 9.0; 0 where images are chosen by trying
    int shared_memory;  // bytes that one block may have
};

// A driver library. Every function gives back null, or the reason why not, as `refuse` does.
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

// The first of `names` (ended by null) that can be loaded, or null and the reasons.
const char* open_library(const char* what, const char* const* names, void** library);
const char* find_symbol(void* library, const char* what, const char* name, void** out);

}  // namespace opforge::launcher

#endif
