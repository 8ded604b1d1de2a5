#include <opforge/facade/facade.h>
#include <torch/headeronly/util/TypeSafeSignMath.h>
