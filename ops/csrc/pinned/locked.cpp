// Locks memory, so that it stays in RAM. The account of what is locked is kept in Python: one for all ops.

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

// Returns 0, or an error number.
EXPORT int pin_lock(uintptr_t address, int64_t bytes) {
    return mlock(reinterpret_cast<void*>(address), static_cast<size_t>(bytes)) ? errno : 0;
}

EXPORT int pin_unlock(uintptr_t address, int64_t bytes) {
    return munlock(reinterpret_cast<void*>(address), static_cast<size_t>(bytes)) ? errno : 0;
}
