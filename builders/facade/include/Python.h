// Python's own header, and the entry point of the extension.
#pragma once
// Python has these itself.
#undef Py_BEGIN_ALLOW_THREADS
#undef Py_END_ALLOW_THREADS
#include_next <Python.h>

#ifndef OPFORGE_PRECOMPILED
#include "opforge/facade/module_entry.h"
#endif
