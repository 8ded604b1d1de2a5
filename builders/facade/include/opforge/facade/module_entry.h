// A module that a source defines by Python's own C functions is found by its entry point. The other names of a library
// of the facade are hidden; the first declaration of a function decides on its visibility.
#pragma once

struct _object;
typedef struct _object PyObject;

#ifdef TORCH_EXTENSION_NAME
#define OPFORGE_ENTRY_OF(name) PyInit_##name
#define OPFORGE_ENTRY(name) OPFORGE_ENTRY_OF(name)
#ifdef __cplusplus
extern "C"
#endif
    __attribute__((visibility("default"))) PyObject* OPFORGE_ENTRY(TORCH_EXTENSION_NAME)(void);
#endif
