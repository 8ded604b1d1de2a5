#include <opforge/facade/facade.h>
#pragma GCC visibility push(hidden)
#include <opforge/facade/class_operators.h>
#pragma GCC visibility pop
