#include <opforge/facade/facade.h>
#include <torch/headeronly/util/bit_cast.h>
