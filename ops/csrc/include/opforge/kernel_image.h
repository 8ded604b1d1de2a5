// One compiled kernel inside a library, as the launcher (launcher/launch.cpp) needs it.
//
// A library of kernels has pointers to its images in the section `opforge_images`. The linker collects them from all
// units, so that no unit refers to another.

#ifndef OPFORGE_KERNEL_IMAGE_H
#define OPFORGE_KERNEL_IMAGE_H

#include <cstddef>
#include <cstdint>

struct opforge_image {
    const char* kernel;  // the name that launches use
    const char* symbol;  // the function's name inside the image
    const char*
        arch;  // sm_90, sm_90a (for that capability only), compute_80 (PTX, for that capability and later ones), gfx942
    const void* data;
    size_t size;
    uint32_t shared;      // bytes of dynamic shared memory per block
    uint32_t threads;     // per block
    uint32_t parameters;  // the number of run-time arguments, each in a slot of eight bytes
    uint32_t hidden;      // the number of null pointers that the compiler expects after them
    uint64_t aligned;     // bit i: the value of argument i must be divisible by 16
};

#define OPFORGE_IMAGE(name) \
    extern "C" __attribute__((section("opforge_images"), used)) const opforge_image* const name##_entry = &name

#endif
