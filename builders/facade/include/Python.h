// Python's own header, and the entry point of the extension.
#pragma once
#include_next <Python.h>

#ifndef OPFORGE_PRECOMPILED
#include "opforge/facade/module_entry.h"
#endif
