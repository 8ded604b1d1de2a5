#include <opforge/facade/facade.h>
#include <torch/headeronly/util/Float8_e8m0fnu.h>
