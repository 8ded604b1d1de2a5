#include <opforge/facade/facade.h>
#pragma GCC visibility push(hidden)
#include <opforge/facade/times.h>
#pragma GCC visibility pop
