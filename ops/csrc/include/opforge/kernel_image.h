// One compiled kernel inside a library: what the launcher (launcher/launch.cpp) needs to know of it.
//
// Each library of kernels holds pointers to its images in the section `opforge_images`, which the linker gathers from
// whatever units hold some: no unit needs to know of another.

#ifndef OPFORGE_KERNEL_IMAGE_H
#define OPFORGE_KERNEL_IMAGE_H

#include <cstddef>
#include <cstdint>

struct opforge_image {
    const char* kernel;  // the name that a launch asks for
    const char* symbol;  // the function's name inside the image
    const char* arch;    // sm_90, sm_90a (that device alone), compute_80 (PTX, for that device and later ones), gfx942
    const void* data;
    size_t size;
    uint32_t shared;      // bytes of dynamic shared memory of a block
    uint32_t threads;     // in a block
    uint32_t parameters;  // the run-time arguments, one slot of eight bytes each
    uint32_t hidden;      // null pointers that the compiler expects after them
    uint64_t aligned;     // bit i: the value of argument i must be divisible by 16
};

#define OPFORGE_IMAGE(name) \
    extern "C" __attribute__((section("opforge_images"), used)) const opforge_image* const name##_entry = &name

#endif
