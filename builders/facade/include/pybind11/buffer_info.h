#include <opforge/facade/facade.h>
#pragma GCC visibility push(hidden)
#include <opforge/facade/arrays.h>
#pragma GCC visibility pop
